//! Names as the server reads them out of texts that are no SQL: the lists of `search_path`, the
//! relation of `nextval('a.b')`, the names in its protocol. All are cut to what its tables hold.

/// Longest name of the server's, in bytes (`NAMEDATALEN` - 1).
pub const NAME_BYTES_MAX: usize = 63;

/// A name of the protocol: prepared statements and portals are kept under so many of its bytes
/// (`string_hash`, `string_compare`).
pub fn cut_bytes(name: &[u8]) -> &[u8] {
    &name[..name.len().min(NAME_BYTES_MAX)]
}

/// A name in a text: no character of it is cut in two (`truncate_identifier`).
pub fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// The names of a list, as the server's `SplitIdentifierString` splits it; `None` where it would
/// refuse it, or where versions and encodings differ in what they make of it.
pub fn split(text: &str, separator: char) -> Option<Vec<Box<str>>> {
    // White space since PostgreSQL 17, a letter before.
    if text.contains('\x0b') {
        return None;
    }
    let mut names: Vec<Box<str>> = vec![];
    let mut rest = trim(text);
    if rest.is_empty() {
        return Some(names);
    }
    loop {
        let (name, behind) = split_name(rest, separator)?;
        names.push(cut(&name).into());
        let behind = trim(behind);
        if behind.is_empty() {
            return Some(names);
        }
        rest = trim(behind.strip_prefix(separator)?);
    }
}

/// `scanner_isspace`: no more than this, whatever Unicode calls white space.
fn is_space(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\n' | '\r' | '\x0c')
}

fn trim(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// A name, quoted or folded, and what is behind it.
fn split_name(text: &str, separator: char) -> Option<(String, &str)> {
    if !text.starts_with('"') {
        let ends = |char: char| char == separator || is_space(char);
        let end = text.find(ends).unwrap_or(text.len());
        let (name, behind) = text.split_at(end);
        // Encodings of one byte fold other letters too.
        return (!name.is_empty() && name.is_ascii()).then(|| (name.to_ascii_lowercase(), behind));
    }
    let (mut name, mut rest) = (String::new(), &text[1..]);
    loop {
        let (part, behind) = rest.split_once('"')?;
        name.push_str(part);
        // A doubled quote stands for one.
        match behind.strip_prefix('"') {
            Some(behind) => {
                name.push('"');
                rest = behind;
            }
            None => return Some((name, behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{cut, cut_bytes, split};

    fn list(text: &str) -> Option<String> {
        split(text, ',').map(|names| names.join("|"))
    }

    #[test]
    fn a_list_is_split_as_the_server_splits_it() {
        for (text, names) in [
            ("", Some("")),
            (" Public ,\t\"My, One\" ", Some("public|My, One")),
            ("\"a\"\"b\"", Some("a\"b")),
            ("a b", None),
            ("a,", None),
            ("\"a", None),
            // White space for Unicode and not for the server: part of a name, which is no ASCII.
            ("\u{a0}public", None),
            ("\"\u{a0}x\"\u{2003}", None),
            ("\"\u{a0}x\"", Some("\u{a0}x")),
            ("a\x0b,b", None),
        ] {
            assert_eq!(list(text).as_deref(), names, "{text:?}");
        }
    }

    #[test]
    fn names_are_cut_where_the_server_cuts_them() {
        let long = "a".repeat(63);
        assert_eq!(
            list(&format!("{long}b,\"{long}c\"")),
            Some(format!("{long}|{long}"))
        );
        assert_eq!(cut(&format!("{}\u{e9}", "a".repeat(62))), "a".repeat(62));
        let bytes = format!("{}\u{e9}", "a".repeat(62)).into_bytes();
        assert_eq!(cut_bytes(&bytes), &bytes[..63]);
    }
}
