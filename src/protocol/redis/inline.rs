//! The arguments of an inline command, by Redis's rules of quoting (`sdssplitargs`).
//!
//! Blanks part arguments. `"..."` knows `\n`, `\r`, `\t`, `\b`, `\a`, `\xHH` and takes any other
//! byte after `\` as it is; `'...'` knows `\'` alone. Quotes may open inside an argument; after
//! they close it must end.

use super::args::Span;
use super::request::ProtocolError;

/// Splits a line, which has no line end and no NUL. The arguments' bytes go to `unquoted`.
pub(super) fn split(
    line: &[u8],
    unquoted: &mut Vec<u8>,
    spans: &mut Vec<Span>,
) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        rest = skip_blanks(rest);
        if rest.is_empty() {
            return Ok(());
        }
        let start = unquoted.len();
        rest = argument(rest, unquoted)?;
        spans.push(Span::of(start, unquoted.len() - start));
    }
}

fn skip_blanks(line: &[u8]) -> &[u8] {
    let first = line.iter().position(|byte| !is_blank(*byte));
    &line[first.unwrap_or(line.len())..]
}

/// Blanks of C's `isspace`, which is what Redis skips before an argument.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Reads one argument and returns what follows it.
fn argument<'l>(line: &'l [u8], unquoted: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        match byte {
            // Vertical tab and form feed end no argument.
            b' ' | b'\n' | b'\r' | b'\t' => break,
            b'"' | b'\'' => {
                let rest = quoted(&line[at + 1..], byte, unquoted)?;
                return match rest.first() {
                    Some(&next) if !is_blank(next) => Err(ProtocolError::Quotes),
                    _ => Ok(rest),
                };
            }
            byte => unquoted.push(byte),
        }
        at += 1;
    }
    Ok(&line[at..])
}

/// Reads up to the closing quote and returns what follows it.
fn quoted<'l>(
    line: &'l [u8],
    quote: u8,
    unquoted: &mut Vec<u8>,
) -> Result<&'l [u8], ProtocolError> {
    let mut rest = line;
    loop {
        let (byte, after) = match (quote, rest) {
            (_, []) => return Err(ProtocolError::Quotes),
            (b'"', [b'\\', b'x', high, low, after @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (hex(*high) << 4 | hex(*low), after)
            }
            (b'"', [b'\\', escaped, after @ ..]) => (unescape(*escaped), after),
            (b'\'', [b'\\', b'\'', after @ ..]) => (b'\'', after),
            (_, [byte, after @ ..]) if *byte == quote => return Ok(after),
            (_, [byte, after @ ..]) => (*byte, after),
        };
        unquoted.push(byte);
        rest = after;
    }
}

fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    fn parts(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (mut unquoted, mut spans) = (vec![], vec![]);
        split(line, &mut unquoted, &mut spans).ok()?;
        let part =
            |span: &super::Span| unquoted[span.start as usize..][..span.len as usize].to_vec();
        Some(spans.iter().map(part).collect())
    }

    // What Redis 7.0 answered to PING with these.
    #[test]
    fn quotes_are_read_as_redis_reads_them() {
        let cases: [(&[u8], &[&[u8]]); 10] = [
            (b"", &[]),
            (b" \t\x0b\x0c ", &[]),
            (b"  PING  a\tb ", &[b"PING", b"a", b"b"]),
            (b"PING \"\\x41\\n\\q\"", &[b"PING", b"A\nq"]),
            (b"PING 'a\\'b'", &[b"PING", b"a'b"]),
            (b"PING 'a\\nb'", &[b"PING", b"a\\nb"]),
            (b"PING a\"b c\"", &[b"PING", b"ab c"]),
            (b"PING \"\\x4\"", &[b"PING", b"x4"]),
            (b"PING \xff\x0b\x0cx", &[b"PING", b"\xff\x0b\x0cx"]),
            (b"\"\" a", &[b"", b"a"]),
        ];
        for (line, expected) in cases {
            let expected: Vec<Vec<u8>> = expected.iter().map(|part| part.to_vec()).collect();
            assert_eq!(parts(line), Some(expected), "{line:?}");
        }
    }

    #[test]
    fn quotes_that_do_not_close_or_end_no_argument_are_refused() {
        let cases: [&[u8]; 6] = [
            b"a \"b",
            b"a 'b",
            b"\"a\"b",
            b"'a'b",
            b"\"a\\\"",
            b"\"a\"\"b\"",
        ];
        for line in cases {
            assert_eq!(parts(line), None, "{line:?}");
        }
    }
}
