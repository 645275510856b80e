//! Integers as Redis itself reads them.

/// Reads a decimal integer as Redis's `string2ll` does: digits with an optional `-`; no `+`, no
/// space, no leading zero. What the server reads as another number must not pass here.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    // At most 19 digits: no overflow of 64 bits without a sign.
    let mut value: u64 = 0;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u64::from(byte - b'0');
    }
    if negative {
        0i64.checked_sub_unsigned(value)
    } else {
        i64::try_from(value).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn only_what_redis_takes_for_an_integer_is_one() {
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"-12"), Some(-12));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        let bad: [&[u8]; 11] = [
            b"",
            b"-",
            b"-0",
            b"+1",
            b"01",
            b" 1",
            b"1 ",
            b"1a",
            b"9223372036854775808",
            b"-9223372036854775809",
            b"18446744073709551616",
        ];
        for text in bad {
            assert_eq!(integer(text), None, "{text:?}");
        }
    }
}
