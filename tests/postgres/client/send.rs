//! Messages of a client, as bytes (PostgreSQL docs 55.7).

/// A message: its type, its length, its payload.
pub fn message(tag: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend(length(payload.len() + 4));
    bytes.extend(payload);
    bytes
}

fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).expect("a short message").to_be_bytes()
}

fn count(many: usize) -> [u8; 2] {
    i16::try_from(many).expect("few").to_be_bytes()
}

fn text(payload: &mut Vec<u8>, text: &str) {
    payload.extend(text.as_bytes());
    payload.push(0);
}

/// Protocol 3.0.
pub const V3_0: u32 = 3 << 16;
/// Protocol 3.2.
pub const V3_2: u32 = 3 << 16 | 2;

/// StartupMessage of a protocol version.
pub fn startup(version: u32, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut payload = version.to_be_bytes().to_vec();
    for (name, value) in parameters {
        text(&mut payload, name);
        text(&mut payload, value);
    }
    payload.push(0);
    untyped(&payload)
}

/// A first packet: no type.
pub fn untyped(payload: &[u8]) -> Vec<u8> {
    let mut bytes = length(payload.len() + 4).to_vec();
    bytes.extend(payload);
    bytes
}

/// SSLRequest.
pub fn ssl_request() -> Vec<u8> {
    untyped(&80_877_103_u32.to_be_bytes())
}

/// GSSENCRequest.
pub fn gss_request() -> Vec<u8> {
    untyped(&80_877_104_u32.to_be_bytes())
}

/// CancelRequest with what BackendKeyData told.
pub fn cancel_request(key: &[u8]) -> Vec<u8> {
    let mut payload = 80_877_102_u32.to_be_bytes().to_vec();
    payload.extend(key);
    untyped(&payload)
}

/// PasswordMessage.
pub fn password(secret: &str) -> Vec<u8> {
    let mut payload = vec![];
    text(&mut payload, secret);
    message(b'p', &payload)
}

pub fn query(sql: &str) -> Vec<u8> {
    query_bytes(sql.as_bytes())
}

/// The same in whatever encoding.
pub fn query_bytes(sql: &[u8]) -> Vec<u8> {
    message(b'Q', &[sql, b"\0"].concat())
}

/// Parse without types.
pub fn parse(name: &str, sql: &str) -> Vec<u8> {
    let mut payload = vec![];
    text(&mut payload, name);
    text(&mut payload, sql);
    payload.extend(count(0));
    message(b'P', &payload)
}

/// Bind of texts; the results come as texts.
pub fn bind(portal: &str, statement: &str, values: &[&str]) -> Vec<u8> {
    bind_as(portal, statement, values, 0)
}

/// The same with results in this format.
pub fn bind_as(portal: &str, statement: &str, values: &[&str], format: i16) -> Vec<u8> {
    let mut payload = vec![];
    text(&mut payload, portal);
    text(&mut payload, statement);
    payload.extend(count(0));
    payload.extend(count(values.len()));
    for value in values {
        payload.extend(length(value.len()));
        payload.extend(value.as_bytes());
    }
    payload.extend(count(1));
    payload.extend(format.to_be_bytes());
    message(b'B', &payload)
}

/// Describe of a statement (`S`) or portal (`P`).
pub fn describe(kind: u8, name: &str) -> Vec<u8> {
    named(b'D', kind, name)
}

/// Close of a statement (`S`) or portal (`P`).
pub fn close(kind: u8, name: &str) -> Vec<u8> {
    named(b'C', kind, name)
}

fn named(tag: u8, kind: u8, name: &str) -> Vec<u8> {
    let mut payload = vec![kind];
    text(&mut payload, name);
    message(tag, &payload)
}

/// Execute; 0 rows are all.
pub fn execute(portal: &str, rows_max: i32) -> Vec<u8> {
    let mut payload = vec![];
    text(&mut payload, portal);
    payload.extend(rows_max.to_be_bytes());
    message(b'E', &payload)
}

pub fn sync() -> Vec<u8> {
    message(b'S', b"")
}

pub fn flush() -> Vec<u8> {
    message(b'H', b"")
}

pub fn copy_data(data: &[u8]) -> Vec<u8> {
    message(b'd', data)
}

pub fn copy_done() -> Vec<u8> {
    message(b'c', b"")
}

pub fn copy_fail(reason: &str) -> Vec<u8> {
    let mut payload = vec![];
    text(&mut payload, reason);
    message(b'f', &payload)
}

/// FunctionCall by the function's oid, with texts.
pub fn function_call(oid: u32, values: &[&str]) -> Vec<u8> {
    let mut payload = oid.to_be_bytes().to_vec();
    payload.extend(count(0));
    payload.extend(count(values.len()));
    for value in values {
        payload.extend(length(value.len()));
        payload.extend(value.as_bytes());
    }
    payload.extend(count(0));
    message(b'F', &payload)
}

pub fn terminate() -> Vec<u8> {
    message(b'X', b"")
}

/// Parse, Bind, Execute and no Sync, all unnamed.
pub fn run(sql: &str, values: &[&str]) -> Vec<u8> {
    [parse("", sql), bind("", "", values), execute("", 0)].concat()
}
