//! Refusals as S3's error document, with the elements FenceCode, Lock, Token, Watermark and Outcome
//! beside S3's own. There is no RequestId: the backend never saw the request.

use quick_xml::escape::escape;

use crate::protocol::refusal::{Code, Refusal, RefusalReply};

/// The reply that tells a refusal; `target` is the request's target as it came.
pub fn refusal_reply(refusal: &Refusal, target: &[u8]) -> RefusalReply {
    let path = target.split(|&byte| byte == b'?').next().unwrap_or(target);
    let resource: String = String::from_utf8_lossy(path)
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    let mut element = |name: &str, text: &str| {
        xml.extend(["<", name, ">", &escape(text), "</", name, ">"]);
    };
    element("Code", s3_code(refusal.code));
    element("Message", &refusal.detail);
    element("Resource", &resource);
    element("FenceCode", refusal.code.as_str());
    if let Some(lock) = &refusal.lock {
        element("Lock", lock.as_str());
    }
    if let Some(token) = refusal.token {
        element("Token", &token.to_string());
    }
    if let Some(watermark) = refusal.watermark {
        element("Watermark", &watermark.to_string());
    }
    element("Outcome", refusal.outcome.as_str());
    xml.push_str("</Error>");
    RefusalReply::new(refusal, "application/xml", xml.into_bytes())
}

/// The code that S3's clients know. They retry SlowDown and InternalError by themselves.
fn s3_code(code: Code) -> &'static str {
    match code {
        Code::Stale => "PreconditionFailed",
        Code::Missing => "PreconditionRequired",
        Code::Invalid => "InvalidRequest",
        Code::Busy => "SlowDown",
        Code::Unclassified => "AccessDenied",
        Code::Unknown => "InternalError",
    }
}

#[cfg(test)]
mod tests {
    use super::refusal_reply;
    use crate::lock_name::LockName;
    use crate::protocol::refusal::Refusal;
    use crate::token::Token;

    #[test]
    fn a_refusal_is_an_s3_error_and_nothing_in_it_breaks_the_document() {
        let lock = LockName::new("a<b>&c").unwrap();
        let refusal = Refusal::stale(lock, Token::MIN, Some(Token::MAX));
        let reply = refusal_reply(&refusal, b"/b/<k>\x01&?uploads");
        assert_eq!(reply.status, 412);
        let body = String::from_utf8(reply.body).unwrap();
        for part in [
            "<Code>PreconditionFailed</Code>",
            "<Resource>/b/&lt;k&gt;&amp;</Resource>",
            "<FenceCode>stale</FenceCode><Lock>a&lt;b&gt;&amp;c</Lock><Token>1</Token>",
            "<Watermark>9223372036854775807</Watermark><Outcome>not-applied</Outcome></Error>",
        ] {
            assert!(body.contains(part), "{part} is not in {body}");
        }
        let missing = refusal_reply(&Refusal::unknown("lost"), b"/");
        let body = String::from_utf8(missing.body).unwrap();
        assert!(body.contains("<Code>InternalError</Code>"), "{body}");
        assert!(
            body.contains("<Outcome>unknown</Outcome>") && !body.contains("<Lock>"),
            "{body}"
        );
    }
}
