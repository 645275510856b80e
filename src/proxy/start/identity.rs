//! Who this proxy is to lockd and to its own store: the locks that it guards, its address, and what
//! its configuration changes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{SocketAddr, UdpSocket};

use super::{Options, StartError};
use crate::config::{ProxyConfig, TicketSource, Trust, read_key_file};
use crate::lock_name::LockPattern;
use crate::proto::RegisterRequest;
use crate::proxy::registry::Registry;
use crate::proxy::ring::RingView;
use crate::proxy::watermarks::{Opening, Start, Watermarks};
use crate::ticket::KeyRing;

pub(super) fn opening(config: &ProxyConfig, init: bool, patterns: &[LockPattern]) -> Opening {
    let registered = matches!(config.tickets, TicketSource::Lockd(_));
    let trusts = config.listeners.iter().map(|it| it.trust);
    let trusts = trusts.chain(config.redis.iter().map(|it| it.trust));
    #[cfg(feature = "postgres")]
    let trusts = trusts.chain(config.postgres.iter().map(|it| it.trust));
    let mut trusts = trusts;
    let unsigned = trusts.any(|trust| trust == Trust::Unsigned);
    Opening {
        init,
        alone: !registered || unsigned,
        registered,
        fingerprint: fingerprint(config),
        patterns: patterns.iter().map(|it| it.as_str().to_owned()).collect(),
    }
}

/// Those of the rules, and what the store carries over from a run that ended unclean.
pub(super) fn registered(start: &Start, mut patterns: Vec<LockPattern>) -> Vec<LockPattern> {
    for text in &start.patterns {
        match LockPattern::new(text) {
            Ok(pattern) if patterns.contains(&pattern) => {}
            Ok(pattern) => {
                tracing::warn!(text, "still guarded: the run before ended unclean under it");
                patterns.push(pattern);
            }
            Err(error) => tracing::warn!(%error, text, "a carried lock pattern is torn"),
        }
    }
    patterns
}

/// Changes with what decides which writes were tracked: rules, modes, backends. A newer version of
/// this program may compute another one; that only makes the next start wait after a crash.
fn fingerprint(config: &ProxyConfig) -> u64 {
    let mut hasher = DefaultHasher::new();
    for it in &config.listeners {
        format!(
            "{:?}",
            (&it.name, &it.rules, &it.upstream, it.trust, it.mode)
        )
        .hash(&mut hasher);
    }
    // What Redis and Postgres listeners carry is tracked by its session, whatever the rules were.
    hasher.finish()
}

/// The keys of a file. Read before anything is made: a file that is wrong must not leave a store
/// behind that `--init` then finds.
pub(super) fn fixed_keys(config: &ProxyConfig) -> Result<Option<KeyRing>, StartError> {
    match &config.tickets {
        TicketSource::Keys(file) => Ok(Some(read_key_file(file)?)),
        TicketSource::Unsigned | TicketSource::Lockd(_) => Ok(None),
    }
}

pub(super) fn keys(
    config: &ProxyConfig,
    options: &Options,
    (start, watermarks): (&Start, &Watermarks),
    patterns: &[LockPattern],
    fixed: Option<KeyRing>,
) -> Result<(RingView, Option<Registry>), StartError> {
    match &config.tickets {
        TicketSource::Unsigned | TicketSource::Keys(_) => {
            Ok((RingView::fixed(fixed.unwrap_or_default()), None))
        }
        TicketSource::Lockd(lockd) => {
            let registration = RegisterRequest {
                instance: config.instance.clone(),
                store_id: start.store_id.clone(),
                admin: format!("http://{}", advertised(options.admin, lockd)),
                patterns: patterns.iter().map(|it| it.as_str().to_owned()).collect(),
                after: start.after.clone(),
                process: start.process.clone(),
                registered: false,
            };
            let registry = Registry::new(lockd, registration, start, watermarks)?;
            Ok((registry.ring(), Some(registry)))
        }
    }
}

/// Where lockd reaches an admin port that listens everywhere: at the address from which we reach
/// lockd.
fn advertised(admin: SocketAddr, lockd: &str) -> SocketAddr {
    if !admin.ip().is_unspecified() {
        return admin;
    }
    let authority = lockd.trim_start_matches("http://");
    let local = || -> io::Result<SocketAddr> {
        let everywhere = match admin {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(everywhere)?;
        // Connecting a datagram socket sends nothing; it chooses the local address.
        socket.connect(authority)?;
        socket.local_addr()
    };
    match local() {
        Ok(local) => SocketAddr::new(local.ip(), admin.port()),
        Err(error) => {
            tracing::warn!(%error, %admin, "no address to tell lockd for the admin port");
            admin
        }
    }
}
