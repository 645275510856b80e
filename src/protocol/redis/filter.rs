//! Replies from which the proxy's own traces are taken: its keys from listings of keys, from logs
//! and from what the server sends by itself, and its part of the names of connections.
//!
//! A filter gets the whole reply and returns another; what it does not understand it passes as an
//! error, never as it came.

use super::encode;
use super::number::integer;
use super::pushed;
use super::value::Value;

/// What to take from a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filter {
    /// Keys that begin so, from the reply to `KEYS`.
    Keys(Box<[u8]>),
    /// The same, to `SCAN`.
    Scan(Box<[u8]>),
    /// The same, to `RANDOMKEY`.
    RandomKey(Box<[u8]>),
    /// Entries with an argument that begins so, from the reply to `SLOWLOG GET`.
    SlowLog(Box<[u8]>),
    /// Entries about an object that begins so, from the reply to `ACL LOG`.
    AclLog(Box<[u8]>),
    /// Keys that begin so, from a message or an invalidation that the server sends by itself.
    Pushed(Box<[u8]>),
    /// The beginning of the name, from the reply to `CLIENT GETNAME`.
    Name(Box<[u8]>),
    /// The beginning of every name, from the reply to `CLIENT LIST` or `CLIENT INFO`.
    NameFields(Box<[u8]>),
}

/// What becomes of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filtered {
    /// This goes to the client.
    Reply(Vec<u8>),
    /// There is nothing to show: the command is to be sent again, a few times. At last the client
    /// is told that there is none: a null.
    Again,
    /// Nothing goes to the client, which does not wait for it either.
    Nothing,
}

impl Filter {
    /// Whether what has come of a reply shows that nothing is taken from it: it need not be held
    /// until it is whole.
    pub fn is_content_with(&self, beginning: &[u8]) -> bool {
        matches!(self, Filter::Pushed(_)) && pushed::tells_no_key(beginning)
    }

    /// Filters a whole reply.
    pub fn apply(&self, reply: &[u8]) -> Filtered {
        let refused = || Filtered::Reply(encode::error("FENCEUNCLASS the reply is not understood"));
        let Ok((value, _)) = Value::parse(reply) else {
            return refused();
        };
        if matches!(value, Value::Error(_) | Value::Null) {
            return Filtered::Reply(reply.to_vec());
        }
        let filtered = match self {
            Filter::Keys(prefix) => value.as_array().map(|keys| visible(keys, prefix)),
            Filter::Scan(prefix) => scan(&value, prefix),
            Filter::RandomKey(prefix) => match value.as_text() {
                Some(key) if key.starts_with(prefix) => return Filtered::Again,
                key => key.map(|_| reply.to_vec()),
            },
            Filter::SlowLog(prefix) => without(reply, |entry| {
                let args = entry.as_array()?.get(3)?.as_array()?;
                Some(args.iter().any(|arg| begins(arg, prefix)))
            }),
            Filter::AclLog(prefix) => {
                without(reply, |entry| Some(begins(entry.field("object")?, prefix)))
            }
            Filter::Pushed(prefix) => match pushed::without_keys(&value, reply, prefix) {
                Some(shown) if shown.is_empty() => return Filtered::Nothing,
                shown => shown,
            },
            Filter::Name(prefix) => value.as_text().map(|name| {
                match name.strip_prefix(&**prefix).unwrap_or(name) {
                    // RESP2's null, which every client takes in RESP3 too.
                    [] => encode::NULL.to_vec(),
                    name => encode::bulk(name),
                }
            }),
            Filter::NameFields(prefix) => {
                let whole = value.as_text();
                whole.map(|text| encode::bulk(&without_prefix(text, prefix)))
            }
        };
        filtered.map_or_else(refused, Filtered::Reply)
    }
}

fn begins(text: &Value<'_>, prefix: &[u8]) -> bool {
    text.as_text().is_some_and(|text| text.starts_with(prefix))
}

/// An array without the elements that are to be hidden, the others as they came. None: one of them
/// is not understood.
fn without(array: &[u8], mut hidden: impl FnMut(&Value<'_>) -> Option<bool>) -> Option<Vec<u8>> {
    let end = array.windows(2).position(|pair| pair == b"\r\n")?;
    let line = array.get(..end)?.strip_prefix(b"*")?;
    let (mut kept, mut shown, mut at) = (0, vec![], end + 2);
    for _ in 0..integer(line)? {
        let (element, len) = Value::parse(array.get(at..)?).ok()?;
        if !hidden(&element)? {
            shown.extend_from_slice(&array[at..at + len]);
            kept += 1;
        }
        at += len;
    }
    let mut reply = Vec::with_capacity(shown.len() + 16);
    encode::line(&mut reply, b'*', kept);
    reply.extend(shown);
    Some(reply)
}

/// An array of the keys that do not begin so.
pub(super) fn visible(keys: &[Value<'_>], prefix: &[u8]) -> Vec<u8> {
    let keys: Vec<&[u8]> = keys
        .iter()
        .filter_map(Value::as_text)
        .filter(|key| !key.starts_with(prefix))
        .collect();
    encode::command(&keys)
}

/// `*2`, the cursor, the keys.
fn scan(value: &Value<'_>, prefix: &[u8]) -> Option<Vec<u8>> {
    let [cursor, keys] = value.as_array()? else {
        return None;
    };
    let mut reply = b"*2\r\n".to_vec();
    reply.extend(encode::bulk(cursor.as_text()?));
    reply.extend(visible(keys.as_array()?, prefix));
    Some(reply)
}

/// The lines of `CLIENT LIST` with ` name=<prefix>rest` as ` name=rest`. Names hold no blank, and
/// only the field of the name begins so.
fn without_prefix(text: &[u8], prefix: &[u8]) -> Vec<u8> {
    let field = [b" name=".as_slice(), prefix].concat();
    let mut kept = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(&field) {
            kept.extend(b" name=");
            at += field.len();
        } else {
            kept.push(rest[0]);
            at += 1;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::{Filter, Filtered};

    fn filtered(filter: fn(Box<[u8]>) -> Filter, reply: &str) -> Option<String> {
        match filter((*b"rf:").into()).apply(reply.as_bytes()) {
            Filtered::Reply(reply) => Some(String::from_utf8(reply).unwrap()),
            Filtered::Again | Filtered::Nothing => None,
        }
    }

    #[test]
    fn the_proxys_keys_are_not_listed() {
        let keys = filtered(Filter::Keys, "*3\r\n$1\r\na\r\n$4\r\nrf:x\r\n$3\r\nrf:\r\n");
        assert_eq!(keys.as_deref(), Some("*1\r\n$1\r\na\r\n"));
        let scan = filtered(
            Filter::Scan,
            "*2\r\n$2\r\n17\r\n*2\r\n$4\r\nrf:x\r\n$2\r\nrf\r\n",
        );
        assert_eq!(
            scan.as_deref(),
            Some("*2\r\n$2\r\n17\r\n*1\r\n$2\r\nrf\r\n")
        );
        assert_eq!(filtered(Filter::RandomKey, "$4\r\nrf:x\r\n"), None);
        let seen = filtered(Filter::RandomKey, "$1\r\na\r\n");
        assert_eq!(seen.as_deref(), Some("$1\r\na\r\n"));
    }

    #[test]
    fn the_proxys_part_of_a_name_is_not_shown() {
        let name = |reply| filtered(Filter::Name, reply);
        assert_eq!(name("$6\r\nrf:app\r\n").as_deref(), Some("$3\r\napp\r\n"));
        assert_eq!(name("$3\r\nrf:\r\n").as_deref(), Some("$-1\r\n"));
        assert_eq!(name("_\r\n").as_deref(), Some("_\r\n"));
        let list = "txt:id=1 name=rf:a db=0\nid=2 name=rf: x=1";
        let shown = "id=1 name=a db=0\nid=2 name= x=1";
        assert_eq!(
            filtered(
                Filter::NameFields,
                &format!("={}\r\n{list}\r\n", list.len())
            ),
            Some(format!("${}\r\n{shown}\r\n", shown.len()))
        );
    }

    #[test]
    fn entries_about_the_proxys_keys_are_left_out_and_the_others_stay_as_they_are() {
        let entry = |id: u32, key: &str| {
            let len = key.len();
            format!(
                "*6\r\n:{id}\r\n:1700000000\r\n:12\r\n\
                 *2\r\n$3\r\nGET\r\n${len}\r\n{key}\r\n$1\r\na\r\n$0\r\n\r\n"
            )
        };
        let log = format!(
            "*3\r\n{}{}{}",
            entry(3, "x"),
            entry(2, "rf:y"),
            entry(1, "y")
        );
        let shown = format!("*2\r\n{}{}", entry(3, "x"), entry(1, "y"));
        assert_eq!(filtered(Filter::SlowLog, &log), Some(shown));
        let denied = |key: &str| format!("%2\r\n+object\r\n+{key}\r\n+count\r\n:1\r\n");
        let log = format!("*2\r\n{}{}", denied("rf:x"), denied("x"));
        let shown = format!("*1\r\n{}", denied("x"));
        assert_eq!(filtered(Filter::AclLog, &log), Some(shown));
        let odd = filtered(Filter::SlowLog, "*1\r\n:1\r\n").unwrap();
        assert!(odd.starts_with("-FENCEUNCLASS"), "{odd}");
    }

    #[test]
    fn an_error_passes_and_what_is_not_understood_does_not() {
        let reply = "-NOPERM no\r\n";
        assert_eq!(filtered(Filter::Keys, reply).as_deref(), Some(reply));
        for odd in [":1\r\n", "*1\r\n", ""] {
            let shown = filtered(Filter::Scan, odd).unwrap();
            assert!(shown.starts_with("-FENCEUNCLASS"), "{shown}");
        }
    }
}
