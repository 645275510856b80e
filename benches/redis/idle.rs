//! What idle client connections cost in memory.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::servers::Contender;
use super::stats::setting;

/// A proxy that opens one to Redis for each has two files per connection, and 20,000 files are what
/// the hard limit often is.
const IDLE: u64 = 9_500;

/// Lets this process, and the servers that it starts, have as many files as the hard limit allows.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, all).expect("more open files");
}

/// Opens connections that have been answered once, and prints what each contender's memory grew by.
pub fn compare(contenders: &[Contender]) {
    let count = setting("BENCH_IDLE", IDLE);
    println!("\n{count} idle connections");
    println!("  {:<20} {:>9} {:>9}", "", "MiB", "KiB each");
    for contender in contenders {
        let before = contender.measured().resident_kib();
        let open: Vec<TcpStream> = (0..count).map(|_| answered(contender)).collect();
        let grown = contender.measured().resident_kib() - before;
        drop(open);
        println!(
            "  {:<20} {:>9.1} {:>9.2}",
            contender.name,
            grown / 1024.0,
            grown / count as f64
        );
    }
}

/// A connection that had one answer: what a proxy sets up late is set up.
fn answered(contender: &Contender) -> TcpStream {
    let name = contender.name;
    let connected = TcpStream::connect(("127.0.0.1", contender.port));
    let mut stream = connected.unwrap_or_else(|error| panic!("{name}: {error}"));
    // twemproxy knows no PING of its own in old versions; all know GET.
    stream
        .write_all(b"*2\r\n$3\r\nGET\r\n$4\r\nidle\r\n")
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut answer = [0; 5];
    stream
        .read_exact(&mut answer)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(
        &answer == b"$-1\r\n" || &answer == b"_\r\n\0\0",
        "{name}: {answer:?}"
    );
    stream
}
