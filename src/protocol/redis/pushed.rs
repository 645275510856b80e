//! What the server sends by itself and would tell the names of keys by:
//!
//! | what | where the key stands |
//! |---|---|
//! | `message`, `pmessage` on `__keyspace@<database>__:<key>` | in the channel |
//! | the same on `__keyevent@<database>__:<event>` | in the payload |
//! | `invalidate`, and `message` on `__redis__:invalidate` | in the list of keys |
//!
//! (redis.io/docs: "Redis keyspace notifications", "Client-side caching reference".) Channels of
//! other events of the server's own, which begin alike, are hidden where either of their texts holds
//! the beginning of such a key.
//!
//! What is left to the server: a message within the reply to an EXEC. It tells what the same client
//! has done, and commands of clients do not touch these keys.

use super::encode;
use super::filter::visible;
use super::number::integer;
use super::value::Value;

/// The channel of invalidations for clients of RESP2.
const INVALIDATIONS: &[u8] = b"__redis__:invalidate";
/// What the channels of the server's own events begin with.
const EVENTS: &[u8] = b"__";

/// What a client gets of a whole message: empty where it is about such keys alone. None: it is not
/// understood.
pub(super) fn without_keys(message: &Value<'_>, bytes: &[u8], prefix: &[u8]) -> Option<Vec<u8>> {
    let parts = message.as_array()?;
    let word = parts.first()?.as_text()?;
    let (channel, payload) = match (word, parts) {
        (b"message", [_, channel, payload]) => (channel.as_text()?, payload),
        (b"pmessage", [_, _, channel, payload]) => (channel.as_text()?, payload),
        (b"invalidate", [_, keys]) => (INVALIDATIONS, keys),
        _ => return None,
    };
    if channel == INVALIDATIONS
        && let Value::Array(keys) = payload
    {
        let begins = |key: &Value<'_>| key.as_text().is_some_and(|key| key.starts_with(prefix));
        return Some(match keys.iter().filter(|key| begins(key)).count() {
            0 => bytes.to_vec(),
            hidden if hidden == keys.len() => vec![],
            _ => with_last(bytes, parts, &visible(keys, prefix))?,
        });
    }
    let hidden = match event(channel) {
        Event::None => false,
        Event::OfKey(key) => key.starts_with(prefix),
        Event::OfPayload => payload.as_text()?.starts_with(prefix),
        Event::Unknown => {
            let holds = |text: &[u8]| text.windows(prefix.len()).any(|part| part == prefix);
            holds(channel) || payload.as_text().is_some_and(holds)
        }
    };
    Some(if hidden { vec![] } else { bytes.to_vec() })
}

/// The message with another last part.
fn with_last(bytes: &[u8], parts: &[Value<'_>], last: &[u8]) -> Option<Vec<u8>> {
    let mut message = vec![];
    encode::line(&mut message, *bytes.first()?, parts.len());
    let (_, first) = parts.split_last()?;
    for part in first {
        message.extend(encode::bulk(part.as_text()?));
    }
    message.extend_from_slice(last);
    Some(message)
}

/// Whose name a channel of the server's own tells.
enum Event<'a> {
    /// It is a client's channel.
    None,
    OfKey(&'a [u8]),
    OfPayload,
    Unknown,
}

fn event(channel: &[u8]) -> Event<'_> {
    if let Some(rest) = channel.strip_prefix(b"__keyspace@") {
        let at = rest.windows(3).position(|mark| mark == b"__:");
        return at.map_or(Event::None, |at| Event::OfKey(&rest[at + 3..]));
    }
    match channel {
        channel if channel.starts_with(b"__keyevent@") => Event::OfPayload,
        channel if channel.starts_with(EVENTS) => Event::Unknown,
        _ => Event::None,
    }
}

/// Whether the beginning of a message shows that it is on a client's channel, whatever follows.
pub(super) fn tells_no_key(beginning: &[u8]) -> bool {
    let mut rest = beginning;
    let Some(word) = line(&mut rest).and_then(|_| text(&mut rest)) else {
        return false;
    };
    let channel = match word {
        b"message" => text(&mut rest),
        b"pmessage" => text(&mut rest).and_then(|_| text(&mut rest)),
        _ => None,
    };
    channel.is_some_and(|channel| !channel.starts_with(EVENTS))
}

/// The line that begins here, without its end.
fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, after) = rest.split_at(end);
    *rest = &after[2..];
    Some(line)
}

/// The bulk string that begins here, if it is there whole.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = integer(line(rest)?.strip_prefix(b"$")?)?;
    let (text, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = after.strip_prefix(b"\r\n")?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::tells_no_key;
    use crate::protocol::redis::filter::{Filter, Filtered};

    fn message(marker: char, texts: &[&str]) -> String {
        let texts: Vec<String> = texts
            .iter()
            .map(|text| format!("${}\r\n{text}\r\n", text.len()))
            .collect();
        format!("{marker}{}\r\n{}", texts.len(), texts.concat())
    }

    fn shown(message: &str) -> Option<String> {
        match Filter::Pushed((*b"rf:").into()).apply(message.as_bytes()) {
            Filtered::Reply(shown) => Some(String::from_utf8(shown).unwrap()),
            Filtered::Nothing => None,
            Filtered::Again => panic!("nothing is asked again"),
        }
    }

    #[test]
    fn events_of_such_keys_are_not_told_in_either_version() {
        for marker in ['*', '>'] {
            for hidden in [
                &["message", "__keyspace@15__:rf:x", "hset"][..],
                &["message", "__keyevent@15__:hset", "rf:x"],
                &["pmessage", "*", "__keyspace@15__:rf:x", "hset"],
                &["pmessage", "__key*", "__keyevent@0__:del", "rf:"],
                &["message", "__subkeyevent@15__:hset", "4:rf:x|1:f"],
            ] {
                assert_eq!(shown(&message(marker, hidden)), None, "{hidden:?}");
            }
            for told in [
                &["message", "__keyspace@15__:job:rf:x", "hset"][..],
                &["message", "__keyevent@15__:hset", "job:rf:x"],
                &["message", "rf:x", "rf:y"],
                &["pmessage", "*", "news", "__keyspace@15__:rf:x"],
                &["message", "__keyspace@", "rf:x"],
            ] {
                let told = message(marker, told);
                assert_eq!(shown(&told), Some(told));
            }
        }
    }

    #[test]
    fn such_keys_are_taken_out_of_invalidations() {
        let keys = |keys: &[&str]| message('*', keys);
        let push = |list: &str| format!(">2\r\n$10\r\ninvalidate\r\n{list}");
        let redirected =
            |list: &str| format!("*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n{list}");
        for around in [&push as &dyn Fn(&str) -> String, &redirected] {
            assert_eq!(shown(&around(&keys(&["rf:x"]))), None);
            assert_eq!(
                shown(&around(&keys(&["a", "rf:x", "b"]))),
                Some(around(&keys(&["a", "b"])))
            );
            for whole in [around(&keys(&["a", "arf:"])), around("*-1\r\n")] {
                assert_eq!(shown(&whole), Some(whole));
            }
        }
    }

    #[test]
    fn a_long_message_on_a_clients_channel_is_not_held() {
        let news = message('>', &["pmessage", "n*", "news", "long"]);
        let event = message('>', &["message", "__keyevent@15__:hset", "rf:x"]);
        let whole = news.find("long").unwrap();
        assert!(tells_no_key(&news.as_bytes()[..whole]));
        for cut in 0..whole - 6 {
            assert!(!tells_no_key(&news.as_bytes()[..cut]), "{cut}");
        }
        for cut in 0..event.len() {
            assert!(!tells_no_key(&event.as_bytes()[..cut]), "{cut}");
        }
    }

    #[test]
    fn what_is_not_understood_is_not_told() {
        let odd = shown(&message('>', &["message", "rf:x"])).unwrap();
        assert!(odd.starts_with("-FENCEUNCLASS"), "{odd}");
    }
}
