//! The ticket: a token in its signed envelope, and the orders that lockd signs for proxies.
//!
//! The envelope is PASETO `v4.public` (Ed25519; paseto-spec, Version 4). It was chosen over JWT
//! because version and purpose fix the algorithm: there is no header that an attacker could use to
//! pick another one. The key id is the footer, a PASERK `k4.pid` (paserk-spec, Types). The implicit
//! assertion names the kind of envelope, so that an order can never pass for a ticket.
//!
//! A ticket has no expiry: the watermark, not a clock, decides when it is worthless.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pasetors::Public;
use pasetors::keys::{AsymmetricKeyPair, AsymmetricPublicKey, AsymmetricSecretKey, Generate};
use pasetors::paserk::{FormatAsPaserk, Id};
use pasetors::token::UntrustedToken;
use pasetors::version4::{PublicToken, V4};
use serde::{Deserialize, Serialize};

use crate::lock_name::LockName;
use crate::token::Token;

/// Longest envelope that is looked at, in bytes.
pub const TICKET_BYTES_MAX: usize = 4096;

/// What a ticket says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The lock, which is the resource's name.
    pub lock: LockName,
    /// The token of the grant.
    pub token: Token,
    /// Who holds it, in free text for operators.
    pub holder: String,
    /// The session that the grant belongs to.
    pub session: String,
    /// When it was issued, in Unix milliseconds. For people; nothing decides by it.
    pub issued_unix_ms: u64,
    /// What the seal of its grant covered.
    pub seal: SealScope,
}

/// What the seal of a grant covered before its ticket was issued.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "mode", content = "proxies", rename_all = "kebab-case")]
pub enum SealScope {
    /// Every proxy that was registered for the lock, by instance name.
    Required(Vec<String>),
    /// These proxies were reached; others may not have been.
    BestEffort(Vec<String>),
}

impl SealScope {
    /// The instances that were sealed.
    pub fn instances(&self) -> &[String] {
        match self {
            SealScope::Required(names) | SealScope::BestEffort(names) => names,
        }
    }
}

/// What lockd orders a proxy to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Raise the watermark to the token and drain what is older.
    Seal,
    /// Raise the floor to token + 1 and drain the token and what is older.
    Close,
}

/// An order that lockd signs for proxies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// What to do.
    pub action: Action,
    /// The lock.
    pub lock: LockName,
    /// The token.
    pub token: Token,
    /// Of a seal: tells the grant from every other one, also from one that had the same token in a
    /// store that was lost. Empty where there is none.
    pub grant: String,
}

/// Why an envelope was not taken. It raises nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTicket {
    /// Longer than [`TICKET_BYTES_MAX`].
    #[error("ticket is longer than {TICKET_BYTES_MAX} bytes")]
    TooLong,
    /// Not `v4.public.` base64url with a key id as footer.
    #[error("not a ticket: a PASETO v4.public envelope with a key id is one")]
    Malformed,
    /// Signed by a key that is not, or no longer, in the ring.
    #[error("ticket is signed by an unknown key {id:?}")]
    UnknownKey {
        /// The key id that it names.
        id: String,
    },
    /// The signature does not fit, or the envelope is of another kind.
    #[error("ticket's signature does not verify")]
    BadSignature,
    /// The signature fits but what is signed is not a ticket that this version knows.
    #[error("ticket's content is not understood: {reason}")]
    BadContent {
        /// What is wrong.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
struct TicketBody<'a> {
    // Not `&str`: a name with a quote or a backslash is escaped and cannot be borrowed.
    #[serde(borrow)]
    lock: Cow<'a, str>,
    // A string: JavaScript loses integers above 2^53.
    token: &'a str,
    holder: String,
    session: String,
    iat: u64,
    seal: SealScope,
}

#[derive(Serialize, Deserialize)]
struct OrderBody<'a> {
    action: Action,
    #[serde(borrow)]
    lock: Cow<'a, str>,
    token: &'a str,
    #[serde(borrow, default)]
    grant: Cow<'a, str>,
}

const TICKET_KIND: &[u8] = b"ringfence.ticket.v1";
const ORDER_KIND: &[u8] = b"ringfence.order.v1";

/// The secret half: signs tickets and orders.
pub struct SigningKey {
    secret: AsymmetricSecretKey<V4>,
    public: VerifyingKey,
}

/// A text that is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {kind} key: PASERK `{prefix}` is one")]
pub struct InvalidKey {
    kind: &'static str,
    prefix: &'static str,
}

impl SigningKey {
    /// A new random key.
    pub fn generate() -> SigningKey {
        let pair = AsymmetricKeyPair::<V4>::generate().expect("the system's random source works");
        SigningKey {
            secret: pair.secret,
            public: VerifyingKey::new(pair.public),
        }
    }

    /// Reads PASERK `k4.secret.`
    pub fn parse(text: &str) -> Result<SigningKey, InvalidKey> {
        let invalid = || InvalidKey {
            kind: "secret",
            prefix: "k4.secret.",
        };
        let secret = AsymmetricSecretKey::<V4>::try_from(text.trim()).map_err(|_| invalid())?;
        let public = AsymmetricPublicKey::<V4>::try_from(&secret).map_err(|_| invalid())?;
        Ok(SigningKey {
            secret,
            public: VerifyingKey::new(public),
        })
    }

    /// PASERK `k4.secret.`: a secret, for the key file only.
    pub fn to_secret_text(&self) -> String {
        let mut text = String::new();
        self.secret.fmt(&mut text).expect("writing to a String");
        text
    }

    /// The half that verifies.
    pub fn verifying(&self) -> &VerifyingKey {
        &self.public
    }

    /// Signs a ticket.
    pub fn sign_ticket(&self, ticket: &Ticket) -> String {
        let body = TicketBody {
            lock: ticket.lock.as_str().into(),
            token: &ticket.token.to_string(),
            holder: ticket.holder.clone(),
            session: ticket.session.clone(),
            iat: ticket.issued_unix_ms,
            seal: ticket.seal.clone(),
        };
        self.sign(&body, TICKET_KIND)
    }

    /// Signs an order to proxies.
    pub fn sign_order(&self, order: &Order) -> String {
        let body = OrderBody {
            action: order.action,
            lock: order.lock.as_str().into(),
            token: &order.token.to_string(),
            grant: order.grant.as_str().into(),
        };
        self.sign(&body, ORDER_KIND)
    }

    fn sign(&self, body: &impl Serialize, kind: &[u8]) -> String {
        let payload = serde_json::to_vec(body).expect("bodies are plain data");
        PublicToken::sign(
            &self.secret,
            &payload,
            Some(self.public.id.as_bytes()),
            Some(kind),
        )
        .expect("payload is not empty")
    }
}

/// The public half of a key, with its id.
#[derive(Clone, Debug)]
pub struct VerifyingKey {
    public: AsymmetricPublicKey<V4>,
    id: String,
}

impl VerifyingKey {
    fn new(public: AsymmetricPublicKey<V4>) -> VerifyingKey {
        let mut id = String::new();
        Id::from(&public).fmt(&mut id).expect("writing to a String");
        VerifyingKey { public, id }
    }

    /// Reads PASERK `k4.public.`
    pub fn parse(text: &str) -> Result<VerifyingKey, InvalidKey> {
        AsymmetricPublicKey::<V4>::try_from(text.trim())
            .map(VerifyingKey::new)
            .map_err(|_| InvalidKey {
                kind: "public",
                prefix: "k4.public.",
            })
    }

    /// PASERK `k4.public.`
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.public.fmt(&mut text).expect("writing to a String");
        text
    }

    /// PASERK `k4.pid.`
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// The keys that verify: more than one while a rotation overlaps.
#[derive(Clone, Default, Debug)]
pub struct KeyRing {
    keys: BTreeMap<String, VerifyingKey>,
}

impl KeyRing {
    /// A ring of these keys.
    pub fn new(keys: impl IntoIterator<Item = VerifyingKey>) -> KeyRing {
        KeyRing {
            keys: keys.into_iter().map(|key| (key.id.clone(), key)).collect(),
        }
    }

    /// The keys, by id.
    pub fn keys(&self) -> impl Iterator<Item = &VerifyingKey> {
        self.keys.values()
    }

    /// Whether there is no key: then nothing verifies.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Verifies a ticket. Costs about 60 us: callers cache what verified.
    pub fn verify_ticket(&self, envelope: &str) -> Result<Ticket, InvalidTicket> {
        let payload = self.verify(envelope, TICKET_KIND)?;
        let body: TicketBody<'_> = parse_body(&payload)?;
        Ok(Ticket {
            lock: parse_content(&body.lock)?,
            token: parse_content(body.token)?,
            holder: body.holder,
            session: body.session,
            issued_unix_ms: body.iat,
            seal: body.seal,
        })
    }

    /// Verifies an order of lockd.
    pub fn verify_order(&self, envelope: &str) -> Result<Order, InvalidTicket> {
        let payload = self.verify(envelope, ORDER_KIND)?;
        let body: OrderBody<'_> = parse_body(&payload)?;
        Ok(Order {
            action: body.action,
            lock: parse_content(&body.lock)?,
            token: parse_content(body.token)?,
            grant: body.grant.into_owned(),
        })
    }

    fn verify(&self, envelope: &str, kind: &[u8]) -> Result<Vec<u8>, InvalidTicket> {
        if envelope.len() > TICKET_BYTES_MAX {
            return Err(InvalidTicket::TooLong);
        }
        let untrusted = UntrustedToken::<Public, V4>::try_from(envelope)
            .map_err(|_| InvalidTicket::Malformed)?;
        let id = std::str::from_utf8(untrusted.untrusted_footer())
            .ok()
            .filter(|id| !id.is_empty())
            .ok_or(InvalidTicket::Malformed)?;
        let Some(key) = self.keys.get(id) else {
            return Err(InvalidTicket::UnknownKey {
                id: id.chars().take(64).collect(),
            });
        };
        PublicToken::verify(&key.public, &untrusted, Some(id.as_bytes()), Some(kind))
            .map(|trusted| trusted.payload().as_bytes().to_vec())
            .map_err(|_| InvalidTicket::BadSignature)
    }
}

fn parse_body<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, InvalidTicket> {
    serde_json::from_slice(payload).map_err(|error| InvalidTicket::BadContent {
        reason: error.to_string(),
    })
}

fn parse_content<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
) -> Result<T, InvalidTicket> {
    text.parse()
        .map_err(|error: T::Err| InvalidTicket::BadContent {
            reason: error.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            lock: LockName::new("tenant/\"4\\2\"").unwrap(),
            token: Token::new(7).unwrap(),
            holder: "host \"quoted\" ü".to_owned(),
            session: "694d7".to_owned(),
            issued_unix_ms: 1_700_000_000_000,
            seal: SealScope::Required(vec!["edge-1".to_owned()]),
        }
    }

    #[test]
    fn a_signed_ticket_verifies_to_what_was_signed() {
        let key = SigningKey::generate();
        let ring = KeyRing::new([key.verifying().clone()]);
        let envelope = key.sign_ticket(&ticket());
        assert_eq!(ring.verify_ticket(&envelope), Ok(ticket()));
        let again = SigningKey::parse(&key.to_secret_text()).unwrap();
        assert_eq!(again.verifying().id(), key.verifying().id());
        assert_eq!(
            VerifyingKey::parse(&key.verifying().to_text())
                .unwrap()
                .id(),
            key.verifying().id()
        );
    }

    #[test]
    fn rotation_overlaps_and_then_ends() {
        let (old, new) = (SigningKey::generate(), SigningKey::generate());
        let both = KeyRing::new([old.verifying().clone(), new.verifying().clone()]);
        assert!(both.verify_ticket(&old.sign_ticket(&ticket())).is_ok());
        assert!(both.verify_ticket(&new.sign_ticket(&ticket())).is_ok());
        let after = KeyRing::new([new.verifying().clone()]);
        let refused = after.verify_ticket(&old.sign_ticket(&ticket()));
        assert!(matches!(refused, Err(InvalidTicket::UnknownKey { .. })));
    }

    #[test]
    fn every_changed_or_cut_byte_is_refused() {
        let key = SigningKey::generate();
        let ring = KeyRing::new([key.verifying().clone()]);
        let envelope = key.sign_ticket(&ticket());
        for at in 0..envelope.len() {
            assert!(ring.verify_ticket(&envelope[..at]).is_err(), "cut at {at}");
            let mut bytes = envelope.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(bytes).unwrap();
            assert!(ring.verify_ticket(&forged).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn an_order_is_no_ticket_and_the_other_way_round() {
        let key = SigningKey::generate();
        let ring = KeyRing::new([key.verifying().clone()]);
        let order = Order {
            action: Action::Seal,
            lock: LockName::new("a").unwrap(),
            token: Token::new(7).unwrap(),
            grant: "a session/1".to_owned(),
        };
        assert_eq!(
            ring.verify_order(&key.sign_order(&order)),
            Ok(order.clone())
        );
        let as_ticket = ring.verify_ticket(&key.sign_order(&order));
        assert_eq!(as_ticket, Err(InvalidTicket::BadSignature));
        let as_order = ring.verify_order(&key.sign_ticket(&ticket()));
        assert_eq!(as_order, Err(InvalidTicket::BadSignature));
    }
}
