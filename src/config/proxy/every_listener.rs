//! What the tables of all listeners have in common.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::listener::{
    Mode, PROTOCOLS, Protocol, TIMEOUTS, Trust, Upstream, check_protocol, value_or_default,
};
use crate::config::reader::{Found, Report, Table};
use crate::config::values::{check_host_port, check_instance};
use crate::protocol::Unmatched;

const ADMIT_DEADLINE_DEFAULT: Duration = Duration::from_secs(5);

/// The keys that every listener has. What is missing or wrong in them is in the report.
pub(super) struct Common {
    pub(super) name: Option<String>,
    pub(super) protocol: Option<Found<Protocol>>,
    pub(super) listen: Option<SocketAddr>,
    pub(super) upstream: Option<Upstream>,
    pub(super) trust: Trust,
    pub(super) mode: Mode,
    pub(super) unmatched: Unmatched,
    pub(super) admit_deadline: Duration,
}

/// Reads them from a listener's table.
pub(super) fn read_common(report: &mut Report<'_>, t: &mut Table<'_, '_>) -> Common {
    let name = t.parsed(report, "name", "a name", check_instance);
    let name = t.require(report, "name", name);
    let protocol = t.parsed(report, "protocol", PROTOCOLS, check_protocol);
    let protocol = t.require(report, "protocol", protocol);
    let listen = t.address(report, "listen");
    let listen = t.require(report, "listen", listen);
    let upstream = t.parsed(report, "upstream", "host:port", check_host_port);
    let upstream = t.require(report, "upstream", upstream);
    if let (Some(listen), Some(upstream)) = (&listen, &upstream)
        && is_itself(listen.value, &upstream.value)
    {
        let message = "`listener.upstream` is where this listener itself listens";
        report.error(upstream.at, message);
    }
    let trust = [("signed", Trust::Signed), ("unsigned", Trust::Unsigned)];
    let trust = t.choice(report, "trust", &trust);
    let mode = [("enforce", Mode::Enforce), ("observe", Mode::Observe)];
    let mode = t.choice(report, "mode", &mode);
    let unmatched = [("pass", Unmatched::Pass), ("reject", Unmatched::Reject)];
    let unmatched = t.choice(report, "unmatched", &unmatched);
    let deadline = t.duration(report, "admit_deadline", TIMEOUTS);
    Common {
        name: name.map(|it| it.value),
        protocol,
        listen: listen.map(|it| it.value),
        upstream: upstream.map(|it| Upstream {
            host: it.value.0,
            port: it.value.1,
        }),
        trust: value_or_default(trust),
        mode: value_or_default(mode),
        unmatched: value_or_default(unmatched),
        admit_deadline: deadline.map_or(ADMIT_DEADLINE_DEFAULT, |it| it.value),
    }
}

/// Whether a connection to this upstream certainly comes back to the listener. Names but localhost
/// are not looked up: they may mean something else where the proxy runs.
fn is_itself(listen: SocketAddr, (host, port): &(String, u16)) -> bool {
    let upstream = match host.as_str() {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => match host.parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => return false,
        },
    };
    let everywhere = listen.ip().is_unspecified() && upstream.is_loopback();
    listen.port() == *port && (listen.ip() == upstream || everywhere)
}

/// `password_file`, so that the configuration itself can be shown. The outer `None`: it cannot be
/// read, which is in the report.
pub(super) fn read_password(
    report: &mut Report<'_>,
    t: &mut Table<'_, '_>,
) -> Option<Option<String>> {
    let Some(file) = t.text(report, "password_file", "a file") else {
        return Some(None);
    };
    match std::fs::read_to_string(&file.value) {
        Ok(text) => Some(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) => {
            report.error(file.at, format!("{:?} cannot be read: {error}", file.value));
            None
        }
    }
}
