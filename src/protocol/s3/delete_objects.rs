//! The body of DeleteObjects: `<Delete><Object><Key>..</Key></Object>..</Delete>`.
//!
//! The keys found here are the keys that the backend deletes, or the body is refused: whatever two
//! XML readers could take differently (CDATA, comments within, attributes, document types, unknown
//! elements, white space around a key) is not read at all.

use quick_xml::Reader;
use quick_xml::events::{BytesRef, BytesStart, Event};

/// Most keys in one request (Amazon S3 API Reference, DeleteObjects).
pub const KEYS_MAX: usize = 1000;

/// Where in the document the reader is.
enum Place {
    Before,
    Delete,
    Object {
        key: Option<String>,
    },
    Key(String),
    /// An element of an object that plays no part, with the object's key so far.
    Aside {
        key: Option<String>,
    },
    Quiet,
    After,
}

/// The keys that the body names, in order.
pub(super) fn keys(body: &[u8]) -> Result<Vec<String>, &'static str> {
    let text = std::str::from_utf8(body).map_err(|_| "it is not UTF-8")?;
    let mut reader = Reader::from_str(text);
    let mut keys = vec![];
    let mut place = Place::Before;
    let mut begun = false;
    loop {
        let event = reader.read_event().map_err(|_| "it is not well-formed")?;
        place = match (place, event) {
            (Place::After, Event::Eof) if keys.is_empty() => return Err("it names no key"),
            (Place::After, Event::Eof) => return Ok(keys),
            (Place::Before, Event::Decl(decl)) if !begun => {
                let encoding = decl
                    .encoding()
                    .transpose()
                    .map_err(|_| "it is not well-formed")?;
                if encoding.is_some_and(|name| !name.eq_ignore_ascii_case("utf-8")) {
                    return Err("its encoding is not UTF-8");
                }
                Place::Before
            }
            (place, Event::Start(start)) => enter(place, &start)?,
            // `<Quiet/>` says nothing of keys; no other element may be empty.
            (Place::Delete, Event::Empty(start)) if is(&start, "Quiet") => Place::Delete,
            (place, Event::End(_)) => leave(place, &mut keys)?,
            (Place::Key(mut key), Event::Text(part)) => {
                key.push_str(&part.into_inner());
                Place::Key(key)
            }
            (Place::Key(mut key), Event::GeneralRef(reference)) => {
                key.push(resolve(&reference)?);
                Place::Key(key)
            }
            (
                place @ (Place::Aside { .. } | Place::Quiet),
                Event::Text(_) | Event::GeneralRef(_),
            ) => place,
            (place, Event::Text(space)) if space.trim_ascii().is_empty() => place,
            _ => return Err("it holds what DeleteObjects does not have"),
        };
        begun = true;
    }
}

fn is(start: &BytesStart<'_>, name: &str) -> bool {
    start.name().as_ref() == name && start.attributes_raw().trim().is_empty()
}

fn enter(place: Place, start: &BytesStart<'_>) -> Result<Place, &'static str> {
    match place {
        Place::Before if start.name().as_ref() == "Delete" => {
            // Only the namespace, and only as the default one.
            for attribute in start.attributes() {
                let attribute = attribute.map_err(|_| "it is not well-formed")?;
                if attribute.key.as_ref() != "xmlns" {
                    return Err("it holds an attribute that DeleteObjects does not have");
                }
            }
            Ok(Place::Delete)
        }
        Place::Delete if is(start, "Object") => Ok(Place::Object { key: None }),
        Place::Delete if is(start, "Quiet") => Ok(Place::Quiet),
        Place::Object { key: None } if is(start, "Key") => Ok(Place::Key(String::new())),
        Place::Object { key }
            if ["VersionId", "ETag", "LastModifiedTime", "Size"]
                .iter()
                .any(|name| is(start, name)) =>
        {
            Ok(Place::Aside { key })
        }
        _ => Err("it holds an element that DeleteObjects does not have there"),
    }
}

fn leave(place: Place, keys: &mut Vec<String>) -> Result<Place, &'static str> {
    match place {
        Place::Delete => Ok(Place::After),
        Place::Quiet => Ok(Place::Delete),
        Place::Aside { key } => Ok(Place::Object { key }),
        Place::Key(key) if key.is_empty() || key.trim() != key => {
            Err("it holds a key that is empty or has white space around it")
        }
        Place::Key(key) => Ok(Place::Object { key: Some(key) }),
        Place::Object { key: None } => Err("it holds an object without a key"),
        Place::Object { .. } if keys.len() == KEYS_MAX => Err("it names more than 1000 keys"),
        Place::Object { key: Some(key) } => {
            keys.push(key);
            Ok(Place::Delete)
        }
        Place::Before | Place::After => Err("it is not well-formed"),
    }
}

/// A character by number, or one of XML's five names (XML 1.0, 4.6).
fn resolve(reference: &BytesRef<'_>) -> Result<char, &'static str> {
    let number = reference
        .resolve_char_ref()
        .map_err(|_| "it is not well-formed")?;
    match (number, reference.as_ref()) {
        (Some(char), _) => Ok(char),
        (None, "amp") => Ok('&'),
        (None, "lt") => Ok('<'),
        (None, "gt") => Ok('>'),
        (None, "quot") => Ok('"'),
        (None, "apos") => Ok('\''),
        _ => Err("it holds an entity that XML does not define"),
    }
}

#[cfg(test)]
mod tests {
    use super::{KEYS_MAX, keys};

    fn objects(inner: &str) -> String {
        format!("<Delete>{inner}</Delete>")
    }

    #[test]
    fn the_keys_of_a_body_are_found() {
        let body = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
            <Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n <Quiet>true</Quiet>\n\
            <Object><Key>a/b &amp; &#x63;&lt;</Key><VersionId>1&amp;</VersionId></Object>\n\
            <Object><ETag>x</ETag><Key>c</Key></Object><Quiet/></Delete>\n";
        assert_eq!(
            keys(body.as_bytes()),
            Ok(vec!["a/b & c<".to_owned(), "c".to_owned()])
        );
        let most = objects(&"<Object><Key>k</Key></Object>".repeat(KEYS_MAX));
        assert_eq!(keys(most.as_bytes()).unwrap().len(), KEYS_MAX);
    }

    #[test]
    fn what_two_readers_could_take_differently_is_refused() {
        let many = "<Object><Key>k</Key></Object>".repeat(KEYS_MAX + 1);
        for inner in [
            "",
            "<Object></Object>",
            "<Object/>",
            "<Object><Key></Key></Object>",
            "<Object><Key/></Object>",
            "<Object><Key> a</Key></Object>",
            "<Object><Key>a</Key><Key>b</Key></Object>",
            "<Object><Key>a<!-- -->b</Key></Object>",
            "<Object><Key><![CDATA[a]]></Key></Object>",
            "<Object><Key>a<b/></Key></Object>",
            "<Object><Key>&unknown;</Key></Object>",
            "<Object><Key>&#0;</Key></Object>",
            "<Object><Key x='y'>a</Key></Object>",
            "<Object><Other>a</Other><Key>a</Key></Object>",
            "<o:Object><o:Key>a</o:Key></o:Object>",
            "<Key>a</Key>",
            "text",
            "<Object><Key>a</Key></Object><Object><Key>a</Object>",
            &many,
        ] {
            assert!(keys(objects(inner).as_bytes()).is_err(), "{inner}");
        }
        let sound = objects("<Object><Key>a</Key></Object>");
        assert!(keys(sound.as_bytes()).is_ok());
        for body in [
            format!("<!DOCTYPE Delete>{sound}"),
            format!("{sound}{sound}"),
            format!("{sound}x"),
            format!("<?xml version='1.0' encoding='utf-16'?>{sound}"),
            sound[..sound.len() - 3].to_owned(),
            format!("5;chunk-signature=a\r\n{sound}"),
            String::new(),
        ] {
            assert!(keys(body.as_bytes()).is_err(), "{body}");
        }
        assert!(keys(b"\xff").is_err());
    }
}
