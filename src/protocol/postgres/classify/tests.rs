use super::{
    Argument, Class, Effect, Isolation, Lexing, SessionControl, SetValue, Statement,
    TransactionControl, Unreadable, classify,
};
use std::sync::Arc;

fn one(text: &str) -> Arc<Statement> {
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    assert_eq!(classified.statements.len(), 1, "{text}");
    Arc::clone(&classified.statements[0])
}

/// `r`, `w` with its targets and `*` for everything, `t`, `s`, `m`, `?`.
fn told(statement: &Statement) -> String {
    let class = match statement.class {
        Class::Read => "r",
        Class::Write => "w",
        Class::Transaction(_) => "t",
        Class::Session(_) => "s",
        Class::Maintenance => "m",
        Class::Unknown(_) => "?",
    };
    let mut told = class.to_owned();
    for target in &statement.uses.targets {
        let schema = target.relation.schema.as_deref();
        let dot = schema.map_or(String::new(), |schema| format!("{schema}."));
        told.push_str(&format!(" {dot}{}", target.relation.name));
    }
    told.extend(statement.uses.defines_in.iter().map(|schema| {
        let schema = schema.as_deref().unwrap_or("?");
        format!(" in:{schema}")
    }));
    if statement.uses.everything.is_some() {
        told.push_str(" *");
    }
    told
}

fn check(table: &[(&str, &str)]) {
    for (text, expected) in table {
        assert_eq!(told(&one(text)), *expected, "{text}");
    }
}

mod control;
mod random;
mod statements;
