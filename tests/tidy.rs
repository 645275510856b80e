//! What no compiler checks: who imports whom (ARCHITECTURE.md), what the pure cores never touch,
//! how long files and lines are, and that nothing of one machine is in the repository.

use std::fs;
use std::path::{Path, PathBuf};

const LEAVES: [&str; 4] = ["token", "lock_name", "ticket", "clock"];

/// Module, what it may import beside itself and the leaves.
const MAY_IMPORT: [(&str, &[&str]); 17] = [
    ("token", &[]),
    ("lock_name", &[]),
    ("ticket", &[]),
    ("clock", &[]),
    ("telemetry", &[]),
    ("incoming", &[]),
    ("gate", &[]),
    ("protocol", &[]),
    ("queue", &[]),
    ("store", &["proto", "etcd_proto", "telemetry"]),
    ("audit", &["proto", "telemetry"]),
    ("client", &["proto"]),
    // The rules of a listener are compiled by their protocol.
    ("config", &["protocol"]),
    (
        "proxy",
        &[
            "gate",
            "protocol",
            "audit",
            "client",
            "config",
            "incoming",
            "proto",
            "telemetry",
        ],
    ),
    (
        "lockd",
        &[
            "queue",
            "store",
            "audit",
            "client",
            "config",
            "incoming",
            "proto",
            "telemetry",
        ],
    ),
    ("admin", &["audit", "incoming", "proto", "telemetry"]),
    // The bounds of its arguments.
    ("cli", &["client"]),
];

/// What the pure cores never name, and why: time is an argument, and they do no I/O.
const NEVER_IN_CORES: [&str; 17] = [
    "tokio",
    "tonic",
    "hyper",
    "std::net",
    "std::fs",
    "std::env",
    "std::io",
    "std::process",
    "std::thread::sleep",
    "std::time::Instant",
    "SystemTime",
    "Instant::now",
    "clock::boottime",
    "tracing::debug",
    "tracing::info",
    "tracing::warn",
    "tracing::error",
];

const CORES: [&str; 3] = ["gate", "protocol", "queue"];

const LINES_MAX: usize = 500;
const COLUMNS_MAX: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files under a folder with one of these endings, with their texts.
fn files(folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let mut found = vec![];
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push((relative(&path), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// The files of a module, without those that hold only tests.
fn sources(module: &str) -> Vec<(String, String)> {
    let mut found = files(&format!("src/{module}"), &[".rs"]);
    let file: PathBuf = root().join(format!("src/{module}.rs"));
    if let Ok(text) = fs::read_to_string(&file) {
        found.push((relative(&file), text));
    }
    found
}

/// The code of a file: no comments, no texts, nothing from its tests on.
fn code(text: &str) -> String {
    let mut kept = String::new();
    for line in without_tests(text).lines() {
        let mut in_text = false;
        let mut previous = ' ';
        let mut chars = line.chars().peekable();
        while let Some(char) = chars.next() {
            match char {
                '/' if !in_text && chars.peek() == Some(&'/') => break,
                '"' if previous != '\\' && previous != '\'' => in_text = !in_text,
                _ if !in_text => kept.push(char),
                _ => {}
            }
            previous = if previous == '\\' { ' ' } else { char };
        }
        kept.push('\n');
    }
    kept
}

/// Cuts a file at its tests, which stand last: `#[cfg(test)]` before `mod tests {`.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {")
        .map_or(text, |at| &text[..at])
}

fn is_test_file(path: &str, all: &[(String, String)]) -> bool {
    // A module that its parent declares under `#[cfg(test)]`.
    let stem = path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    let name = stem.rsplit('/').next().unwrap_or(stem);
    let declared = format!("#[cfg(test)]\nmod {name};");
    let parent = stem.rsplit_once('/').map_or("", |(parent, _)| parent);
    let near = |other: &str| {
        other == format!("{parent}.rs")
            || other == format!("{parent}/mod.rs")
            || other == "src/lib.rs"
    };
    all.iter()
        .any(|(other, text)| near(other) && text.contains(&declared))
}

/// The modules of the crate's root that the code of this file names, as `crate::x` or through
/// `super`.
fn imports(path: &str, code: &str) -> Vec<String> {
    let depth = depth(path);
    let mut found = vec![];
    for path in paths(code) {
        let words: Vec<&str> = path.split("::").filter(|word| *word != "self").collect();
        let ups = words.iter().take_while(|word| **word == "super").count();
        let module = match words.first() {
            Some(&"crate") => words.get(1),
            _ if ups >= depth => words.get(ups),
            _ => None,
        };
        found.extend(module.map(ToString::to_string));
    }
    found.sort();
    found.dedup();
    found
}

/// How many times `super` leads from a file's module to the root: 1 for `src/gate.rs` and
/// `src/gate/mod.rs`.
fn depth(path: &str) -> usize {
    let stem = path.trim_end_matches(".rs").trim_end_matches("/mod");
    stem.split('/').count() - 1
}

/// Every path and every name in code, groups within braces written out: `a::{b, c::{self, d}}` is
/// `a::b`, `a::c`, `a::c::d`.
fn paths(code: &str) -> Vec<String> {
    let mut found = vec![];
    let mut rest = code;
    while let Some(at) = rest.find(is_of_name) {
        let path = path_at(&rest[at..]);
        rest = &rest[at + path.len()..];
        match rest.strip_prefix("::{") {
            None => found.push(path.to_owned()),
            Some(group) => {
                let members = top_level(group);
                rest = &group[members.iter().map(|member| member.len() + 1).sum()..];
                let inner = members.iter().flat_map(|member| paths(member));
                found.extend(inner.map(|inner| match &*inner {
                    "self" => path.to_owned(),
                    _ => format!("{path}::{inner}"),
                }));
            }
        }
    }
    found
}

fn is_of_name(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// The path at the begin of a text, which begins with a name.
fn path_at(text: &str) -> &str {
    let mut end = 0;
    loop {
        let name = text[end..].find(|char| !is_of_name(char));
        end = name.map_or(text.len(), |length| end + length);
        let next = text[end..].strip_prefix("::");
        match next.and_then(|next| next.chars().next()) {
            Some(char) if is_of_name(char) => end += 2,
            _ => return &text[..end],
        }
    }
}

/// The members of a group of imports, up to its closing brace.
fn top_level(group: &str) -> Vec<&str> {
    let (mut members, mut depth, mut start) = (vec![], 0_usize, 0);
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => {
                members.push(&group[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                members.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    members
}

/// Complaints, empty when all is well.
fn check_imports(module: &str, may: &[&str], path: &str, text: &str) -> Vec<String> {
    imports(path, &code(text))
        .into_iter()
        .filter(|name| name != module && !LEAVES.contains(&name.as_str()))
        .filter(|name| !may.contains(&name.as_str()))
        .map(|name| format!("{path}: {module} may not import {name}"))
        .collect()
}

fn check_core(path: &str, text: &str) -> Vec<String> {
    let paths = paths(&code(text)).join("\n");
    NEVER_IN_CORES
        .iter()
        .filter(|word| names(&paths, word))
        .map(|word| format!("{path}: a pure core names `{word}`"))
        .collect()
}

/// Whether code has the word with nothing of a name around it.
fn names(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(is_of_name);
        let after = code[at + word.len()..]
            .chars()
            .next()
            .is_some_and(is_of_name);
        !(before || after && word.ends_with(is_of_name))
    })
}

fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn modules_import_what_the_architecture_lets_them() {
    let all = files("src", &[".rs"]);
    let mut complaints = vec![];
    for (module, may) in MAY_IMPORT {
        let sources = sources(module);
        for (path, text) in sources.iter().filter(|(path, _)| !is_test_file(path, &all)) {
            complaints.extend(check_imports(module, may, path, text));
        }
    }
    none(&complaints);
}

#[test]
fn every_module_has_its_line_in_the_table() {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let known = |name: &str| {
        MAY_IMPORT.iter().any(|(module, _)| *module == name)
            // The composition roots import everything.
            || name == "cmd"
    };
    for line in lib.lines() {
        let name = line
            .strip_prefix("pub mod ")
            .and_then(|rest| rest.strip_suffix(';'));
        assert!(
            name.is_none_or(known),
            "{line}: not in the table of tests/tidy.rs"
        );
    }
}

#[test]
fn the_pure_cores_do_nothing_but_compute() {
    let all = files("src", &[".rs"]);
    let mut complaints = vec![];
    for module in CORES {
        let sources = sources(module);
        for (path, text) in sources.iter().filter(|(path, _)| !is_test_file(path, &all)) {
            complaints.extend(check_core(path, text));
        }
    }
    none(&complaints);
}

#[test]
fn files_and_lines_are_short() {
    let all = files("src", &[".rs"]);
    let mut complaints = vec![];
    for (path, text) in &all {
        let lines = without_tests(text).lines().count();
        if lines > LINES_MAX && !is_test_file(path, &all) {
            complaints.push(format!(
                "{path}: {lines} lines without tests, {LINES_MAX} at most"
            ));
        }
    }
    let tests = files("tests", &[".rs"])
        .into_iter()
        .chain(files("benches", &[".rs"]));
    for (path, text) in all.into_iter().chain(tests) {
        for (at, line) in text.lines().enumerate() {
            // A text that cannot be broken may stick out.
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !line.contains('"') {
                complaints.push(format!("{path}:{}: {columns} columns", at + 1));
            }
        }
    }
    none(&complaints);
}

#[test]
fn nothing_of_one_machine_is_in_the_repository() {
    // Put together here, so that this file does not hold them.
    let folders = ["home", "work", "root", "Users"].map(|name| format!("/{name}/"));
    let endings = [
        ".rs", ".toml", ".md", ".proto", "Makefile", ".yml", ".sh", ".py",
    ];
    let mut complaints = vec![];
    for (path, text) in files("", &endings) {
        for (at, line) in text.lines().enumerate() {
            let folder = folders.iter().find(|folder| {
                line.match_indices(folder.as_str()).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    before.is_none_or(|char| " \"'`=(:".contains(char))
                })
            });
            if let Some(folder) = folder {
                complaints.push(format!(
                    "{path}:{}: a path of one machine ({folder})",
                    at + 1
                ));
            }
        }
    }
    none(&complaints);
}

#[test]
fn no_module_is_named_for_leftovers() {
    let words = [
        "util", "utils", "helper", "helpers", "manager", "common", "misc",
    ];
    let mut complaints = vec![];
    for (path, _) in files("src", &[".rs"]) {
        let stem = path.trim_end_matches(".rs");
        if stem.split('/').any(|part| words.contains(&part)) {
            complaints.push(format!("{path}: name it for what it does"));
        }
    }
    none(&complaints);
}

#[test]
fn no_import_is_a_glob_and_no_channel_is_unbounded() {
    let mut complaints = vec![];
    for (path, text) in files("src", &[".rs"]) {
        let code = code(&text);
        for line in code.lines().map(str::trim) {
            let glob = line.starts_with("use ") && line.ends_with("::*;");
            if glob {
                complaints.push(format!("{path}: `{line}`"));
            }
        }
        for word in [
            "unbounded_channel",
            "mpsc::unbounded",
            "sync::mpsc::channel",
        ] {
            if names(&code, word) {
                complaints.push(format!("{path}: `{word}`: every queue has a bound"));
            }
        }
    }
    none(&complaints);
}

#[test]
fn every_metric_is_in_the_readme() {
    let read = |path| fs::read_to_string(root().join(path)).unwrap();
    let (source, readme) = (read("src/telemetry.rs"), read("README.md"));
    let mut names = source.split('"').filter(|it| it.starts_with("ringfence_"));
    assert!(names.clone().count() > 4);
    let missing = names.find(|name| !readme.contains(&format!("| `{name}` |")));
    assert_eq!(missing, None);
}

/// The checks above find what they look for.
#[test]
fn a_breach_of_each_rule_is_found() {
    let check_in = |path: &str, text: &str| check_imports("gate", &["proto"], path, text).len();
    let check = |module, text| check_imports(module, &["proto"], "src/gate/a.rs", text).len();
    assert_eq!(
        check("gate", "use crate::token::Token;\nuse crate::gate::Gate;"),
        0
    );
    assert_eq!(check("gate", "use crate::proxy::Session;"), 1);
    assert_eq!(check("gate", "fn f() -> crate::lockd::X {}"), 1);
    assert_eq!(
        check("gate", "use crate::{token::{A, B}, proxy::{C, D}, lockd};"),
        2
    );
    assert_eq!(
        check("gate", "// crate::proxy\nlet a = \"crate::proxy\";"),
        0
    );
    assert_eq!(
        check(
            "gate",
            "#[cfg(test)]\nmod tests {\n use crate::proxy::X;\n}"
        ),
        0
    );

    for (path, ups) in [
        ("src/gate.rs", "super"),
        ("src/gate/mod.rs", "super"),
        ("src/gate/a.rs", "super::super"),
        ("src/gate/a/b.rs", "super::super::super"),
    ] {
        let told = |tail: &str| check_in(path, &format!("use {ups}::{tail};"));
        assert_eq!(told("proxy::Session"), 1, "{path}");
        assert_eq!(told("{token::Token, proxy::{C, D}, lockd}"), 2, "{path}");
        assert_eq!(told("gate::word::Word"), 0, "{path}");
    }
    assert_eq!(check_in("src/gate/a.rs", "use super::proxy::Session;"), 0);
    assert_eq!(
        check_in("src/gate/a.rs", "use super::{b, super::proxy};"),
        1
    );
    assert_eq!(check_in("src/gate/mod.rs", "use self::super::proxy::X;"), 1);

    let core = |text| check_core("f.rs", text).len();
    assert_eq!(core("use std::time::Duration; fn tokio_like() {}"), 0);
    assert_eq!(core("use tokio::sync::Mutex;"), 1);
    assert_eq!(core("let now = std::time::Instant::now();"), 2);
    assert_eq!(core("use std::fs;"), 1);
    assert_eq!(core("use std::{fmt, fs};"), 1);
    assert_eq!(
        core("use std::{fmt, io::{self, Write as _}, net::IpAddr};"),
        2
    );
    assert_eq!(core("use std::time::{Duration, Instant};"), 1);
    assert_eq!(core("use std::{fmt, time::Duration, net_like::X};"), 0);
    assert_eq!(core("let text = \"tokio\"; // tokio"), 0);
}
