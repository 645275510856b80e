//! Requests and replies that the proxy makes itself.

/// A null that RESP2 and RESP3 clients both read.
pub(super) const NULL: &[u8] = b"$-1\r\n";

/// A command: an array of bulk strings.
pub fn command(args: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let len: usize = args.iter().map(|arg| arg.as_ref().len() + 16).sum();
    let mut bytes = Vec::with_capacity(len + 16);
    line(&mut bytes, b'*', args.len());
    for arg in args {
        let arg = arg.as_ref();
        line(&mut bytes, b'$', arg.len());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A bulk string.
pub(super) fn bulk(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() + 16);
    line(&mut bytes, b'$', text.len());
    bytes.extend(text);
    bytes.extend(b"\r\n");
    bytes
}

/// An error of one line.
pub(super) fn error(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

/// The line that tells a count or a length.
pub(super) fn line(bytes: &mut Vec<u8>, marker: u8, number: usize) {
    bytes.push(marker);
    bytes.extend(number.to_string().as_bytes());
    bytes.extend(b"\r\n");
}
