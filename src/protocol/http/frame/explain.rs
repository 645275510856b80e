//! In words, why a head is none.

use super::{Broken, FIELDS_MAX};

/// Why httparse does not take this.
pub(super) fn explain(error: httparse::Error, head: &[u8]) -> Broken {
    use httparse::Error;
    match error {
        Error::TooManyHeaders => too_many(),
        Error::Version => Broken("the version is not HTTP/1.0 or HTTP/1.1"),
        Error::NewLine => Broken("a line of the head does not end with CR LF"),
        Error::Token => Broken("the first line is not `method target version`"),
        Error::Status => Broken("the status line is malformed"),
        Error::HeaderName => crooked_name(head),
        Error::HeaderValue => Broken("a header's value has a control character"),
    }
}

fn too_many() -> Broken {
    const { assert!(FIELDS_MAX == 128) };
    Broken("the head has more than 128 fields")
}

fn crooked_name(head: &[u8]) -> Broken {
    for line in head.split(|&byte| byte == b'\n').skip(1) {
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Broken("a header is folded over several lines");
        }
        let name = line.split(|&byte| byte == b':').next().unwrap_or(line);
        if matches!(name.last(), Some(b' ' | b'\t')) {
            return Broken("white space stands before a header's colon");
        }
    }
    Broken("a header's name is not a token")
}
