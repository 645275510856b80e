//! The fencing token: a positive integer below 2^63 that grows with every grant of a lock.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A fencing token. Positive and below 2^63, so that it fits a signed column or revision anywhere.
///
/// In JSON it travels as a string: JavaScript loses integers above 2^53.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The lowest token.
    pub const MIN: Token = Token(NonZeroU64::MIN);
    /// The highest token, 2^63 - 1.
    pub const MAX: Token = Token(NonZeroU64::new(i64::MAX as u64).unwrap());

    /// The token of this value; `None` for 0 and for 2^63 and above.
    pub const fn new(value: u64) -> Option<Token> {
        if value > i64::MAX as u64 {
            return None;
        }
        match NonZeroU64::new(value) {
            Some(value) => Some(Token(value)),
            None => None,
        }
    }

    /// The value.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

/// Text or a number that is not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a fencing token: `{value}` (a positive integer below 2^63 is one)")]
pub struct InvalidToken {
    /// What was given, cut to 64 characters.
    pub value: String,
}

impl FromStr for Token {
    type Err = InvalidToken;

    /// Parses decimal digits only: no sign, no space, no leading zero.
    fn from_str(text: &str) -> Result<Token, InvalidToken> {
        let invalid = || InvalidToken {
            value: text.chars().take(64).collect(),
        };
        let plain = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
        if !plain {
            return Err(invalid());
        }
        text.parse::<u64>()
            .ok()
            .and_then(Token::new)
            .ok_or_else(invalid)
    }
}

impl TryFrom<u64> for Token {
    type Error = InvalidToken;

    fn try_from(value: u64) -> Result<Token, InvalidToken> {
        Token::new(value).ok_or_else(|| InvalidToken {
            value: value.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_one_to_two_to_the_63_less_one() {
        assert_eq!(Token::new(0), None);
        assert_eq!(Token::new(1), Some(Token::MIN));
        assert_eq!(Token::new(i64::MAX as u64), Some(Token::MAX));
        assert_eq!(Token::new(i64::MAX as u64 + 1), None);
    }

    #[test]
    fn text_is_plain_digits_only() {
        assert_eq!("42".parse(), Ok(Token::new(42).unwrap()));
        for bad in [
            "",
            "0",
            "042",
            "+1",
            "-1",
            " 1",
            "1 ",
            "1e3",
            "9223372036854775808",
            "x",
        ] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?} was taken");
        }
    }
}
