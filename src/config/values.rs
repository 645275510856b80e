//! Values that several tables have: names, addresses, URLs.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Longest name of an instance or a listener, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A name for people, metrics and file names.
pub(super) fn check_instance(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let sound = (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(plain)
        && !text.starts_with('.');
    if sound {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a name has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`, and begins with no `.`"
    ))
}

/// A file or folder. One without a name would be the working directory, which nobody means.
pub(super) fn check_path(text: &str) -> Result<PathBuf, String> {
    match text.is_empty() {
        true => Err("a path is expected, `.` for the working directory".to_owned()),
        false => Ok(text.into()),
    }
}

/// An address to listen on: `127.0.0.1:7431`, `[::1]:7431`. Port 0: any free one.
pub(super) fn check_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected an IP address and a port up to 65535, such as 127.0.0.1:7431".to_owned()
    })
}

/// `host:port`, to connect to.
pub(super) fn check_host_port(text: &str) -> Result<(String, u16), String> {
    let expected = || "expected host:port, such as 127.0.0.1:9000 (no scheme, no path)".to_owned();
    if text.contains("//") {
        return Err(expected());
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    let port: u16 = port.parse().map_err(|_| expected())?;
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let sound = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_host(host),
    };
    if !sound || port == 0 {
        return Err(expected());
    }
    Ok((bare.unwrap_or(host).to_owned(), port))
}

/// A host's name or IPv4 address.
pub(super) fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// The base URL of a service: `http://host:port`.
pub(super) fn check_url(text: &str) -> Result<String, String> {
    let expected = || "expected http://host:port, without a path".to_owned();
    let rest = text
        .strip_prefix("http://")
        .ok_or_else(|| match text.starts_with("https://") {
            true => "https is not supported by this version yet: http is".to_owned(),
            false => expected(),
        })?;
    check_host_port(rest.strip_suffix('/').unwrap_or(rest)).map_err(|_| expected())?;
    Ok(text.strip_suffix('/').unwrap_or(text).to_owned())
}
