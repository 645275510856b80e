//! What the expressions and queries of a statement name.
//!
//! The tree is visited with a list of its own, not by recursion: `1+1+...` is as deep as it is
//! long, and nothing of that depth may stand on a stack.

use std::collections::HashSet;

use pg_raw_parse::list::NodeList;
use pg_raw_parse::walk::{Recurse, walk_manual};
use pg_raw_parse::{ConstValue, Node, nodes, raw};

use super::call::{argument, by_syntax, serial_of, syntax_function, truth};
use super::elsewhere;
use super::locking::locked;
use super::statement::{Argument, Effect, FunctionUse, RelationName, SetConfig, Target, Uses};

/// Most nodes of one statement that are visited.
pub(super) const NODES_MAX: usize = 2_000_000;

/// Most names of one kind that are kept of one statement.
pub(super) const NAMES_MAX: usize = 10_000;

/// There is more in a statement than is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TooMany;

/// What was found, and the flags that hold for a statement as a whole.
#[derive(Default)]
pub(super) struct Sweep {
    pub(super) uses: Uses,
    /// It changes data, or creates.
    pub(super) writes: bool,
    /// A clause locks rows of whatever is read.
    locks_rows: bool,
    /// Names without a dot, and those of relations, their aliases too.
    columns: HashSet<Box<str>>,
    rows: HashSet<Box<str>>,
    /// Names before `.*`: rows, unless the columns are taken one by one.
    starred: HashSet<Box<str>>,
    visited: usize,
}

/// What stands for a row without being named (INSERT, RETURNING).
const ROWS: [&str; 3] = ["excluded", "old", "new"];

pub(super) fn relation(name: &nodes::RangeVar) -> RelationName {
    RelationName {
        schema: name.schemaname().map(Into::into),
        name: name.relname().unwrap_or_default().into(),
    }
}

/// Whether a relation that is created lives in the session only.
pub(super) fn is_temporary(name: &nodes::RangeVar) -> bool {
    let in_temporary = |schema: &str| schema.starts_with("pg_temp");
    name.relpersistence.cast_unsigned() == b't' || name.schemaname().is_some_and(in_temporary)
}

fn add<T: PartialEq>(list: &mut Vec<T>, item: T) -> Result<(), TooMany> {
    // Short lists are searched; a long one may hold a name twice.
    if list.len() < 64 && list.contains(&item) {
        return Ok(());
    }
    if list.len() >= NAMES_MAX {
        return Err(TooMany);
    }
    list.push(item);
    Ok(())
}

impl Sweep {
    pub(super) fn target(&mut self, name: &nodes::RangeVar, effect: Effect) -> Result<(), TooMany> {
        self.writes = true;
        self.rows.extend(name.relname().map(Into::into));
        let target = Target {
            relation: relation(name),
            effect,
            only: !name.inh,
        };
        if effect.changes_rows() && elsewhere::may_be_shared(&target.relation) {
            elsewhere::every(&mut self.uses);
        }
        add(&mut self.uses.targets, target)
    }

    /// A clause locks rows of a relation that is read.
    fn lock(&mut self, name: &nodes::RangeVar) -> Result<(), TooMany> {
        self.writes = true;
        let target = Target {
            relation: relation(name),
            effect: Effect::Lock,
            only: false,
        };
        add(&mut self.uses.targets, target)
    }

    /// The statement is `SELECT set_config(..)` and no more.
    pub(super) fn is_one_set_config(&mut self, select: &nodes::SelectStmt) {
        let called = self.uses.functions.as_slice();
        let qualified = |schema: &Option<Box<str>>| {
            schema
                .as_deref()
                .is_none_or(|schema| schema == "pg_catalog")
        };
        let one = matches!(called, [one] if &*one.name == "set_config" && qualified(&one.schema));
        let direct = select
            .target_list()
            .iter()
            .all(|target| matches!(target.val(), Node::FuncCall(call) if call.args().len() == 3));
        if let [call] = self.uses.set_configs.as_mut_slice() {
            call.sure = one && direct && is_bare(select);
        }
    }

    /// The statement is `SELECT pg_catalog.pg_export_snapshot()` and no more.
    pub(super) fn is_one_export(&mut self, select: &nodes::SelectStmt) {
        let one = matches!(
            self.uses.functions.as_slice(),
            [one] if &*one.name == "pg_export_snapshot"
                && one.schema.as_deref() == Some("pg_catalog")
        );
        let mut targets = select.target_list().iter();
        let direct = targets.all(|target| matches!(target.val(), Node::FuncCall(_)));
        self.uses.exports_snapshot = one && direct && is_bare(select);
    }

    /// What was found is planned and not run: what it names counts, and what it would change does
    /// not.
    pub(super) fn is_only_planned(&mut self) {
        (self.writes, self.locks_rows) = (self.uses.everything.is_some(), false);
        self.uses.targets.clear();
        self.uses.every_database = false;
        self.uses.defines_in.clear();
        self.uses.redefines = false;
        self.uses.if_not_exists = false;
    }

    pub(super) fn everything(&mut self, why: &'static str) {
        self.writes = true;
        self.uses.everything.get_or_insert(why);
    }

    /// Visits an expression or a query with all that is in it.
    pub(super) fn visit(&mut self, root: Node<'_>) -> Result<(), TooMany> {
        let mut left = vec![root];
        while let Some(node) = left.pop() {
            if matches!(node, Node::None) {
                continue;
            }
            self.visited += 1;
            if self.visited > NODES_MAX {
                return Err(TooMany);
            }
            self.note(node)?;
            if let Node::IntoClause(_) = node {
                // Its name is not read.
                continue;
            }
            // The walk stops at what the grammar has beside expressions: options, of which none
            // is computed, parts of ALTER TABLE that have no more than options, a rule's NOTIFY,
            // names of what a FROM has already.
            if let Node::DefElem(_)
            | Node::LockingClause(_)
            | Node::ATAlterConstraint(_)
            | Node::ReplicaIdentityStmt(_)
            | Node::NotifyStmt(_) = node
            {
                continue;
            }
            // The walk leaves constraints out, and with them the default of a new column.
            if let Node::ColumnDef(column) = node {
                left.extend(column.constraints().iter());
            }
            // And the types of XMLTABLE's columns.
            if let Node::RangeTableFuncCol(column) = node {
                left.extend(column.type_name().map(Node::TypeName));
            }
            if let Node::Constraint(constraint) = node {
                left.push(constraint.raw_expr());
                left.push(constraint.where_clause());
                continue;
            }
            // And the marks of a CYCLE.
            if let Node::CommonTableExpr(cte) = node
                && let Some(cycle) = cte.cycle_clause()
            {
                left.extend([cycle.cycle_mark_value(), cycle.cycle_mark_default()]);
            }
            walk_manual::<()>(node, |child| {
                left.push(child);
                Recurse::no()
            });
        }
        Ok(())
    }

    /// A clause that locks rows locks them in relations that are read.
    pub(super) fn finish(mut self) -> Sweep {
        self.rows.extend(ROWS.map(Into::into));
        self.uses.whole_rows = !self.columns.is_disjoint(&self.rows)
            || (self.uses.texts || self.uses.nulls) && !self.starred.is_disjoint(&self.rows);
        if self.locks_rows {
            self.writes = true;
            for read in &self.uses.reads {
                let target = Target {
                    relation: read.clone(),
                    effect: Effect::Lock,
                    only: false,
                };
                if !self.uses.targets.contains(&target) {
                    self.uses.targets.push(target);
                }
            }
        }
        self
    }

    fn note(&mut self, node: Node<'_>) -> Result<(), TooMany> {
        match node {
            Node::RangeVar(name) => {
                let read = relation(name);
                let alias = name.alias().and_then(|alias| alias.aliasname());
                self.rows.extend(alias.map(Into::into));
                self.rows.insert(read.name.clone());
                add(&mut self.uses.reads, read)
            }
            Node::ColumnRef(column) if column.fields().len() == 1 => {
                let name = column.fields().iter().next().and_then(Node::as_str);
                self.columns.extend(name.map(Into::into));
                Ok(())
            }
            Node::A_Const(constant) => {
                self.uses.texts |= matches!(constant.val(), Some(ConstValue::String(_)));
                self.uses.nulls |= constant.val().is_none();
                Ok(())
            }
            Node::ParamRef(_) => {
                self.uses.texts = true;
                Ok(())
            }
            Node::ReturningOption(option) => {
                self.rows.extend(option.value().map(Into::into));
                Ok(())
            }
            Node::FuncCall(call) => self.note_call(call),
            Node::ColumnRef(column) if column.fields().len() > 1 => {
                let mut fields = column.fields().iter();
                if let Some(Node::A_Star(_)) = fields.next_back() {
                    let name = fields.next_back().and_then(Node::as_str);
                    self.starred.extend(name.map(Into::into));
                }
                self.note_attributes(column.fields())
            }
            Node::A_Indirection(indirection) => self.note_attributes(indirection.indirection()),
            Node::TypeName(name) => self.note_type(name),
            Node::CommonTableExpr(cte) => add(
                &mut self.uses.ctes,
                cte.ctename().unwrap_or_default().into(),
            ),
            Node::SelectStmt(select) => self.note_select(select),
            Node::InsertStmt(insert) => {
                let updates = insert
                    .on_conflict_clause()
                    .is_some_and(|clause| !clause.target_list().is_empty());
                let effect = if updates {
                    Effect::Update
                } else {
                    Effect::Insert
                };
                self.note_change(insert.relation(), effect)
            }
            Node::UpdateStmt(update) => self.note_change(update.relation(), Effect::Update),
            Node::DeleteStmt(delete) => self.note_change(delete.relation(), Effect::Delete),
            Node::MergeStmt(merge) => {
                self.note_change(merge.relation(), Effect::Update)?;
                self.note_change(merge.relation(), Effect::Delete)
            }
            other if self.note_operators(other)? => Ok(()),
            other => match syntax_function(other) {
                Some(name) => add(&mut self.uses.functions, by_syntax(name)),
                None => Ok(()),
            },
        }
    }

    fn note_change(
        &mut self,
        name: Option<&nodes::RangeVar>,
        effect: Effect,
    ) -> Result<(), TooMany> {
        match name {
            Some(name) => self.target(name, effect),
            None => {
                self.everything("it changes an unnamed relation");
                Ok(())
            }
        }
    }

    fn note_select(&mut self, select: &nodes::SelectStmt) -> Result<(), TooMany> {
        if !select.locking_clause().is_empty() {
            match locked(select) {
                Some(relations) => {
                    for name in relations {
                        self.lock(name)?;
                    }
                }
                None => self.locks_rows = true,
            }
        }
        match select.into_clause().and_then(|into| into.rel()) {
            Some(name) => self.target(
                name,
                Effect::Create {
                    temporary: is_temporary(name),
                },
            ),
            None => Ok(()),
        }
    }

    /// Wherever a type is named, something may be turned into it.
    fn note_type(&mut self, name: &nodes::TypeName) -> Result<(), TooMany> {
        match name.names().iter().next_back().and_then(|it| it.sval()) {
            Some(name) => add(&mut self.uses.casts, name.into()),
            None => Ok(()),
        }
    }

    /// The operators of an expression, those that are not written too. Whether it is one that has
    /// some.
    fn note_operators(&mut self, node: Node<'_>) -> Result<bool, TooMany> {
        use raw::A_Expr_Kind as Kind;
        let (names, implied): (Option<&NodeList>, &[&str]) = match node {
            Node::A_Expr(expression) => match expression.kind {
                Kind::AEXPR_BETWEEN
                | Kind::AEXPR_NOT_BETWEEN
                | Kind::AEXPR_BETWEEN_SYM
                | Kind::AEXPR_NOT_BETWEEN_SYM => (None, &["<", ">", "<=", ">="]),
                _ => (Some(expression.name()), &[]),
            },
            // x IN (SELECT ...) has no operator's name.
            Node::SubLink(link) if link.sub_link_type == raw::SubLinkType::ANY_SUBLINK => {
                (Some(link.oper_name()), &["="])
            }
            Node::SubLink(link) => (Some(link.oper_name()), &[]),
            Node::CaseExpr(case) if !matches!(case.arg(), Node::None) => (None, &["="]),
            Node::JoinExpr(join) if join.is_natural || !join.using_clause().is_empty() => {
                (None, &["="])
            }
            Node::SortBy(sort) => (Some(sort.use_op()), &[]),
            _ => return Ok(false),
        };
        let written = names.and_then(|names| names.iter().filter_map(Node::as_str).next_back());
        let implied = match written {
            Some(_) => &[],
            None => implied,
        };
        for name in written.iter().chain(implied) {
            add(&mut self.uses.operators, (*name).into())?;
        }
        Ok(true)
    }

    fn note_attributes(&mut self, fields: &NodeList) -> Result<(), TooMany> {
        for field in fields.iter() {
            if let Node::String(name) = field {
                let name = name.sval().unwrap_or_default();
                add(&mut self.uses.attributes, name.into())?;
            }
        }
        Ok(())
    }

    /// A function is called, or will be.
    pub(super) fn calls(
        &mut self,
        schema: Option<Box<str>>,
        name: Box<str>,
    ) -> Result<(), TooMany> {
        let called = FunctionUse {
            schema,
            name,
            first_text: None,
            of_table: false,
            by_syntax: false,
        };
        add(&mut self.uses.functions, called)
    }

    fn note_call(&mut self, call: &nodes::FuncCall) -> Result<(), TooMany> {
        let (schema, name) = qualified(call.funcname());
        let mut arguments = call.args().iter();
        let first = arguments.next().map_or(Argument::Other, argument);
        if &*name == "set_config" {
            let value = arguments.next().map_or(Argument::Other, argument);
            let local = arguments.next().map_or(Argument::Other, truth);
            let call = SetConfig {
                name: first.clone(),
                value,
                local,
                sure: false,
            };
            if self.uses.set_configs.len() >= NAMES_MAX {
                return Err(TooMany);
            }
            self.uses.set_configs.push(call);
        }
        let takes_name = matches!(&*name, "nextval" | "setval" | "currval");
        let first_node = call.args().iter().next();
        let serial = first_node.filter(|_| takes_name).and_then(serial_of);
        let of_table = serial.is_some();
        let first_text = match first {
            Argument::Text(text, _) if takes_name => Some(text),
            _ => serial,
        };
        // What servers before PostgreSQL 16 take for a name like any other.
        if schema.as_deref() == Some("pg_catalog") && &*name == "json_object" {
            add(&mut self.uses.functions, by_syntax("json_object"))?;
        }
        let called = FunctionUse {
            schema,
            name,
            first_text,
            of_table,
            by_syntax: false,
        };
        add(&mut self.uses.functions, called)
    }
}

/// A name of one, two or three parts: schema and name.
pub(super) fn qualified(parts: &NodeList) -> (Option<Box<str>>, Box<str>) {
    let mut names = parts.iter().filter_map(Node::as_str);
    let name = names.next_back().unwrap_or_default();
    (names.next_back().map(Into::into), name.into())
}

/// Whether a SELECT has a list of expressions and nothing else: it gives one row.
fn is_bare(select: &nodes::SelectStmt) -> bool {
    let nothing = |node: Node<'_>| matches!(node, Node::None);
    select.distinct_clause().is_empty()
        && select.into_clause().is_none()
        && select.from_clause().is_empty()
        && select.group_clause().is_empty()
        && select.window_clause().is_empty()
        && select.values_lists().is_empty()
        && select.sort_clause().is_empty()
        && select.locking_clause().is_empty()
        && select.with_clause().is_none()
        && select.larg().is_none()
        && [select.where_clause(), select.having_clause()]
            .into_iter()
            .all(nothing)
        && [select.limit_offset(), select.limit_count()]
            .into_iter()
            .all(nothing)
        && select.target_list().len() == 1
}
