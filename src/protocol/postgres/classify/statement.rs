//! What a statement is, as far as its own text tells.

use std::ops::Range;
use std::sync::Arc;

use super::elsewhere;
use super::filling::Kin;

/// The statements of one text, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Classified {
    /// None at all in an empty text.
    pub statements: Vec<Arc<Statement>>,
}

/// One statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// What it does.
    pub class: Class,
    /// Its name for the audit: `UPDATE`, `DROP`, `SET`.
    pub operation: &'static str,
    /// Where it stands in its text, without the semicolon. Of one that reads or changes rows, in
    /// the first text of its shape that came.
    pub span: Range<usize>,
    /// What it names.
    pub uses: Uses,
    /// The prepared statement that it executes (EXECUTE, also within EXPLAIN or CREATE TABLE AS):
    /// what that one is counts as well.
    pub executes: Option<Box<str>>,
    /// The cursor that it opens (DECLARE).
    pub opens: Option<OpenedCursor>,
}

/// A cursor that a DECLARE opens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenedCursor {
    /// Its name.
    pub name: Box<str>,
    /// WITH HOLD: it outlives its transaction.
    pub holds: bool,
}

/// What a statement does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Class {
    /// It reads, provided that no function, view or operator that it uses does more: that is for
    /// [`resolve`](super::super::resolve) to find out.
    Read,
    /// It writes, or may.
    Write,
    /// It begins or ends a transaction, or a part of one.
    Transaction(TransactionControl),
    /// It changes the session only. What it uses counts as for a read.
    Session(SessionControl),
    /// It changes how data is kept: VACUUM, REINDEX, ALTER SYSTEM. Counts as a write.
    Maintenance,
    /// It could not be read; a write to everything.
    Unknown(Unreadable),
}

/// Why a text was not classified.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unreadable {
    /// The grammar does not take it. The server may have another version's.
    Syntax,
    /// It is longer than what is looked at.
    TooLong,
    /// Not UTF-8, or in an encoding of which only ASCII is certain.
    Encoding,
    /// It has a backslash, and whether that escapes is not certain.
    Backslash,
    /// It has more parts than are looked at.
    TooMany,
    /// The grammar's library failed on it.
    Failed,
}

impl Unreadable {
    /// One phrase for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Unreadable::Syntax => "it is not in Postgres's grammar",
            Unreadable::TooLong => "it is too long to be looked at",
            Unreadable::Encoding => "its encoding is not UTF-8",
            Unreadable::Backslash => {
                "it has a backslash, and standard_conforming_strings may be off"
            }
            Unreadable::TooMany => "it has too many parts to be looked at",
            Unreadable::Failed => "the parser failed on it",
        }
    }
}

/// BEGIN to ROLLBACK PREPARED.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransactionControl {
    /// BEGIN and START TRANSACTION.
    Begin(TransactionModes),
    /// COMMIT and END.
    Commit {
        /// AND CHAIN: another transaction begins at once.
        chain: bool,
    },
    /// ROLLBACK and ABORT.
    Rollback {
        /// AND CHAIN.
        chain: bool,
    },
    /// SAVEPOINT.
    Savepoint(Box<str>),
    /// RELEASE.
    Release(Box<str>),
    /// ROLLBACK TO.
    RollbackTo(Box<str>),
    /// PREPARE TRANSACTION.
    Prepare(Box<str>),
    /// COMMIT PREPARED: applies what some session wrote.
    CommitPrepared(Box<str>),
    /// ROLLBACK PREPARED.
    RollbackPrepared(Box<str>),
}

/// The modes that BEGIN and SET TRANSACTION give.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransactionModes {
    /// ISOLATION LEVEL.
    pub isolation: Option<Isolation>,
    /// READ ONLY or READ WRITE.
    pub read_only: Option<bool>,
}

/// How many snapshots a transaction takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// READ COMMITTED and READ UNCOMMITTED: one per statement.
    PerStatement,
    /// REPEATABLE READ and SERIALIZABLE: one, at its first query.
    OneSnapshot,
}

/// Statements that change the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionControl {
    /// SET of a parameter, in lower case.
    Set {
        /// The parameter.
        name: Box<str>,
        /// SET LOCAL.
        local: bool,
        /// To what.
        value: SetValue,
    },
    /// SET TRANSACTION.
    SetTransaction(TransactionModes),
    /// SET TRANSACTION SNAPSHOT of one of this name: it was taken elsewhere, and earlier.
    ImportSnapshot(Box<str>),
    /// SET SESSION CHARACTERISTICS AS TRANSACTION.
    SetCharacteristics(TransactionModes),
    /// RESET of a parameter, in lower case.
    Reset(Box<str>),
    /// RESET ALL.
    ResetAll,
    /// SHOW of a parameter, in lower case; `all` for all.
    Show(Box<str>),
    /// DISCARD ALL.
    DiscardAll,
    /// DISCARD PLANS, SEQUENCES or TEMPORARY.
    Discard,
    /// PREPARE: the statement that EXECUTE will run.
    Prepare {
        /// Its name.
        name: Box<str>,
        /// What it is.
        statement: Arc<Statement>,
    },
    /// EXECUTE; see [`Statement::executes`].
    Execute,
    /// DEALLOCATE; `None` for ALL.
    Deallocate(Option<Box<str>>),
    /// FETCH and MOVE: what a cursor does counted at its DECLARE, what a portal of the protocol's
    /// does counts as its Execute would.
    Fetch(Box<str>),
    /// CLOSE; `None` for ALL.
    CloseCursor(Option<Box<str>>),
    /// LISTEN, UNLISTEN and NOTIFY.
    Notification,
    /// SET CONSTRAINTS.
    SetConstraints,
}

/// The value of a SET.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetValue {
    /// Its members, unquoted; one for most parameters.
    Texts(Vec<Box<str>>),
    /// DEFAULT.
    Default,
    /// FROM CURRENT, or something that is no text.
    Other,
}

/// What a statement names. Names are as the grammar gives them: folded where they were not quoted,
/// cut to 63 bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uses {
    /// The relations that it writes to.
    pub targets: Vec<Target>,
    /// Relations that it reads; those that it writes to and common table expressions among them.
    pub reads: Vec<RelationName>,
    /// The names of its common table expressions.
    pub ctes: Vec<Box<str>>,
    /// Functions, aggregates and procedures that it calls.
    pub functions: Vec<FunctionUse>,
    /// Names after a dot: columns, or functions in attribute notation (PostgreSQL docs 8.16.5).
    pub attributes: Vec<Box<str>>,
    /// Operators, without their schemas.
    pub operators: Vec<Box<str>>,
    /// Types that it names, without their schemas: something may be turned into one.
    pub casts: Vec<Box<str>>,
    /// Types of its parameters that are the database's own, as the client gives them.
    pub types: Vec<u32>,
    /// Calls of set_config.
    pub set_configs: Vec<SetConfig>,
    /// It may use rows of its relations as values: a name without a dot is one of theirs.
    pub whole_rows: bool,
    /// It has a text or a parameter, of which the server may make a value of any type as it looks
    /// at the statement.
    pub texts: bool,
    /// It has a NULL, which may be made a value likewise.
    pub nulls: bool,
    /// What a definition names in expressions and queries that it does not run yet.
    pub analysed: Option<Box<Uses>>,
    /// What a table that it makes or alters has to do with others.
    pub kin: Vec<Kin>,
    /// It has texts in a language that is not looked at, of which the server makes values at once.
    pub unread_texts: bool,
    /// The statement is `SELECT pg_catalog.pg_export_snapshot()` and no more.
    pub exports_snapshot: bool,
    /// Schemas of objects other than relations that it defines; `None`: the first of the path.
    pub defines_in: Vec<Option<Box<str>>>,
    /// Databases that it is about, whichever it runs in.
    pub databases: Vec<Box<str>>,
    /// A database that it makes: no table is in it yet.
    pub makes_database: Option<Box<str>>,
    /// It is about databases that are not told, or about all: GRANT, whatever a role has in any,
    /// the server's settings and files.
    pub every_database: bool,
    /// It may write to anything, and why.
    pub everything: Option<&'static str>,
    /// After it, names may do what the catalog of before it does not tell.
    pub redefines: bool,
    /// An extension that it makes unless that is there (CREATE EXTENSION IF NOT EXISTS).
    pub extension: Option<Box<str>>,
    /// What it creates may be there already, and be something else.
    pub if_not_exists: bool,
    /// CONCURRENTLY: it takes several transactions.
    pub concurrently: bool,
}

/// A relation as it is written.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RelationName {
    /// The schema, where it is written.
    pub schema: Option<Box<str>>,
    /// The name.
    pub name: Box<str>,
}

/// A relation that is written to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Which.
    pub relation: RelationName,
    /// How.
    pub effect: Effect,
    /// ONLY: without its children.
    pub only: bool,
}

/// How a relation is written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// INSERT and COPY FROM.
    Insert,
    /// UPDATE, ON CONFLICT DO UPDATE and MERGE: foreign keys may cascade.
    Update,
    /// DELETE: foreign keys may cascade.
    Delete,
    /// TRUNCATE.
    Truncate {
        /// CASCADE: with every table that references it.
        cascade: bool,
    },
    /// It is created: it need not exist.
    Create {
        /// For this session only.
        temporary: bool,
    },
    /// ALTER, DROP, CREATE INDEX, CREATE TRIGGER, REFRESH, VACUUM.
    Define,
    /// It is given a foreign key: whatever may be done to its rows by that counts at once, for what
    /// comes behind it in the transaction.
    Key,
    /// It gets another name or schema: what may be done by that counts at once, for what comes
    /// behind it in the transaction.
    Move,
    /// DROP .. CASCADE, also of a part of it: with what depends on it.
    Drop,
    /// Rows are locked (FOR UPDATE), or the relation is (LOCK TABLE).
    Lock,
}

impl Effect {
    /// Whether rows are changed, rather than what a relation is.
    pub fn changes_rows(self) -> bool {
        matches!(
            self,
            Effect::Insert | Effect::Update | Effect::Delete | Effect::Truncate { .. }
        )
    }
}

/// A function that is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionUse {
    /// The schema, where it is written.
    pub schema: Option<Box<str>>,
    /// The name.
    pub name: Box<str>,
    /// The first argument, where it is a text: the sequence of `nextval('s')`.
    pub first_text: Option<Box<str>>,
    /// That text is the table's whose sequence it is:
    /// `setval(pg_get_serial_sequence('t', 'a'), 1)`.
    pub of_table: bool,
    /// It is written in a syntax of its own, which older servers read as a plain call
    /// (`json_scalar(x)` before PostgreSQL 16).
    pub by_syntax: bool,
}

/// A call of `set_config(name, value, is_local)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetConfig {
    /// The parameter.
    pub name: Argument,
    /// Its new value.
    pub value: Argument,
    /// Whether it ends with the transaction.
    pub local: Argument,
    /// The statement is nothing but this call: where it succeeds, it was carried out.
    pub sure: bool,
}

/// An argument of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Argument {
    /// A literal and where it begins in the text.
    Text(Box<str>, usize),
    /// `$1`: the value is in Bind.
    Parameter(usize),
    /// A truth value, also as a text that stands for one.
    Truth(bool),
    /// NULL.
    Null,
    /// An expression.
    Other,
}

impl Statement {
    /// A text that could not be read.
    pub fn unreadable(why: Unreadable, bytes: usize) -> Statement {
        Statement {
            class: Class::Unknown(why),
            operation: "unknown",
            span: 0..bytes,
            uses: Uses {
                everything: Some(why.as_str()),
                ..Uses::default()
            },
            executes: None,
            opens: None,
        }
    }

    /// Whether it takes a snapshot: the first that does fixes what a REPEATABLE READ transaction
    /// sees. The exceptions are those of the server's `PlannedStmtRequiresSnapshot`.
    pub fn takes_snapshot(&self) -> bool {
        match &self.class {
            Class::Transaction(_) => false,
            Class::Session(control) => matches!(
                control,
                SessionControl::Execute
                    | SessionControl::Fetch(_)
                    | SessionControl::ImportSnapshot(_)
                    | SessionControl::Prepare { .. }
                    | SessionControl::Deallocate(_)
                    | SessionControl::Discard
                    | SessionControl::DiscardAll
                    | SessionControl::CloseCursor(_)
            ),
            Class::Read | Class::Write | Class::Maintenance | Class::Unknown(_) => {
                self.operation != "LOCK"
            }
        }
    }

    /// Whether a COMMIT within it cannot be excluded: CALL and DO may end the transaction and go on
    /// in another, as may a text that was not read.
    pub fn may_commit_inside(&self) -> bool {
        matches!(self.operation, "CALL" | "DO") || matches!(self.class, Class::Unknown(_))
    }

    /// Whether it runs no code that could do anything to the session, whatever else it reaches:
    /// maintenance, and definitions that compute nothing.
    pub fn runs_no_code(&self) -> bool {
        const OPERATIONS: [&str; 6] = [
            "VACUUM",
            "CLUSTER",
            "REINDEX",
            "DROP",
            "DDL",
            "CREATE TRIGGER",
        ];
        let named = OPERATIONS.contains(&self.operation) || self.is_of_server();
        named && self.executes.is_none()
    }

    /// Whether it is about roles or databases as such: in the database that it runs in, no name
    /// means or does anything else behind it.
    pub fn is_of_server(&self) -> bool {
        const OPERATIONS: [&str; 6] = [
            "CREATE DATABASE",
            "ALTER DATABASE",
            "DROP DATABASE",
            "CREATE ROLE",
            "ALTER ROLE",
            "DROP ROLE",
        ];
        OPERATIONS.contains(&self.operation)
    }

    /// Whether it names databases, or is about all of them.
    pub fn is_about_databases(&self) -> bool {
        let uses = &self.uses;
        uses.every_database || uses.makes_database.is_some() || !uses.databases.is_empty()
    }

    /// Whether an error in it may leave something of it done: it commits in its middle, is not
    /// bound to a transaction, or moves a sequence.
    pub fn may_be_done_in_part(&self) -> bool {
        let mut called = self.uses.functions.iter();
        self.may_commit_inside()
            || self.uses.concurrently
            || matches!(self.class, Class::Maintenance)
            || self.operation == "DDL"
            || self.is_of_server()
            || called.any(|call| &*call.name == "setval")
    }
}

impl Classified {
    /// The same with types that are given to its parameters: those of the database's own are kept.
    pub fn with_types(self: Arc<Classified>, types: impl Iterator<Item = u32>) -> Arc<Classified> {
        // Oids below are the server's own (FirstNormalObjectId).
        let types: Vec<u32> = types.filter(|oid| *oid >= 16384).collect();
        if types.is_empty() {
            return self;
        }
        let mut classified = Classified::clone(&self);
        for statement in &mut classified.statements {
            Arc::make_mut(statement).uses.types.clone_from(&types);
        }
        Arc::new(classified)
    }

    /// A text that could not be read.
    pub fn unread(why: Unreadable, text: &[u8]) -> Classified {
        let statement = Statement::unreadable(why, text.len());
        Classified::about(statement, elsewhere::may_be_in(text))
    }

    /// A text of so many bytes that was not seen.
    pub fn unseen(why: Unreadable, bytes: usize) -> Classified {
        Classified::about(Statement::unreadable(why, bytes), true)
    }

    fn about(mut statement: Statement, every_database: bool) -> Classified {
        statement.uses.every_database = every_database;
        Classified {
            statements: vec![Arc::new(statement)],
        }
    }
}
