//! What idle client connections cost in memory.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::postgres::APP;
use super::servers::Contender;
use super::stats::setting;

/// Each has a backend of the server's, which is most of the memory.
const IDLE: u64 = 1000;

/// Opens connections that have been answered once, and prints what each proxy's memory grew by.
pub fn compare(contenders: &[Contender]) {
    let count = setting("BENCH_IDLE", IDLE);
    println!("\n{count} idle connections");
    println!("  {:<24} {:>9} {:>9}", "", "MiB", "KiB each");
    for contender in contenders {
        let Some(proxy) = contender.proxy() else {
            continue;
        };
        let before = proxy.resident_kib();
        let open: Vec<TcpStream> = (0..count).map(|_| answered(contender)).collect();
        let grown = proxy.resident_kib() - before;
        drop(open);
        println!(
            "  {:<24} {:>9.1} {:>9.2}",
            contender.name,
            grown / 1024.0,
            grown / count as f64
        );
    }
}

/// A session that had one answer: what a proxy sets up late is set up.
fn answered(contender: &Contender) -> TcpStream {
    let connected = TcpStream::connect(("127.0.0.1", contender.port));
    let mut stream = connected.unwrap_or_else(|error| panic!("{}: {error}", contender.name));
    let mut start = 196_608_u32.to_be_bytes().to_vec();
    let ticket = contender.ticket.as_deref();
    let ticket = ticket.map(|ticket| ("ringfence.token", ticket));
    for (name, value) in [("user", APP), ("database", APP)].into_iter().chain(ticket) {
        start.extend(format!("{name}\0{value}\0").into_bytes());
    }
    start.push(0);
    let length = u32::try_from(start.len() + 4).expect("a short packet");
    let packet = [&length.to_be_bytes()[..], &start].concat();
    stream.write_all(&packet).expect("a start");
    wait_until_ready(contender, &mut stream);
    stream.write_all(b"Q\0\0\0\x0dSELECT 1\0").expect("a query");
    wait_until_ready(contender, &mut stream);
    stream
}

/// Reads to the end of a ReadyForQuery, which ends what comes.
fn wait_until_ready(contender: &Contender, stream: &mut TcpStream) {
    let mut heard = vec![];
    let mut chunk = [0; 4096];
    while !heard.ends_with(b"Z\0\0\0\x05I") {
        let read = stream.read(&mut chunk).expect("an answer");
        let text = String::from_utf8_lossy(&heard);
        assert!(read > 0, "{}: has ended after {text}", contender.name);
        heard.extend(&chunk[..read]);
    }
}
