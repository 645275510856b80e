//! The one thing that a pass-through proxy must know of a signature: which headers it covers.
//!
//! The ticket's header is taken off before the request travels on. A signature that covers it would
//! then be wrong at the backend, which answers with an error that explains nothing; so it is
//! refused here with a hint. What the backend checks of the signature is left to the backend.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use crate::protocol::head::TICKET_HEADER;
use crate::protocol::refusal::Refusal;

/// Refuses a request whose signature (AWS Signature Version 4 or 4A, in the header or in the query)
/// covers the ticket's header.
pub(super) fn check_signed_headers(
    authorization: Option<&[u8]>,
    query: &[u8],
) -> Result<(), Refusal> {
    let in_header = authorization.is_some_and(header_signs_ticket);
    if in_header || query_signs_ticket(query) {
        return Err(Refusal::invalid(
            "the header fencing-token is among the signed headers: the proxy takes it off, which \
             would break the signature; add it after signing",
        ));
    }
    Ok(())
}

/// `AWS4-HMAC-SHA256 Credential=..., SignedHeaders=a;b;c, Signature=...`
fn header_signs_ticket(value: &[u8]) -> bool {
    let scheme = value
        .get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"AWS4-"));
    // The scheme's name is parted from the first parameter by a space.
    let parameters = value.split(|byte| matches!(byte, b',' | b' ' | b'\t'));
    scheme && parameters.filter_map(signed_headers).any(names_ticket)
}

fn signed_headers(parameter: &[u8]) -> Option<&[u8]> {
    let at = parameter.iter().position(|&byte| byte == b'=')?;
    parameter[..at]
        .eq_ignore_ascii_case(b"SignedHeaders")
        .then(|| &parameter[at + 1..])
}

fn query_signs_ticket(query: &[u8]) -> bool {
    query.split(|&byte| byte == b'&').any(|pair| {
        let at = pair
            .iter()
            .position(|&byte| byte == b'=')
            .unwrap_or(pair.len());
        let name: Cow<'_, [u8]> = percent_decode(&pair[..at]).into();
        name.eq_ignore_ascii_case(b"X-Amz-SignedHeaders") && {
            let value: Cow<'_, [u8]> = percent_decode(&pair[at..]).into();
            names_ticket(value.strip_prefix(b"=").unwrap_or(&value))
        }
    })
}

fn names_ticket(list: &[u8]) -> bool {
    list.split(|&byte| byte == b';').any(|name| {
        name.trim_ascii()
            .eq_ignore_ascii_case(TICKET_HEADER.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::check_signed_headers;

    fn in_header(value: &str) -> bool {
        check_signed_headers(Some(value.as_bytes()), b"").is_ok()
    }

    #[test]
    fn a_signature_over_other_headers_passes() {
        assert!(check_signed_headers(None, b"").is_ok());
        assert!(in_header(
            "AWS4-HMAC-SHA256 Credential=A/b, SignedHeaders=host;x-amz-date, Signature=f"
        ));
        assert!(in_header("Bearer SignedHeaders=fencing-token"));
        assert!(in_header("AWS AKID:SignedHeaders=fencing-token"));
        assert!(check_signed_headers(None, b"X-Amz-SignedHeaders=host&k=fencing-token").is_ok());
    }

    #[test]
    fn a_signature_over_the_ticket_is_refused_with_a_hint() {
        for value in [
            "AWS4-HMAC-SHA256 Credential=A, SignedHeaders=fencing-token;host, Signature=f",
            "AWS4-HMAC-SHA256 Credential=A,SignedHeaders=host;Fencing-Token,Signature=f",
            "AWS4-ECDSA-P256-SHA256 SignedHeaders=a;fencing-token;z",
        ] {
            assert!(!in_header(value), "{value}");
        }
        for query in [
            "X-Amz-SignedHeaders=fencing-token%3Bhost",
            "a&x-amz-signedheaders=host;fencing-token",
        ] {
            let refusal = check_signed_headers(None, query.as_bytes()).unwrap_err();
            assert!(refusal.detail.contains("add it after signing"), "{query}");
        }
    }
}
