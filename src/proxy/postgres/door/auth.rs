//! Authentication, relayed message by message up to the first ReadyForQuery (PostgreSQL docs
//! 54.2.1, 54.3).
//!
//! What is changed on the way: the mechanisms of SASL that bind to a TLS channel are left out,
//! since that channel ends here; and the key for cancel requests is ours.

use super::cancel::CancelKey;
use super::settings::Parameters;
use super::{Door, Ended, NO_BACKEND, NOT_AUTHORISED, PROTOCOL_VIOLATION};
use crate::protocol::postgres::frame::{
    Authentication, BackendMessage, Decoder, FrameError, Next, Side as Sender, sasl_mechanisms,
};
use crate::proxy::postgres::wire::Side;

/// Most parameters that a server may report before a session begins.
const PARAMETERS_MAX: usize = 1000;
/// Most bytes that a client may send ahead while it is authenticated.
const AHEAD_BYTES_MAX: usize = 128 << 10;
/// Names of mechanisms that bind to a TLS channel end so (RFC 5802 4).
const BINDS_TO_CHANNEL: &[u8] = b"-PLUS";

/// A server that is ready for the first query.
pub(super) struct Greeted {
    /// The client's key.
    pub(super) key: Option<CancelKey>,
    /// The session's process at the server.
    pub(super) pid: Option<i32>,
    /// What it reported, in order.
    pub(super) parameters: Parameters,
    /// ReadyForQuery, which the client does not have yet.
    pub(super) ready: Vec<u8>,
}

/// Relays until the server is ready.
pub(super) async fn relay(
    door: &Door,
    client: &mut Side,
    backend: &mut Side,
) -> Result<Greeted, Ended> {
    let mut relay = Relay {
        door,
        requests: Decoder::new(Sender::Authenticating),
        replies: Decoder::new(Sender::Server),
        asked: false,
        asked_sasl: false,
        authenticated: false,
        greeted: Greeted {
            key: None,
            pid: None,
            parameters: vec![],
            ready: vec![],
        },
    };
    loop {
        relay.take_requests(client, backend)?;
        let ready = relay.take_replies(client, backend)?;
        backend.send_all().await?;
        client.send_all().await?;
        if ready {
            return Ok(relay.greeted);
        }
        let reads_client = !relay.authenticated && client.received.len() < AHEAD_BYTES_MAX;
        tokio::select! {
            more = backend.receive() => if !more? {
                return Err(Ended::Gone);
            },
            more = client.receive(), if reads_client => if !more? {
                return Err(Ended::Gone);
            },
        }
    }
}

struct Relay<'d> {
    door: &'d Door,
    requests: Decoder,
    replies: Decoder,
    /// The client is asked for something. Until then what it sends is not looked at: it may be its
    /// first queries.
    asked: bool,
    /// Its next answer is the first one of SASL.
    asked_sasl: bool,
    authenticated: bool,
    greeted: Greeted,
}

impl Relay<'_> {
    fn take_requests(&mut self, client: &mut Side, backend: &mut Side) -> Result<(), Ended> {
        while self.asked {
            let next = self
                .requests
                .next(&client.received)
                .map_err(|error| Ended::fatal(PROTOCOL_VIOLATION, &error.to_string()))?;
            let (tag, payload, raw) = match next {
                Next::Whole { tag, payload, raw } => (tag, payload, raw),
                // What is longer than a whole message was refused by its length.
                _ => return Ok(()),
            };
            if tag == b'X' {
                return Err(Ended::Gone);
            }
            if std::mem::take(&mut self.asked_sasl) {
                check_sasl(payload, backend.is_tls())?;
            }
            self.asked = false;
            backend.send(raw);
            let bytes = raw.len();
            client.consume(bytes);
        }
        Ok(())
    }

    /// Whether the server is ready.
    fn take_replies(&mut self, client: &mut Side, backend: &mut Side) -> Result<bool, Ended> {
        loop {
            let next = self
                .replies
                .next(&backend.received)
                .map_err(not_understood)?;
            let (tag, payload, raw) = match next {
                Next::More { .. } => return Ok(false),
                Next::Whole { tag, payload, raw } => (tag, payload, raw),
                Next::Begin { .. } | Next::Part { .. } => {
                    return Err(Ended::fatal(
                        NO_BACKEND,
                        "the backend's greeting is too long",
                    ));
                }
            };
            let message = BackendMessage::read(tag, payload).map_err(not_understood)?;
            let ready = self.take_reply(&message, raw, client)?;
            let bytes = raw.len();
            backend.consume(bytes);
            if ready {
                return Ok(true);
            }
        }
    }

    fn take_reply(
        &mut self,
        message: &BackendMessage<'_>,
        raw: &[u8],
        client: &mut Side,
    ) -> Result<bool, Ended> {
        match message {
            BackendMessage::ReadyForQuery(_) => {
                self.greeted.ready = raw.to_vec();
                return Ok(true);
            }
            BackendMessage::Authentication(Authentication::Ok) => {
                (self.asked, self.authenticated) = (false, true);
            }
            BackendMessage::Authentication(Authentication::SaslFinal(_)) => self.asked = false,
            BackendMessage::Authentication(Authentication::Sasl(mechanisms)) => {
                (self.asked, self.asked_sasl) = (true, true);
                let mut kept = mechanisms
                    .iter()
                    .copied()
                    .filter(|name| !name.ends_with(BINDS_TO_CHANNEL))
                    .peekable();
                if kept.peek().is_none() {
                    let text = "the server offers only authentication that is bound to its TLS \
                                channel, which ends at this proxy";
                    return Err(Ended::fatal(NOT_AUTHORISED, text));
                }
                client.send(&sasl_mechanisms(kept));
                return Ok(false);
            }
            BackendMessage::Authentication(_) => self.asked = true,
            BackendMessage::BackendKeyData { process, key } => {
                let ours = self.door.keys.issue(*process, key)?;
                client.send(&ours.message());
                self.greeted.key = Some(ours);
                self.greeted.pid = Some(*process);
                return Ok(false);
            }
            BackendMessage::ParameterStatus { name, value } => {
                let parameters = &mut self.greeted.parameters;
                if parameters.len() >= PARAMETERS_MAX {
                    return Err(Ended::fatal(NO_BACKEND, "the backend reports too much"));
                }
                parameters.push(((*name).into(), (*value).into()));
            }
            _ => {}
        }
        client.send(raw);
        Ok(false)
    }
}

fn not_understood(error: FrameError) -> Ended {
    tracing::warn!(%error, "the backend's greeting is not understood");
    Ended::fatal(NO_BACKEND, "the backend's greeting is not understood")
}

/// What a client may not ask of us: SASLInitialResponse has the mechanism's name, a length, and the
/// message, which begins with what the client knows of channel binding (RFC 5802 7, gs2-header).
fn check_sasl(payload: &[u8], backend_tls: bool) -> Result<(), Ended> {
    let mut parts = payload.splitn(2, |byte| *byte == 0);
    let mechanism = parts.next().unwrap_or_default();
    let flag = parts.next().and_then(|rest| rest.get(4));
    let binds = mechanism.ends_with(BINDS_TO_CHANNEL) || flag == Some(&b'p');
    // `y`: the client could bind, and believes that the server cannot. A server that can, as it
    // can in TLS, takes that for an attack.
    if binds || backend_tls && flag == Some(&b'y') {
        let text = "SCRAM channel binding does not reach the server, whose TLS channel ends at \
                    this proxy: connect with channel_binding=disable";
        return Err(Ended::fatal(NOT_AUTHORISED, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_sasl;

    fn initial(mechanism: &str, message: &str) -> Vec<u8> {
        let mut payload = [mechanism.as_bytes(), &[0]].concat();
        payload.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        payload.extend(message.as_bytes());
        payload
    }

    #[test]
    fn a_client_that_insists_on_the_channel_is_told_so() {
        let plain = initial("SCRAM-SHA-256", "n,,n=,r=abc");
        let could = initial("SCRAM-SHA-256", "y,,n=,r=abc");
        let binds = initial("SCRAM-SHA-256-PLUS", "p=tls-server-end-point,,n=,r=abc");
        for tls in [false, true] {
            assert!(check_sasl(&plain, tls).is_ok());
            assert!(check_sasl(&binds, tls).is_err());
            assert_eq!(check_sasl(&could, tls).is_ok(), !tls);
        }
        assert!(check_sasl(b"", true).is_ok());
        assert!(check_sasl(b"GSSAPI\0\xff", true).is_ok());
    }
}
