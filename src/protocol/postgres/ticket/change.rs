//! What a statement does to the settings that the proxy follows, and the texts without tickets.

use std::ops::Range;
use std::sync::Arc;

use super::scope::{Scope, Settings};
use super::{PARAMETER, Tickets, comment, is_parameter};
use crate::protocol::postgres::classify::{
    Argument, Class, Classified, Isolation, SessionControl, SetConfig, SetValue, Statement,
    TEXT_TYPES, isolation, truth_of,
};
use crate::protocol::postgres::frame::{Bind, rewrite_bind};
use crate::protocol::postgres::identifier;
use crate::protocol::refusal::Refusal;

/// One change of a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// `ringfence.token`.
    Tickets(To<Tickets>, Lasts),
    /// `search_path`; `None`: to something that is not known.
    SearchPath(To<Option<Arc<[Box<str>]>>>, Lasts),
    /// `default_transaction_isolation`.
    Isolation(To<Isolation>, Lasts),
    /// The role.
    Role(Lasts),
    /// Everything goes back to what the session began with.
    ResetAll,
}

/// A new value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum To<T> {
    /// This.
    Value(T),
    /// What the session began with.
    Start,
}

/// How long a change lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lasts {
    /// For the session, once its transaction commits.
    Session,
    /// To the end of the transaction.
    Transaction,
}

impl<T> To<T> {
    fn is_value(&self) -> bool {
        matches!(self, To::Value(_))
    }
}

impl<T: Clone> To<T> {
    fn of(&self, start: &T) -> T {
        match self {
            To::Value(value) => value.clone(),
            To::Start => start.clone(),
        }
    }
}

impl Change {
    /// Whether it changes the path in which names are resolved, or what it means.
    pub fn is_of_path(&self) -> bool {
        matches!(
            self,
            Change::SearchPath(..) | Change::Role(_) | Change::ResetAll
        )
    }

    /// The same change of a path or an isolation for as long as this.
    fn lasting(self, lasts: Option<Lasts>) -> Change {
        match (self, lasts) {
            (Change::SearchPath(to, _), Some(lasts)) => Change::SearchPath(to, lasts),
            (Change::Isolation(to, _), Some(lasts)) => Change::Isolation(to, lasts),
            (Change::Role(_), Some(lasts)) => Change::Role(lasts),
            (other, _) => other,
        }
    }

    /// The same, where it may not happen: what is set is not known.
    #[must_use]
    pub fn unsure(self) -> Change {
        match self {
            Change::SearchPath(_, lasts) => Change::SearchPath(To::Value(None), lasts),
            Change::Isolation(_, lasts) => {
                Change::Isolation(To::Value(Isolation::OneSnapshot), lasts)
            }
            other => other,
        }
    }

    /// Carries it out.
    pub fn apply(&self, scope: &mut Scope) {
        let start = scope.start().clone();
        let local = |lasts: &Lasts| *lasts == Lasts::Transaction;
        match self {
            Change::Tickets(to, lasts) => {
                let value = to.of(&start.tickets);
                let set = |settings: &mut Settings| {
                    settings.tickets = value.clone();
                    settings.set.tickets = to.is_value();
                };
                scope.set(local(lasts), set);
            }
            Change::SearchPath(to, lasts) => {
                let value = to.of(&start.search_path);
                let set = |settings: &mut Settings| {
                    settings.search_path = value.clone();
                    settings.set.search_path = to.is_value();
                };
                scope.set(local(lasts), set);
            }
            Change::Isolation(to, lasts) => {
                let value = to.of(&start.isolation);
                let set = |settings: &mut Settings| {
                    settings.isolation = value;
                    settings.set.isolation = to.is_value();
                };
                scope.set(local(lasts), set);
            }
            Change::Role(lasts) => {
                scope.set(local(lasts), |settings| settings.role_changed = true);
            }
            Change::ResetAll => scope.reset_all(),
        }
    }
}

/// What of a call of `set_config` may be something else than it looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubts {
    /// The database has another function that may be called so.
    pub function: bool,
    /// The database has types that are called like those to which its arguments are cast: what
    /// becomes of a text is not told.
    pub types: bool,
}

impl Doubts {
    /// What the database has is not known.
    pub const ALL: Doubts = Doubts {
        function: true,
        types: true,
    };

    /// It has nothing of these names beside the server's.
    pub const NONE: Doubts = Doubts {
        function: false,
        types: false,
    };

    /// Whether a statement's calls may be to another function.
    fn of_function(self, statement: &Statement) -> bool {
        let mut called = statement.uses.functions.iter();
        let by_name = called
            .any(|it| &*it.name == "set_config" && it.schema.as_deref() != Some("pg_catalog"));
        self.function && by_name
    }

    /// What a statement changes, by what its text tells, where that is in doubt: any setting may
    /// have become anything. A ticket counts as it was shown, whatever becomes of it at the server.
    #[must_use]
    pub fn about(self, statement: &Statement, mut told: Vec<Change>) -> Vec<Change> {
        let is_ticket = |change: &Change| matches!(change, Change::Tickets(..));
        let other = self.of_function(statement) && !told.iter().all(is_ticket);
        if other || self.of_types(statement) {
            told.retain(is_ticket);
            told.extend(any_setting());
        }
        told
    }

    /// Whether what its calls are given may be something else, the parameter's name too.
    pub fn of_types(self, statement: &Statement) -> bool {
        let uses = &statement.uses;
        let mut casts = uses.casts.iter();
        let turned = self.types && casts.any(|name| TEXT_TYPES.contains(&&**name));
        turned && !uses.set_configs.is_empty()
    }
}

/// What a statement changes, in order. `bind` has the values of its parameters.
pub fn changes(statement: &Statement, bind: Option<&Bind<'_>>) -> Result<Vec<Change>, Refusal> {
    let mut changes = vec![];
    for call in &statement.uses.set_configs {
        call_changes(call, bind, &mut changes)?;
    }
    if let Class::Session(control) = &statement.class {
        changes.extend(control_change(control)?);
    }
    Ok(changes)
}

fn lasts(local: bool) -> Lasts {
    match local {
        true => Lasts::Transaction,
        false => Lasts::Session,
    }
}

fn control_change(control: &SessionControl) -> Result<Option<Change>, Refusal> {
    Ok(match control {
        SessionControl::Set { name, local, value } => {
            let lasts = lasts(*local);
            match value {
                SetValue::Texts(texts) => set_change(name, texts, lasts)?,
                SetValue::Default => reset_change(name, lasts),
                SetValue::Other if is_parameter(name) => {
                    return Err(Refusal::invalid("a ticket is set as a text"));
                }
                SetValue::Other => unknown_change(name, lasts),
            }
        }
        SessionControl::Reset(name) => reset_change(name, Lasts::Session),
        SessionControl::ResetAll | SessionControl::DiscardAll => Some(Change::ResetAll),
        SessionControl::SetCharacteristics(modes) => modes
            .isolation
            .map(|level| Change::Isolation(To::Value(level), Lasts::Session)),
        _ => None,
    })
}

fn set_change(name: &str, texts: &[Box<str>], lasts: Lasts) -> Result<Option<Change>, Refusal> {
    Ok(match name {
        // Parameters that are no lists take several values joined: `SET a = 'x', 'y'`.
        PARAMETER => {
            let tickets = Tickets::parse(texts.join(",").as_bytes())?;
            Some(Change::Tickets(To::Value(tickets), lasts))
        }
        "search_path" => {
            let members = texts.iter().map(|member| identifier::cut(member).into());
            let path = To::Value(Some(members.collect()));
            Some(Change::SearchPath(path, lasts))
        }
        "role" | "session_authorization" => Some(Change::Role(lasts)),
        "default_transaction_isolation" => {
            let level = isolation(texts.first().map_or("", |text| text));
            Some(Change::Isolation(To::Value(level), lasts))
        }
        _ => None,
    })
}

fn reset_change(name: &str, lasts: Lasts) -> Option<Change> {
    match name {
        PARAMETER => Some(Change::Tickets(To::Start, lasts)),
        "role" | "session_authorization" => Some(Change::Role(lasts)),
        "search_path" => Some(Change::SearchPath(To::Start, lasts)),
        "default_transaction_isolation" => Some(Change::Isolation(To::Start, lasts)),
        _ => None,
    }
}

/// The same setting to something that the proxy cannot tell.
fn unknown_change(name: &str, lasts: Lasts) -> Option<Change> {
    match name {
        "search_path" => Some(Change::SearchPath(To::Value(None), lasts)),
        "role" | "session_authorization" => Some(Change::Role(lasts)),
        "default_transaction_isolation" => {
            Some(Change::Isolation(To::Value(Isolation::OneSnapshot), lasts))
        }
        _ => None,
    }
}

/// The text of an argument; `Ok(None)` for NULL.
fn text_of<'t>(
    argument: &'t Argument,
    bind: Option<&Bind<'t>>,
) -> Result<Option<&'t [u8]>, NotTold> {
    match argument {
        Argument::Text(text, _) => Ok(Some(text.as_bytes())),
        Argument::Null => Ok(None),
        Argument::Parameter(number) => Ok(bind.ok_or(NotTold)?.text_value(*number)),
        Argument::Truth(_) | Argument::Other => Err(NotTold),
    }
}

/// Any setting but the ticket may have become anything, for good.
fn any_setting() -> [Change; 3] {
    let strict = To::Value(Isolation::OneSnapshot);
    [
        Change::SearchPath(To::Value(None), Lasts::Session),
        Change::Role(Lasts::Session),
        Change::Isolation(strict, Lasts::Session),
    ]
}

/// An expression that the server will evaluate.
struct NotTold;

fn call_changes(
    call: &SetConfig,
    bind: Option<&Bind<'_>>,
    changes: &mut Vec<Change>,
) -> Result<(), Refusal> {
    if !matches!(text_of(&call.name, bind), Ok(Some(_))) {
        // It could be any setting; not the ticket, of which the server would learn.
        changes.extend(any_setting());
        return Ok(());
    }
    let Some(change) = call_change(call, bind)? else {
        return Ok(());
    };
    let told = matches!(call.local, Argument::Truth(_));
    changes.push(match call.sure && told {
        true => change,
        // Whether it takes place, and for how long, is not certain.
        false => change
            .unsure()
            .lasting(if told { None } else { Some(Lasts::Session) }),
    });
    Ok(())
}

fn call_change(call: &SetConfig, bind: Option<&Bind<'_>>) -> Result<Option<Change>, Refusal> {
    let local = match &call.local {
        Argument::Truth(local) => Some(*local),
        other => text_of(other, bind).ok().flatten().and_then(truth_of),
    };
    // An argument that is not told ends with the transaction: the shorter right.
    let lasts = lasts(local.unwrap_or(true));
    let Ok(Some(name)) = text_of(&call.name, bind) else {
        // It could be any setting; not this one's ticket, of which the server would learn.
        return Ok(Some(Change::SearchPath(To::Value(None), Lasts::Session)));
    };
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    match text_of(&call.value, bind) {
        Ok(None) => Ok(reset_change(&name, lasts)),
        Ok(Some(value)) if name == PARAMETER => Ok(Some(Change::Tickets(
            To::Value(Tickets::parse(value)?),
            lasts,
        ))),
        Ok(Some(value)) if name == "default_transaction_isolation" => {
            let level = isolation(&String::from_utf8_lossy(value));
            Ok(Some(Change::Isolation(To::Value(level), lasts)))
        }
        Ok(Some(value)) if name == "search_path" => {
            // In a value the client's encoding counts, which is not known here.
            let text = str::from_utf8(value).ok().filter(|text| text.is_ascii());
            let path = text.and_then(split_path);
            Ok(Some(Change::SearchPath(To::Value(path), lasts)))
        }
        Err(NotTold) if name == PARAMETER => Err(Refusal::invalid(
            "a ticket is given to set_config as a literal or a parameter",
        )),
        _ => Ok(unknown_change(&name, lasts)),
    }
}

/// The members of a path in one text.
pub(super) fn split_path(text: &str) -> Option<Arc<[Box<str>]>> {
    identifier::split(text, ',').map(Into::into)
}

/// A text without its tickets: `show` says what stands in their place. `None` where it has none.
pub fn hide(
    text: &[u8],
    classified: &Classified,
    mut show: impl FnMut(&Tickets) -> String,
) -> Result<Option<Vec<u8>>, Refusal> {
    let mut edits: Vec<(Range<usize>, Vec<u8>)> = vec![];
    for statement in &classified.statements {
        hide_statement(text, statement, &mut show, &mut edits)?;
    }
    if let Some(found) = comment::find(text)? {
        edits.push((found.span.clone(), vec![b' '; found.span.len()]));
    }
    if edits.is_empty() {
        return Ok(None);
    }
    edits.sort_by_key(|(span, _)| std::cmp::Reverse((span.start, span.end)));
    let mut out = text.to_vec();
    let mut before = text.len();
    for (span, replacement) in edits {
        // A comment before a SET is within its statement, which is replaced as a whole.
        if span.end <= before {
            before = span.start;
            out.splice(span, replacement);
        } else if span.start < before && replacement.iter().all(|byte| *byte == b' ') {
            continue;
        } else {
            return Err(Refusal::invalid("tickets in it overlap"));
        }
    }
    Ok(Some(out))
}

fn hide_statement(
    text: &[u8],
    statement: &Statement,
    show: &mut impl FnMut(&Tickets) -> String,
    edits: &mut Vec<(Range<usize>, Vec<u8>)>,
) -> Result<(), Refusal> {
    match &statement.class {
        Class::Session(SessionControl::Set {
            name,
            local,
            value: SetValue::Texts(texts),
        }) if is_parameter(name) => {
            let tickets = Tickets::parse(texts.join(",").as_bytes())?;
            let local = if *local { "LOCAL " } else { "" };
            let shown = show(&tickets);
            let set = format!("SET {local}{PARAMETER} = '{shown}'");
            edits.push((statement.span.clone(), set.into_bytes()));
        }
        Class::Session(SessionControl::Prepare { statement, .. }) => {
            hide_statement(text, statement, show, edits)?;
        }
        // Where the ticket stands in it is not known, and the server would log it.
        Class::Unknown(_) if names_parameter(text) => {
            return Err(Refusal::invalid(
                "a ticket is not taken out of a text that could not be read",
            ));
        }
        _ => {}
    }
    for call in &statement.uses.set_configs {
        let (Argument::Text(name, _), Argument::Text(value, at)) = (&call.name, &call.value) else {
            continue;
        };
        if is_parameter(name) {
            let tickets = Tickets::parse(value.as_bytes())?;
            let span = literal(text, *at, value).ok_or_else(|| {
                Refusal::invalid("a ticket is given to set_config as a plain literal")
            })?;
            edits.push((span, format!("'{}'", show(&tickets)).into_bytes()));
        }
    }
    Ok(())
}

fn names_parameter(text: &[u8]) -> bool {
    text.windows(PARAMETER.len())
        .any(|window| window.eq_ignore_ascii_case(PARAMETER.as_bytes()))
}

/// Where the literal that begins here ends, if it is plain and this is its value.
fn literal(text: &[u8], at: usize, value: &str) -> Option<Range<usize>> {
    let quoted = format!("'{}'", value.replace('\'', "''"));
    let end = at + quoted.len();
    (text.get(at..end)? == quoted.as_bytes()).then_some(at..end)
}

/// A Bind without the tickets that it gives to set_config; `None` where it gives none.
pub fn hide_in_bind(
    bind: &Bind<'_>,
    statement: &Statement,
    mut show: impl FnMut(&Tickets) -> String,
) -> Result<Option<Vec<u8>>, Refusal> {
    let mut values: Vec<(usize, String)> = vec![];
    for call in &statement.uses.set_configs {
        let Argument::Parameter(number) = call.value else {
            continue;
        };
        let name = text_of(&call.name, Some(bind)).ok().flatten();
        let named = name.is_some_and(|name| name.eq_ignore_ascii_case(PARAMETER.as_bytes()));
        if let (true, Some(value)) = (named, bind.text_value(number)) {
            values.push((number, show(&Tickets::parse(value)?)));
        }
    }
    if values.is_empty() {
        return Ok(None);
    }
    let values: Vec<(usize, &[u8])> = values
        .iter()
        .map(|(number, text)| (*number, text.as_bytes()))
        .collect();
    Ok(Some(rewrite_bind(bind, &values)))
}
