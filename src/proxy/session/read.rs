//! Stage 1, read: a request's head as classification sees it, and its body read whole where that
//! is needed.

use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::Incoming;
use hyper::http::request::Parts;

use super::Door;
use crate::protocol::{Head, Refusal};
use crate::proxy::spool::{HeldBody, Spool};
use crate::proxy::withheld::{BodyLimits, carries_ticket, ticket_in_trailer, too_long};

/// A body that has, or has not, been read from the client yet.
pub enum ClientBody {
    /// Still at the client.
    Incoming(Incoming),
    /// Read whole.
    Held(HeldBody),
}

/// The fields as classification takes them.
pub fn fields(headers: &HeaderMap) -> Vec<(&str, &[u8])> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect()
}

/// The request target as it came. `None` stands for no path at all.
pub fn target(parts: &Parts) -> String {
    let is_absolute = parts.version < hyper::Version::HTTP_2 && parts.uri.authority().is_some();
    match parts.uri.path_and_query() {
        Some(path) if !is_absolute => path.as_str().to_owned(),
        _ => parts.uri.to_string(),
    }
}

/// The head.
pub fn head<'h>(
    parts: &'h Parts,
    target: &'h str,
    headers: &'h [(&'h str, &'h [u8])],
) -> Result<Head<'h>, Refusal> {
    let authority = parts.uri.authority().map(|authority| authority.as_str());
    if parts.version == hyper::Version::HTTP_11 && !parts.headers.contains_key(hyper::header::HOST)
    {
        // RFC 9112 3.2: "A server MUST respond with a 400" to it.
        return Err(Refusal::malformed("host is missing"));
    }
    if parts.version < hyper::Version::HTTP_2 {
        check_authority(parts, authority)?;
    }
    Ok(Head {
        method: parts.method.as_str(),
        target: target.as_bytes(),
        authority: authority.filter(|_| parts.version == hyper::Version::HTTP_2),
        headers,
    })
}

/// With a target in absolute form, its authority wins over `Host` (RFC 9112 3.2.2). Some readers
/// take `Host`: where the two differ, it is not told whom the request is for.
fn check_authority(parts: &Parts, authority: Option<&str>) -> Result<(), Refusal> {
    let (Some(authority), Some(host)) = (authority, parts.headers.get(hyper::header::HOST)) else {
        return Ok(());
    };
    match host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()) {
        true => Ok(()),
        false => Err(Refusal::malformed("the target's authority and host differ")),
    }
}

impl Door {
    /// Reads a body whole. Dropped half way, nothing of it is left.
    pub(super) async fn hold(
        &self,
        mut body: Incoming,
        limits: BodyLimits,
    ) -> Result<Spool, Refusal> {
        let declared = hyper::body::Body::size_hint(&body).exact();
        if declared.is_some_and(|declared| declared > limits.bytes_max) {
            return Err(too_long(limits));
        }
        let memory_bytes_max = self.listening.limits().body_memory_bytes_max;
        let mut spool = Spool::new(&self.listening.spool_dir, memory_bytes_max);
        loop {
            let Ok(frame) = tokio::time::timeout(limits.stall_max, body.frame()).await else {
                let stalled = limits.stall_max.as_millis();
                let detail = format!("no byte of the body came for {stalled} ms");
                return Err(Refusal::malformed(detail));
            };
            let frame = match frame {
                None => return Ok(spool),
                Some(Ok(frame)) => frame,
                // Nobody is left to be told.
                Some(Err(_)) => return Err(Refusal::malformed("the body ended early")),
            };
            if frame.trailers_ref().is_some_and(carries_ticket) {
                return Err(ticket_in_trailer());
            }
            let Ok(data) = frame.into_data() else {
                // Other trailers are left out (RFC 9110 6.5.1 allows it): the body now has a
                // declared length.
                continue;
            };
            if spool.length() + data.len() as u64 > limits.bytes_max {
                return Err(too_long(limits));
            }
            spool.push(&data).await.map_err(cannot_hold)?;
        }
    }
}

/// The disk does not take the body.
pub fn cannot_hold(error: impl std::fmt::Display) -> Refusal {
    tracing::error!(%error, "a body cannot be spooled");
    Refusal::busy(
        "the body cannot be held here now",
        std::time::Duration::from_secs(1),
    )
}
