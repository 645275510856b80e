use super::{
    AUTH_PAYLOAD_BYTES_MAX, Authentication, BackendMessage, BindHead, ClosedKind, Decoder,
    FIRST_PACKET_BYTES_MAX, FirstPacket, FrameError, FrontendMessage, HEAD_BYTES, Next, Opening,
    Parse, Side, TransactionStatus, Version, WHOLE_BYTES_MAX, bind, close_statement, message,
    parse, query, rewrite_bind, rewrite_startup, startup, sync,
};
use proptest::prelude::{any, prop, proptest};

const V3: Version = Version { major: 3, minor: 0 };

/// Feeds bytes in chunks of these sizes; the messages as (tag, payload).
fn decode(side: Side, bytes: &[u8], chunks: &[usize]) -> Result<Vec<(u8, Vec<u8>)>, FrameError> {
    let mut decoder = Decoder::new(side);
    let (mut buffer, mut fed, mut sizes) = (vec![], 0, chunks.iter().cycle());
    let mut found: Vec<(u8, Vec<u8>)> = vec![];
    loop {
        let next = decoder.next(&buffer)?;
        let consumed = next.consumed();
        match next {
            Next::More { bytes: wanted } => {
                assert!(wanted > buffer.len());
                if fed == bytes.len() {
                    assert!(decoder.is_between_messages() && buffer.is_empty());
                    return Ok(found);
                }
                let size = (*sizes.next().unwrap_or(&bytes.len())).max(1);
                let end = (fed + size).min(bytes.len());
                buffer.extend_from_slice(&bytes[fed..end]);
                fed = end;
            }
            Next::Whole { tag, payload, .. } => found.push((tag, payload.to_vec())),
            Next::Begin { tag, head, .. } => found.push((tag, head.to_vec())),
            Next::Part { tag, raw, .. } => {
                let last = found.last_mut().unwrap();
                assert_eq!(last.0, tag);
                last.1.extend_from_slice(raw);
            }
        }
        buffer.drain(..consumed);
    }
}

fn first(bytes: &[u8]) -> Result<Option<(FirstPacket<'_>, usize)>, FrameError> {
    Opening::new().next(bytes)
}

#[test]
fn a_start_is_read_and_written() {
    let parameters: [(&[u8], &[u8]); 3] = [(b"user", b"u"), (b"database", b"d"), (b"user", b"v")];
    let bytes = startup(V3, parameters);
    let Ok(Some((FirstPacket::Startup(packet), used))) = first(&bytes) else {
        panic!("no start-up packet");
    };
    assert_eq!((used, packet.version), (bytes.len(), V3));
    assert_eq!(packet.get("user"), Some(&b"v"[..]));
    assert_eq!(packet.database(), Some(&b"d"[..]));
    assert!(!packet.is_replication());
    let kept = rewrite_startup(&packet, |name, value| {
        (name != b"database").then(|| value.to_vec())
    });
    let Ok(Some((FirstPacket::Startup(packet), _))) = first(&kept) else {
        panic!("no start-up packet");
    };
    assert_eq!(packet.parameters.len(), 2);
    assert_eq!(packet.database(), Some(&b"v"[..]));
}

#[test]
fn a_start_in_pieces_waits_and_a_large_one_is_refused() {
    let value = vec![b'x'; FIRST_PACKET_BYTES_MAX - 4 - 7];
    let bytes = startup(V3, [(&b"long"[..], &value[..])]);
    assert!(bytes.len() > 9_000);
    for cut in [0, 3, 4, 8, bytes.len() - 1] {
        assert_eq!(first(&bytes[..cut]), Ok(None), "{cut}");
    }
    assert!(matches!(first(&bytes), Ok(Some(_))));
    let mut long = bytes.clone();
    long[..4].copy_from_slice(&10_005_i32.to_be_bytes());
    assert!(first(&long).is_err());
    for length in [0_i32, 4, 7, -1, i32::MIN, i32::MAX] {
        assert!(
            first(&[&length.to_be_bytes()[..], &[0; 8]].concat()).is_err(),
            "{length}"
        );
    }
}

#[test]
fn a_start_that_is_not_whole_within_is_refused() {
    let packet = |body: &[u8]| {
        let mut bytes = ((4 + body.len()) as i32).to_be_bytes().to_vec();
        bytes.extend_from_slice(body);
        bytes
    };
    for body in [
        &b"\0\x03\0\0user\0u\0"[..],
        b"\0\x03\0\0user\0u",
        b"\0\x03\0\0\0extra",
        b"\0\x02\0\0user\0u\0\0",
        b"\0\x04\0\0user\0u\0\0",
    ] {
        assert!(first(&packet(body)).is_err(), "{body:?}");
    }
    assert!(first(&packet(b"\0\x03\0\x02user\0u\0\0")).is_ok());
}

fn request(code: i32, rest: &[u8]) -> Vec<u8> {
    let length = 8 + rest.len() as i32;
    [&length.to_be_bytes()[..], &code.to_be_bytes(), rest].concat()
}

const SSL: i32 = 80_877_103;
const GSS: i32 = 80_877_104;
const CANCEL: i32 = 80_877_102;

#[test]
fn each_upgrade_is_asked_for_once() {
    let mut opening = Opening::new();
    let gss = request(GSS, &[]);
    let ssl = request(SSL, &[]);
    assert_eq!(
        opening.next(&gss),
        Ok(Some((FirstPacket::GssEncryption, 8)))
    );
    assert_eq!(opening.next(&ssl), Ok(Some((FirstPacket::Ssl, 8))));
    assert!(opening.next(&gss).is_err());
    assert!(opening.next(&ssl).is_err());
    assert!(first(&request(SSL, &[0])).is_err());
}

#[test]
fn bytes_before_a_handshake_are_refused() {
    let mut opening = Opening::new();
    assert_eq!(opening.begin_tls(0), Ok(()));
    assert_eq!(
        opening.begin_tls(5),
        Err(FrameError::BeforeHandshake { bytes: 5 })
    );
}

#[test]
fn direct_tls_is_seen_at_the_first_byte_only() {
    let mut opening = Opening::new();
    assert_eq!(opening.next(&[0x16]), Ok(Some((FirstPacket::DirectTls, 0))));
    assert!(opening.next(&request(SSL, &[])).is_err());
    let mut opening = Opening::new();
    opening.next(&request(SSL, &[])).unwrap();
    assert!(opening.next(&[0x16, 3, 1, 0, 0, 0, 0, 0]).is_err());
}

#[test]
fn a_cancel_has_a_key_of_any_version() {
    let cancel = |key: &[u8]| request(CANCEL, &[&7_i32.to_be_bytes()[..], key].concat());
    for bytes in [4, 32, 256] {
        let packet = cancel(&vec![9; bytes]);
        let Ok(Some((FirstPacket::Cancel { process, key }, _))) = first(&packet) else {
            panic!("no cancel of {bytes}");
        };
        assert_eq!((process, key.len()), (7, bytes));
    }
    for bytes in [0, 3, 257] {
        assert!(first(&cancel(&vec![9; bytes])).is_err(), "{bytes}");
    }
}

#[test]
fn every_message_of_a_client_is_read() {
    let types = [0, 1, 0, 0, 0, 23];
    let text = |bytes: Vec<u8>| (bytes[0], bytes[5..].to_vec());
    let read = |bytes: &(u8, Vec<u8>)| FrontendMessage::read(bytes.0, &bytes.1).is_ok();
    for bytes in [
        query(b"SELECT 1"),
        parse(b"s", b"SELECT $1"),
        bind(b"p", b"s"),
        close_statement(b"s"),
        sync(),
        message(b'H', &[]),
        message(b'E', b"p\0\0\0\0\x05"),
        message(b'D', b"Pp\0"),
        message(b'F', &[0, 0, 0, 9, 0, 0, 0, 0, 0, 0]),
        message(b'd', b"x"),
        message(b'c', &[]),
        message(b'f', b"why\0"),
        message(b'X', &[]),
    ] {
        assert!(read(&text(bytes.clone())), "{bytes:?}");
    }
    for (tag, payload) in [
        (b'Q', &b"no end"[..]),
        (b'Q', b"a\0b\0"),
        (b'P', b"s\0text\0\0\x01"),
        (b'P', b"s\0text\0\0\0x"),
        (b'B', b"p\0s\0\0\0\0\x01\xff\xff\xff\xfe"),
        (b'B', b"p\0s\0\0\x02\0\0\0\0\0\0\0\0"),
        (b'B', b"p\0s\0\0\0\0\x01\0\0\0\x05ab"),
        (b'E', b"p\0\0\0\0"),
        (b'D', b"Xp\0"),
        (b'C', b""),
        (b'S', b"x"),
        (b'z', b""),
    ] {
        assert!(FrontendMessage::read(tag, payload).is_err(), "{payload:?}");
    }
    let payload = [b"s\0t\0", &types[..]].concat();
    let parsed = FrontendMessage::read(b'P', &payload).unwrap();
    let expected = Parse {
        statement: b"s",
        text: b"t",
        types: &types,
    };
    assert_eq!(parsed, FrontendMessage::Parse(expected));
    let closed = close_statement(b"s");
    let expected = FrontendMessage::Close {
        kind: ClosedKind::Statement,
        name: b"s",
    };
    assert_eq!(FrontendMessage::read(b'C', &closed[5..]), Ok(expected));
}

#[test]
fn a_value_of_a_bind_is_changed_and_the_rest_stays() {
    let payload = b"p\0s\0\0\x01\0\x01\0\x03\0\0\0\x01a\xff\xff\xff\xff\0\0\0\x02bc\0\x01\0\x01";
    let Ok(FrontendMessage::Bind(bound)) = FrontendMessage::read(b'B', payload) else {
        panic!("no Bind");
    };
    assert_eq!(bound.text_value(1), Some(&b"a"[..]));
    assert_eq!((bound.text_value(2), bound.text_value(0)), (None, None));
    assert_eq!(rewrite_bind(&bound, &[])[5..], payload[..]);
    let changed = rewrite_bind(&bound, &[(3, b"x")]);
    let Ok(FrontendMessage::Bind(changed)) = FrontendMessage::read(b'B', &changed[5..]) else {
        panic!("no Bind");
    };
    assert_eq!(changed.values, [Some(&b"a"[..]), None, Some(b"x")]);
    assert_eq!(
        (changed.formats, changed.results),
        (bound.formats, bound.results)
    );
    let head = |bytes| BindHead::read(bytes).map(|it| (it.portal, it.statement, it.has_values));
    assert_eq!(head(b"p\0s\0cut"), Ok((&b"p"[..], &b"s"[..], true)));
    assert_eq!(
        head(b"p\0s\0\0\0\0\0\0\0"),
        Ok((&b"p"[..], &b"s"[..], false))
    );
    assert!(head(b"p\0s\0\0\x01\0\0\0\x01").is_ok_and(|it| it.2));
}

/// proxysql 5273: the server, not the proxy, refuses a format that it does not know.
#[test]
fn an_unknown_format_is_passed() {
    let payload = b"\0\0\0\x01\0\x07\0\0\0\x01\0\x09";
    let Ok(FrontendMessage::Bind(bound)) = FrontendMessage::read(b'B', payload) else {
        panic!("no Bind");
    };
    assert_eq!(bound.formats, [7]);
}

/// supavisor 294: a row of nearly 1 GB.
#[test]
fn a_row_as_long_as_the_server_can_make_streams() {
    let header = [&b"D"[..], &0x4000_0003_i32.to_be_bytes()].concat();
    let next = Decoder::new(Side::Server)
        .next(&header)
        .map(|next| match next {
            Next::Begin { payload_bytes, .. } => payload_bytes,
            _ => 0,
        });
    assert_eq!(next, Ok(0x3fff_ffff));
}

#[test]
fn every_message_of_a_server_is_read() {
    let read = |tag, payload| BackendMessage::read(tag, payload);
    let status = |status| BackendMessage::ReadyForQuery(status);
    assert_eq!(read(b'Z', b"I"), Ok(status(TransactionStatus::Idle)));
    assert_eq!(read(b'Z', b"E"), Ok(status(TransactionStatus::Failed)));
    assert!(read(b'Z', b"x").is_err() && read(b'Z', b"II").is_err());
    assert_eq!(
        read(b'C', b"COMMIT\0"),
        Ok(BackendMessage::CommandComplete { tag: b"COMMIT" })
    );
    assert!(read(b'C', b"COMMIT").is_err());
    let sasl = Authentication::Sasl(vec![b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256"]);
    let payload = b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    assert_eq!(
        read(b'R', payload),
        Ok(BackendMessage::Authentication(sasl))
    );
    assert!(read(b'R', b"\0\0\0\x05abc").is_err());
    assert!(read(b'K', &[0, 0, 0, 1, 1, 2, 3]).is_err());
    let longest = [[0_u8; 4].as_slice(), &[1; 256]].concat();
    assert!(read(b'K', &longest).is_ok());
    let Ok(BackendMessage::NegotiateProtocolVersion(told)) =
        read(b'v', b"\0\x03\0\x02\0\0\0\x01_pq_.x\0")
    else {
        panic!("no negotiation");
    };
    assert_eq!(
        (told.version.minor, told.unknown),
        (2, vec![&b"_pq_.x"[..]])
    );
    assert_eq!(read(b'?', b""), Ok(BackendMessage::Other(b'?')));
}

/// pgbouncer CVE-2026-6666: an error need not have a SQLSTATE.
#[test]
fn an_error_without_fields_is_an_error() {
    for (payload, state, fatal) in [
        (&b"\0"[..], None, false),
        (b"Mtext\0\0", None, false),
        (b"SFATAL\0VFATAL\0C57P01\0Mx\0\0", Some(&b"57P01"[..]), true),
        (b"SFATAL\0C57P01\0\0", Some(b"57P01"), true),
    ] {
        let Ok(BackendMessage::Error(fields)) = BackendMessage::read(b'E', payload) else {
            panic!("no error");
        };
        assert_eq!((fields.sqlstate(), fields.is_fatal()), (state, fatal));
    }
    assert!(BackendMessage::read(b'E', b"C57P01\0").is_err());
    assert!(BackendMessage::read(b'E', b"").is_err());
}

#[test]
fn a_length_is_checked_before_its_bytes_are_awaited() {
    let header = |tag: u8, length: i32| [&[tag][..], &length.to_be_bytes()].concat();
    let next = |side, bytes: &[u8]| Decoder::new(side).next(bytes).map(|next| next.consumed());
    for (side, tag, length) in [
        (Side::Client, b'Q', 3),
        (Side::Client, b'Q', -1),
        (Side::Client, b'Q', i32::MAX),
        (Side::Client, b'S', 10_005),
        (Side::Client, b'p', 8),
        (Side::Client, 0, 8),
        (Side::Authenticating, b'Q', 8),
        (
            Side::Authenticating,
            b'p',
            AUTH_PAYLOAD_BYTES_MAX as i32 + 5,
        ),
        (Side::Server, b'D', i32::MIN),
        (Side::Server, 0xff, 8),
    ] {
        assert!(
            next(side, &header(tag, length)).is_err(),
            "{} {length}",
            tag as char
        );
    }
    // A long password (pgbouncer PR 1520) and the longest query are awaited.
    assert_eq!(next(Side::Authenticating, &header(b'p', 65_539)), Ok(0));
    assert_eq!(next(Side::Client, &header(b'Q', 0x4000_0003)), Ok(0));
    let mut decoder = Decoder::new(Side::Authenticating);
    decoder.authenticated();
    assert!(decoder.next(&query(b"SELECT 1")).is_ok());
}

#[test]
fn a_long_message_streams_with_its_names_and_data_streams_at_once() {
    let long = message(
        b'B',
        &[b"portal\0statement\0".to_vec(), vec![0; WHOLE_BYTES_MAX]].concat(),
    );
    let mut decoder = Decoder::new(Side::Client);
    assert_eq!(
        decoder.next(&long[..100]),
        Ok(Next::More {
            bytes: 5 + HEAD_BYTES
        })
    );
    let Ok(Next::Begin {
        tag,
        payload_bytes,
        head,
        ..
    }) = decoder.next(&long[..9000])
    else {
        panic!("it does not stream");
    };
    assert_eq!((tag, payload_bytes), (b'B', long.len() - 5));
    let head = BindHead::read(head).unwrap();
    assert_eq!(
        (head.portal, head.statement),
        (&b"portal"[..], &b"statement"[..])
    );
    let row = message(b'D', &vec![1; HEAD_BYTES + 1]);
    let mut decoder = Decoder::new(Side::Server);
    assert!(matches!(
        decoder.next(&row[..5]),
        Ok(Next::Begin { head: [], .. })
    ));
    assert!(matches!(
        decoder.next(&row[5..]),
        Ok(Next::Part { left: 0, .. })
    ));
    assert!(decoder.is_between_messages());
}

proptest! {
    #[test]
    fn chunks_make_no_difference(
        sizes in prop::collection::vec(0_usize..70_000, 1..8),
        chunks in prop::collection::vec(1_usize..5_000, 1..20),
        tags in prop::collection::vec(prop::sample::select(b"QPBd".to_vec()), 8),
    ) {
        let sent: Vec<(u8, Vec<u8>)> = sizes
            .iter()
            .zip(&tags)
            .map(|(size, tag)| (*tag, (0..size * 5).map(|at| at as u8).collect()))
            .collect();
        let bytes: Vec<u8> = sent.iter().flat_map(|(tag, body)| message(*tag, body)).collect();
        assert_eq!(decode(Side::Client, &bytes, &chunks).unwrap(), sent);
        assert_eq!(decode(Side::Server, &bytes, &[bytes.len()]).unwrap(), sent);
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        tag in any::<u8>(),
    ) {
        let _ = first(&bytes);
        let _ = FrontendMessage::read(tag, &bytes);
        let _ = BackendMessage::read(tag, &bytes);
        for side in [Side::Authenticating, Side::Client, Side::Server] {
            let mut decoder = Decoder::new(side);
            let mut rest = &bytes[..];
            while let Ok(next) = decoder.next(rest) {
                if next.consumed() == 0 {
                    break;
                }
                rest = &rest[next.consumed()..];
            }
        }
    }
}
