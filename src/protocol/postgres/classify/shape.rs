//! The shape of a text: itself without the values in it, so that texts that differ in nothing else
//! are looked up as one.
//!
//! What a value is, is told without the grammar, and only where that is certain: a string between
//! plain quotes, and an integer of few digits that nothing touches. Texts with anything that could
//! mean something else there (backslashes, dollar quotes, comments) have no shape.
//!
//! The grammar takes one such string, or integer, wherever it takes another: where it looks at the
//! value itself (`float(54)`), it fails, and the server fails as well.

/// What a shape begins with, and no text that the grammar takes does.
pub(super) const MARK: char = '\u{1}';
/// Stands for a string. The grammar takes it nowhere outside of quotes.
const STRING: char = '\u{1}';
/// Stands for an integer, likewise.
const INTEGER: char = '\u{2}';
/// Integers up to here are one kind of token, whatever their value (`process_integer_literal`).
const DIGITS_MAX: usize = 9;

/// What a text is looked up by.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// It has no values: the text itself.
    Same,
    /// The text with its values replaced.
    Of(String),
    /// It is not told.
    Unclear,
}

/// What a byte begins, where nothing goes on from before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    /// Nothing that is looked at.
    Nothing,
    /// A name.
    Word,
    Number,
    Quoted,
    /// A quote of dollars, or a parameter.
    Dollar,
    /// A comment, or an operator.
    Comment,
    /// It may mean something else elsewhere, or stands for a value in shapes.
    Unclear,
}

/// By byte: texts are long, and most of their bytes tell nothing.
const BEGINS: [Begins; 256] = {
    let mut table = [Begins::Nothing; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'\'' | b'"' => Begins::Quoted,
            b'0'..=b'9' => Begins::Number,
            b'$' => Begins::Dollar,
            b'-' | b'/' => Begins::Comment,
            b'\\' | 0..=2 => Begins::Unclear,
            byte if is_word(byte) => Begins::Word,
            _ => Begins::Nothing,
        };
        byte += 1;
    }
    table
};

/// The shape of a text whose lexing is certain.
pub(super) fn of(text: &str) -> Shape {
    let bytes = text.as_bytes();
    let mut shape = String::new();
    // From where on it is not copied.
    let mut kept = 0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (end, value) = match BEGINS[usize::from(byte)] {
            Begins::Nothing => (at + 1, None),
            Begins::Word => (end_of_word(bytes, at), None),
            // What goes before or follows may tell the characters of both kinds (UESCAPE).
            Begins::Quoted if bytes[..at].ends_with(b"&") => return Shape::Unclear,
            Begins::Quoted if byte == b'\'' && joins_word(bytes, at) => return Shape::Unclear,
            Begins::Quoted => match end_of_quoted(bytes, at) {
                Some(end) => (end, (byte == b'\'').then_some(STRING)),
                None => return Shape::Unclear,
            },
            Begins::Number => {
                let end = end_of_word(bytes, at);
                let alone = !joins_word(bytes, at) && !bytes[..at].ends_with(b".");
                let plain = bytes[at..end].iter().all(u8::is_ascii_digit);
                let plain = plain && end - at <= DIGITS_MAX && bytes.get(end) != Some(&b'.');
                (end, (alone && plain).then_some(INTEGER))
            }
            Begins::Dollar => match bytes.get(at + 1).is_some_and(u8::is_ascii_digit) {
                true => (end_of_word(bytes, at), None),
                false => return Shape::Unclear,
            },
            Begins::Comment if begins_comment(&bytes[at..]) => return Shape::Unclear,
            Begins::Comment => (at + 1, None),
            Begins::Unclear => return Shape::Unclear,
        };
        if let Some(value) = value {
            if kept == 0 {
                shape.reserve(text.len() + 1);
                shape.push(MARK);
            }
            shape.push_str(&text[kept..at]);
            shape.push(value);
            kept = end;
        }
        at = end;
    }
    match kept {
        0 => Shape::Same,
        _ => {
            shape.push_str(&text[kept..]);
            Shape::Of(shape)
        }
    }
}

/// Whether a byte may stand within a name, a number or a parameter.
const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || !byte.is_ascii()
}

/// By byte, as [`BEGINS`].
const WORD: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_word(byte as u8);
        byte += 1;
    }
    table
};

fn joins_word(bytes: &[u8], at: usize) -> bool {
    bytes[..at].last().is_some_and(|before| is_word(*before))
}

fn end_of_word(bytes: &[u8], at: usize) -> usize {
    let mut words = bytes[at..].iter();
    let length = words.position(|byte| !WORD[usize::from(*byte)]);
    length.map_or(bytes.len(), |length| at + length)
}

fn begins_comment(rest: &[u8]) -> bool {
    rest.starts_with(b"--") || rest.starts_with(b"/*")
}

/// Behind the quote that ends what begins with one. A doubled quote is one within it.
fn end_of_quoted(bytes: &[u8], at: usize) -> Option<usize> {
    let quote = bytes[at];
    let mut from = at + 1;
    loop {
        from += memchr::memchr(quote, &bytes[from..])? + 1;
        if bytes.get(from) != Some(&quote) {
            return Some(from);
        }
        from += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::{INTEGER, STRING, Shape, of};
    use crate::protocol::postgres::classify::cache::is_its_shape;
    use crate::protocol::postgres::classify::{Class, Classified, Statement, classify_text};

    fn shape(text: &str) -> String {
        match of(text) {
            Shape::Same => text.to_owned(),
            Shape::Of(shape) => shape[1..].replace('\u{1}', "S").replace('\u{2}', "I"),
            Shape::Unclear => "?".to_owned(),
        }
    }

    #[test]
    fn values_are_set_aside() {
        for (text, expected) in [
            ("SELECT 1", "SELECT I"),
            ("SELECT a1 FROM t2", "SELECT a1 FROM t2"),
            ("SELECT 'a''b', \"c'1\"\"\" ,2", "SELECT S, \"c'1\"\"\" ,I"),
            (
                "UPDATE t SET a=a+-1234 WHERE b=5;",
                "UPDATE t SET a=a+-I WHERE b=I;",
            ),
            ("VALUES(1,'x'),(2,'y')", "VALUES(I,S),(I,S)"),
            (
                "SELECT 1.5, .5, 5., 1e5, 0x1f, 1_0, 1a",
                "SELECT 1.5, .5, 5., 1e5, 0x1f, 1_0, 1a",
            ),
            ("SELECT 123456789, 1234567890", "SELECT I, 1234567890"),
            ("SELECT $1, $2::int, ä1, 'ä'", "SELECT $1, $2::int, ä1, S"),
            ("SELECT 'a'\n'b'", "SELECT S\nS"),
            ("SELECT '--' - 1 / 2 * 3", "SELECT S - I / I * I"),
        ] {
            assert_eq!(shape(text), expected, "{text}");
        }
    }

    #[test]
    fn what_could_be_something_else_has_no_shape() {
        for text in [
            "SELECT E'a'",
            "SELECT U&'a' UESCAPE '!'",
            "SELECT 1 FROM U&\"a!0061\" UESCAPE '!'",
            "SELECT N'a'",
            "SELECT'a'",
            "SELECT 1 \\ 2",
            "SELECT $$a$$, 1",
            "SELECT $a$1$a$",
            "SELECT 1 -- '",
            "SELECT /* ' */ 1",
            "SELECT 'a",
            "SELECT \"a, 1",
            "SELECT \u{1}",
            "SELECT 1, \u{2}",
        ] {
            assert_eq!(shape(text), "?", "{text}");
        }
    }

    /// Texts of the same shape as this one, with other values in it.
    fn with_values(shape: &str, strings: &[String], integers: &[u32]) -> String {
        let (mut strings, mut integers) = (strings.iter().cycle(), integers.iter().cycle());
        let mut text = String::new();
        for character in shape[1..].chars() {
            match character {
                STRING => {
                    let value = strings.next().unwrap().replace('\'', "''");
                    text += &format!("'{value}'");
                }
                INTEGER => text += &(integers.next().unwrap() % 1_000_000_000).to_string(),
                other => text.push(other),
            }
        }
        text
    }

    fn without_span(classified: Classified) -> Vec<Statement> {
        let statements = classified.statements.into_iter();
        let statements = statements.map(|it| Statement {
            span: 0..0,
            ..Statement::clone(&it)
        });
        statements.collect()
    }

    const STATEMENTS: [&str; 8] = [
        "SELECT @ FROM t, \"T 'x'\" WHERE @ AND @ LIMIT 3",
        "INSERT INTO s.t (a, b) VALUES (@, @), (7, @) ON CONFLICT (a) DO UPDATE SET a = @",
        "UPDATE ONLY t SET a = @, b = @ WHERE c IN (@, @) RETURNING @",
        "DELETE FROM t USING u WHERE @ = @;",
        "WITH w AS (DELETE FROM t WHERE a = @ RETURNING *) SELECT @ FROM w",
        "MERGE INTO t USING u ON @ = @ WHEN MATCHED THEN UPDATE SET a = @",
        "VALUES (@, @), (@, @)",
        "SELECT CASE WHEN @ THEN @ END FROM f(@, @) ORDER BY 1 FETCH FIRST 5 ROWS ONLY FOR UPDATE",
    ];

    const VALUES: [&str; 19] = [
        "1",
        "'x'",
        "-12",
        "1.5",
        "'a'\n'b'",
        "a1",
        "$1",
        "date '2020-01-01'",
        "CAST('5' AS varchar(10))",
        "'t'::regclass",
        "nextval('s')",
        "f(1, 'x')",
        "set_config('a', 'b', true)",
        "interval '1' day",
        "extract(year FROM b)",
        "b #> '{a,1}'",
        "json_value(b, '$.a')",
        "a LIKE 'x' ESCAPE '!'",
        "(SELECT 3 FROM v WHERE d = '4')",
    ];

    proptest! {
        #[test]
        fn texts_of_one_shape_are_the_same(
            statement in select(&STATEMENTS[..]),
            values in vec(select(&VALUES[..]), 8),
            strings in vec("[ -~é\n]{0,12}", 5),
            integers in vec(any::<u32>(), 5),
        ) {
            let mut text = statement.to_owned();
            for value in values {
                text = text.replacen('@', value, 1);
            }
            let Shape::Of(shape) = of(&text) else {
                return Ok(());
            };
            let other = with_values(&shape, &strings, &integers);
            prop_assert_eq!(of(&other), Shape::Of(shape), "{}", other);
            let first = classify_text(&text);
            prop_assert!(!matches!(first.statements[0].class, Class::Unknown(_)), "{}", text);
            if is_its_shape(&first) {
                prop_assert_eq!(without_span(first), without_span(classify_text(&other)));
            }
        }
    }
}
