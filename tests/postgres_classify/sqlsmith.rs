//! Statements that sqlsmith makes up for the same schema: it knows every function, operator and
//! type of the server, and puts them where nobody would.

use std::process::{Command, Stdio};

use ringfence::protocol::postgres::classify::Classifier;

use crate::server::{Answer, Server};
use crate::{catalog, is_read, statements, view};

/// How many statements; a longer campaign sets `RINGFENCE_SQLSMITH_STATEMENTS`, and another seed
/// `RINGFENCE_SQLSMITH_SEED`.
const STATEMENTS: u64 = 600;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn made_up(server: &Server, seed: u64) -> Vec<String> {
    let count = number("RINGFENCE_SQLSMITH_STATEMENTS", STATEMENTS);
    let target = format!(
        "--target=host=127.0.0.1 port={} user=postgres dbname=postgres",
        server.address().port()
    );
    let output = Command::new("sqlsmith")
        .args([&*target, "--dry-run"])
        .arg(format!("--max-queries={count}"))
        .arg(format!("--seed={seed}"))
        .stderr(Stdio::null())
        .output()
        .expect("sqlsmith is installed (make test-needs)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let texts = text.split(";\n").map(str::trim);
    // What it says about itself stands before the first.
    let texts = texts.filter(|text| !text.is_empty() && !text.contains("Loading "));
    texts.map(str::to_owned).collect()
}

#[test]
fn what_is_made_up_and_called_a_read_is_one() {
    let server = Server::start();
    let mut client = server.connect();
    for text in statements::SCHEMA {
        assert_eq!(client.query(text), Answer::Done, "{text}");
    }
    let seed = number("RINGFENCE_SQLSMITH_SEED", 1);
    println!("seed {seed}");
    let texts = made_up(&server, seed);
    let loaded = catalog::load(&mut client);
    let path: [Box<str>; 2] = ["$user".into(), "public".into()];
    let view = view(&loaded, &path);
    let classifier = Classifier::new();
    let (mut reads, mut writes, mut done, mut wrong) = (0, 0, 0, vec![]);
    for text in texts {
        if !is_read(&classifier, &view, &text) {
            writes += 1;
            continue;
        }
        reads += 1;
        assert_eq!(client.query("BEGIN READ ONLY"), Answer::Done);
        client.query("SET LOCAL statement_timeout = '300ms'");
        match client.query(&text) {
            Answer::Done => done += 1,
            // read_only_sql_transaction
            Answer::Error(state) if state == "25006" => wrong.push(text),
            Answer::Error(_) => {}
        }
        assert_eq!(client.query("ROLLBACK"), Answer::Done);
    }
    println!("{reads} reads, of which {done} succeed, {writes} writes");
    assert!(wrong.is_empty(), "called reads, and write: {wrong:#?}");
    assert!(done > 20 && writes > 20, "{done} of {reads}, {writes}");
}
