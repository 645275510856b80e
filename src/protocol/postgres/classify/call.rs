//! What a call is given, and calls that have a syntax of their own.

use pg_raw_parse::{ConstValue, Node, nodes, raw};

use super::statement::{Argument, FunctionUse};
use super::sweep::qualified;

/// Types that keep a text that is cast to them as it is, by their names: the server's own do.
pub const TEXT_TYPES: [&str; 4] = ["bool", "regclass", "text", "varchar"];

/// A literal, also cast to a type, or a parameter.
pub(super) fn argument(node: Node<'_>) -> Argument {
    let node = match node {
        Node::TypeCast(cast) if keeps_text(cast) => cast.arg(),
        other => other,
    };
    match node {
        Node::A_Const(constant) => match constant.val() {
            None => Argument::Null,
            Some(ConstValue::String(text)) => {
                Argument::Text(text.into(), usize::try_from(constant.location).unwrap_or(0))
            }
            Some(ConstValue::Boolean(value)) => Argument::Truth(value),
            Some(_) => Argument::Other,
        },
        Node::ParamRef(parameter) => {
            usize::try_from(parameter.number).map_or(Argument::Other, Argument::Parameter)
        }
        _ => Argument::Other,
    }
}

/// Whether a cast leaves a text as it is: `varchar(3)` would not.
fn keeps_text(cast: &nodes::TypeCast) -> bool {
    cast.type_name().is_some_and(|name| {
        let mut parts: Vec<&str> = name.names().iter().filter_map(|it| it.sval()).collect();
        let last = parts.pop();
        let known = last.is_some_and(|last| TEXT_TYPES.contains(&last));
        let plain = name.typmods().is_empty() && name.array_bounds().is_empty();
        known && plain && matches!(parts.as_slice(), [] | ["pg_catalog"])
    })
}

/// The table of `pg_get_serial_sequence('t', 'a')`, where it is written there.
pub(super) fn serial_of(node: Node<'_>) -> Option<Box<str>> {
    let Node::FuncCall(call) = node else {
        return None;
    };
    let (schema, name) = qualified(call.funcname());
    let known = schema.is_none_or(|schema| &*schema == "pg_catalog");
    let known = known && &*name == "pg_get_serial_sequence" && call.args().len() == 2;
    match call.args().iter().next().map(argument) {
        Some(Argument::Text(table, _)) if known => Some(table),
        _ => None,
    }
}

/// The same where a truth value stands.
pub(super) fn truth(node: Node<'_>) -> Argument {
    match argument(node) {
        Argument::Text(text, _) => {
            truth_of(text.as_bytes()).map_or(Argument::Other, Argument::Truth)
        }
        other => other,
    }
}

/// What a text, or the binary form, of a boolean stands for.
pub(crate) fn truth_of(text: &[u8]) -> Option<bool> {
    match text.to_ascii_lowercase().as_slice() {
        b"t" | b"true" | b"on" | b"y" | b"yes" | b"1" | [1] => Some(true),
        b"f" | b"false" | b"off" | b"n" | b"no" | b"0" | [0] => Some(false),
        _ => None,
    }
}

/// What has a syntax of its own since PostgreSQL 16 or 17, and is a plain call before.
pub(super) fn syntax_function(node: Node<'_>) -> Option<&'static str> {
    Some(match node {
        Node::JsonParseExpr(_) => "json",
        Node::JsonScalarExpr(_) => "json_scalar",
        Node::JsonSerializeExpr(_) => "json_serialize",
        Node::JsonObjectConstructor(_) => "json_object",
        Node::JsonArrayConstructor(_) | Node::JsonArrayQueryConstructor(_) => "json_array",
        Node::JsonObjectAgg(_) => "json_objectagg",
        Node::JsonArrayAgg(_) => "json_arrayagg",
        Node::JsonTable(_) => "json_table",
        Node::MergeSupportFunc(_) => "merge_action",
        Node::JsonFuncExpr(call) => match call.op {
            raw::JsonExprOp::JSON_EXISTS_OP => "json_exists",
            raw::JsonExprOp::JSON_QUERY_OP => "json_query",
            raw::JsonExprOp::JSON_VALUE_OP => "json_value",
            _ => "json_table",
        },
        _ => return None,
    })
}

pub(super) fn by_syntax(name: &str) -> FunctionUse {
    FunctionUse {
        schema: None,
        name: name.into(),
        first_text: None,
        of_table: false,
        by_syntax: true,
    }
}
