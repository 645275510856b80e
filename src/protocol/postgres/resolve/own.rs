//! Code of the database's own that a statement calls: functions that are no part of the server, by
//! their names, and views, which may call some. What such a function is declared to be is believed
//! elsewhere; what it does to the session is not.
//!
//! Not looked for: what operators, casts, domains and row security policies call.

use super::catalog::{Catalog, RelationKind};
use crate::protocol::postgres::classify::{Class, SessionControl, Statement};

fn is_servers(schema: &str) -> bool {
    matches!(schema, "pg_catalog" | "information_schema")
}

/// Whether a statement may run such code. Without a catalog, whatever has names may.
pub fn runs_own_code(statement: &Statement, catalog: Option<&Catalog>) -> bool {
    match &statement.class {
        Class::Session(SessionControl::Fetch(_)) | Class::Unknown(_) => return true,
        Class::Transaction(_) | Class::Session(_) => return false,
        Class::Read | Class::Write | Class::Maintenance => {}
    }
    let uses = &statement.uses;
    let schema_is_servers = |schema: Option<&str>| schema.is_some_and(is_servers);
    let mut functions = uses.functions.iter();
    let mut reads = uses.reads.iter();
    let Some(catalog) = catalog else {
        return functions.any(|it| !schema_is_servers(it.schema.as_deref()))
            || reads.any(|it| !schema_is_servers(it.schema.as_deref()))
            || !uses.attributes.is_empty();
    };
    let own = |name: &str| {
        let mut known = catalog.functions(name).iter();
        known.any(|it| !is_servers(&it.schema))
    };
    functions.any(|it| {
        let unknown = catalog.functions(&it.name).is_empty() && !it.by_syntax;
        !schema_is_servers(it.schema.as_deref()) && (own(&it.name) || unknown)
    }) || uses.attributes.iter().any(|name| own(name))
        || reads.any(|name| {
            let views = catalog.named(&name.name);
            let mut views = views.filter(|it| it.kind == RelationKind::View);
            views.any(|it| !is_servers(&it.schema))
        })
}
