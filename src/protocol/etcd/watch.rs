//! Watch responses without the events of fence keys; and the watch over the floors of a stream.
//!
//! Progress and revisions stay as they are. A response in which nothing is left is not sent on: to
//! a client it would look like a progress report that nobody asked for. Where the client takes
//! responses in fragments it is, since it may be the piece that ends one.

use super::fence::{FenceKeys, Seen};
use super::wire::{self, Malformed};

/// What becomes of a response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filtered {
    /// It stays.
    Same,
    /// This takes its place.
    Edited(Vec<u8>),
    /// It is not sent on.
    Nothing,
}

/// `WatchResponse.events`.
const EVENTS: u32 = 11;

/// Takes the events of fence keys out of a `WatchResponse`.
pub fn filter(message: &[u8], keys: &FenceKeys, fragments: bool) -> Result<Filtered, Malformed> {
    let (mut hidden, mut left) = (false, false);
    for field in wire::fields(message) {
        let field = field?;
        if field.number == EVENTS {
            match is_hidden(field.value.bytes(), keys)? {
                true => hidden = true,
                false => left = true,
            }
        }
    }
    if !hidden {
        return Ok(Filtered::Same);
    }
    if !left && !fragments {
        return Ok(Filtered::Nothing);
    }
    let mut edited = Vec::with_capacity(message.len());
    for field in wire::fields(message) {
        let field = field?;
        if field.number != EVENTS || !is_hidden(field.value.bytes(), keys)? {
            edited.extend_from_slice(field.raw);
        }
    }
    Ok(Filtered::Edited(edited))
}

fn is_hidden(event: &[u8], keys: &FenceKeys) -> Result<bool, Malformed> {
    // `Event.kv`, `KeyValue.key`.
    let kv = wire::bytes_of(event, 2)?;
    Ok(keys.holds(wire::bytes_of(kv, 1)?))
}

/// A `WatchRequest` for one key.
pub fn create(key: &[u8]) -> Vec<u8> {
    let (mut create, mut request) = (vec![], vec![]);
    wire::put_bytes(&mut create, 1, key);
    wire::put_bytes(&mut request, 1, &create);
    request
}

/// What a `WatchResponse` says about floors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// One more of them is watched.
    Created,
    /// It is not watched any more, for this reason.
    Cancelled(String),
    /// What they became, by their keys, in order; perhaps nothing.
    Floors(Vec<(Vec<u8>, Seen)>),
}

/// Reads a `WatchResponse` about floors.
pub fn told(message: &[u8], keys: &FenceKeys) -> Result<Told, Malformed> {
    if wire::number_of(message, 4)? != 0 {
        let reason = wire::bytes_of(message, 6)?;
        return Ok(Told::Cancelled(
            String::from_utf8_lossy(reason).into_owned(),
        ));
    }
    if wire::number_of(message, 3)? != 0 {
        return Ok(Told::Created);
    }
    let mut floors = vec![];
    for field in wire::fields(message) {
        let field = field?;
        if field.number != EVENTS || !is_hidden(field.value.bytes(), keys)? {
            continue;
        }
        let event = field.value.bytes();
        let kv = wire::bytes_of(event, 2)?;
        // `EventType`: PUT is 0, DELETE 1.
        let seen = match wire::number_of(event, 1)? {
            0 => Seen::of_value(wire::bytes_of(kv, 5)?),
            _ => Seen::Missing,
        };
        floors.push((wire::bytes_of(kv, 1)?.to_vec(), seen));
    }
    Ok(Told::Floors(floors))
}

/// Whether a `WatchRequest` asks for responses in fragments.
pub fn asks_for_fragments(message: &[u8]) -> Result<bool, Malformed> {
    // `create_request`, `WatchCreateRequest.fragment`.
    let create = wire::bytes_of(message, 1)?;
    Ok(wire::number_of(create, 8)? != 0)
}

#[cfg(test)]
mod tests {
    use super::{Filtered, filter};
    use crate::protocol::etcd::fence::FenceKeys;
    use crate::protocol::etcd::wire::{fields, put_bytes, put_number};

    fn response(keys: &[&str]) -> Vec<u8> {
        let mut message = vec![];
        put_number(&mut message, 2, 7);
        for key in keys {
            let (mut kv, mut event) = (vec![], vec![]);
            put_bytes(&mut kv, 1, key.as_bytes());
            put_bytes(&mut event, 2, &kv);
            put_bytes(&mut message, 11, &event);
        }
        message
    }

    #[test]
    fn events_of_fence_keys_are_left_out() {
        let keys = FenceKeys::default();
        let filter =
            |names: &[&str], fragments| filter(&response(names), &keys, fragments).unwrap();
        assert_eq!(filter(&["a", "b"], false), Filtered::Same);
        assert_eq!(filter(&[], false), Filtered::Same);
        let mixed = filter(&["a", "_ringfence/floor/x"], false);
        assert_eq!(mixed, Filtered::Edited(response(&["a"])));
        assert_eq!(filter(&["_ringfence/floor/x"], false), Filtered::Nothing);
        let piece = filter(&["_ringfence/floor/x"], true);
        assert_eq!(piece, Filtered::Edited(response(&[])));
        assert_eq!(fields(&response(&[])).count(), 1);
    }
}
