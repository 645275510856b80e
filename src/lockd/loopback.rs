//! Addresses that mean another machine to each who reads them.
//!
//! What is found at a loopback address says something only of the machine, and of the network
//! namespace, on which it is looked for.

use std::net::IpAddr;

use tonic::transport::Uri;

/// Whether an admin address leads whoever uses it to itself.
pub(super) fn is_loopback(admin: &str) -> bool {
    let uri = admin.parse::<Uri>().ok();
    let Some(host) = uri.as_ref().and_then(Uri::host) else {
        return false;
    };
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let ip = ip.map(|ip| ip.to_canonical());
    // Connecting to the unspecified address connects to the machine itself.
    host.eq_ignore_ascii_case("localhost")
        || ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

/// The network that this process has its loopback address in, by an id that no other has: the
/// running kernel and its network namespace. Empty where the system does not tell.
pub(super) fn own_network() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/net");
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => format!("{} {}", boot.trim(), namespace.display()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn addresses_that_lead_back_are_known() {
        for (admin, is) in [
            ("http://127.0.0.1:7431", true),
            ("http://127.9.9.9:7431/", true),
            ("http://localhost:7431", true),
            ("http://[::1]:7431", true),
            ("http://[::ffff:127.0.0.1]:7431", true),
            ("http://0.0.0.0:7431", true),
            ("http://10.0.0.7:7431", false),
            ("http://[fd00::7]:7431", false),
            ("http://edge-1:7431", false),
        ] {
            assert_eq!(is_loopback(admin), is, "{admin}");
        }
    }
}
