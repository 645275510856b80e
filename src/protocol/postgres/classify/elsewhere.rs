//! What is about other databases than the one that it runs in: those that it names, or all of them.
//! Rules for these ask for their locks, whatever is known of its own.
//!
//! What code does there that runs here (a function, dblink) is not seen.

use pg_raw_parse::{Node, nodes, raw};

use super::statement::{RelationName, Uses};

/// Catalogs that all databases have in common (pg_class.relisshared). Sorted.
const SHARED: [&str; 11] = [
    "pg_auth_members",
    "pg_authid",
    "pg_database",
    "pg_db_role_setting",
    "pg_parameter_acl",
    "pg_replication_origin",
    "pg_shdepend",
    "pg_shdescription",
    "pg_shseclabel",
    "pg_subscription",
    "pg_tablespace",
];

/// Without one of these no text has a statement of [`note`] or [`every`]: DROP DATABASE, IN
/// DATABASE; DROP OWNED; ALTER SYSTEM; ALTER ROLE and USER; COPY; LOAD.
const WORDS: [&str; 7] = [
    "database", "owned", "system", "role", "user", "copy", "load",
];

/// Whether a catalog is one that all databases have in common.
pub(in super::super) fn is_shared(name: &str) -> bool {
    SHARED.binary_search(&name).is_ok()
}

/// Whether a name, as it is written, may be such a catalog's.
pub(super) fn may_be_shared(name: &RelationName) -> bool {
    let schema = name.schema.as_deref();
    schema.is_none_or(|schema| schema == "pg_catalog") && is_shared(&name.name)
}

/// Whether a text that was not read may be about other databases. Its words are those of the
/// server, whatever else is not certain of it: a keyword has no other form than its letters, and a
/// byte beyond ASCII, or one that escapes, only puts it within something else.
pub(super) fn may_be_in(text: &[u8]) -> bool {
    let in_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut words = text.split(|byte| !in_word(byte));
    words.any(|word| {
        let is = |known: &&str| word.eq_ignore_ascii_case(known.as_bytes());
        WORDS.iter().chain(&SHARED).any(is)
    })
}

/// It changes what all databases have in common, or may: the server's settings, its files.
pub(super) fn every(uses: &mut Uses) {
    uses.every_database = true;
}

/// Notes the databases that a definition is about.
pub(super) fn note(node: Node<'_>, uses: &mut Uses) {
    use raw::ObjectType::OBJECT_DATABASE;
    let named = |node: Node<'_>| node.as_str().map(Into::into);
    let one = |name: Option<&str>| name.into_iter().map(Into::into).collect();
    uses.every_database |= match node {
        // They reach what is shared: the owner and the privileges of databases.
        Node::DropOwnedStmt(_) | Node::ReassignOwnedStmt(_) => true,
        // What sessions begin with, in any.
        Node::AlterRoleSetStmt(it) => it.database().is_none(),
        // The library takes what it names for relations, and does not tell other names.
        Node::GrantStmt(it) => it.objtype == OBJECT_DATABASE,
        _ => false,
    };
    if let Node::CreatedbStmt(it) = node {
        uses.makes_database = it.dbname().map(Into::into);
    }
    uses.databases = match node {
        Node::CreatedbStmt(it) => one(template(it)),
        Node::DropdbStmt(it) => one(it.dbname()),
        Node::AlterDatabaseStmt(it) => one(it.dbname()),
        Node::AlterDatabaseRefreshCollStmt(it) => one(it.dbname()),
        Node::AlterDatabaseSetStmt(it) => one(it.dbname()),
        Node::AlterRoleSetStmt(it) => one(it.database()),
        Node::RenameStmt(it) if it.rename_type == OBJECT_DATABASE => {
            let names = it.subname().into_iter().chain(it.newname());
            names.map(Into::into).collect()
        }
        Node::AlterOwnerStmt(it) if it.object_type == OBJECT_DATABASE => {
            named(it.object()).into_iter().collect()
        }
        Node::CommentStmt(it) if it.objtype == OBJECT_DATABASE => {
            named(it.object()).into_iter().collect()
        }
        Node::SecLabelStmt(it) if it.objtype == OBJECT_DATABASE => {
            named(it.object()).into_iter().collect()
        }
        _ => vec![],
    };
}

/// The database that a new one is a copy of, where it is written.
fn template(it: &nodes::CreatedbStmt) -> Option<&str> {
    let mut options = it.options().iter();
    let template = options.find(|option| option.defname() == Some("template"));
    template.and_then(|option| option.arg().as_str())
}

#[cfg(test)]
mod tests {
    use super::{SHARED, is_shared, may_be_in};

    #[test]
    fn words_are_found_whatever_stands_around_them() {
        assert!(SHARED.is_sorted() && is_shared("pg_database") && !is_shared("pg_class"));
        for text in [
            &b"drop DataBase app"[..],
            b"ALTER/**/DATABASE\"app\"",
            b"\xff\xffREASSIGN\xa0OWNED\xa0BY x",
            b"UPDATE\tpg_catalog.PG_database SET a = '\\'",
            b";LOAD'x'",
        ] {
            assert!(may_be_in(text), "{text:?}");
        }
        for text in [
            &b"INSERT INTO databases VALUES ('\\', 'upload', my_database)"[..],
            b"SELECT 1",
        ] {
            assert!(!may_be_in(text), "{text:?}");
        }
    }
}
