//! `ringfence lock` on a terminal. `script` (Debian: bsdutils) makes one.

mod cli_support;

use std::io::Write as _;
use std::process::{Command, Stdio};

use cli_support::{Lockd, until};

/// Runs a shell command on a terminal of its own, types what `type_when` says once its output
/// holds the text, and returns output and exit code.
fn on_terminal(lockd: &Lockd, command: &str, type_when: &[(&str, &str)]) -> (String, i32) {
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", command, "/dev/null"]);
    script
        .env("RINGFENCE_LOCKD", &lockd.url)
        .env("SHELL", "/bin/sh");
    script.stdin(Stdio::piped());
    let mut script = cli_support::Typed::start(&mut script);
    for (text, keys) in type_when {
        until(&format!("{text:?} is printed"), || {
            script.running.stdout().contains(text)
        });
        script.stdin.write_all(keys.as_bytes()).unwrap();
        script.stdin.flush().unwrap();
    }
    let code = script.running.code();
    (script.running.stdout(), code)
}

fn lock(cmd: &str) -> String {
    format!(
        "{} lock a -- sh -c '{cmd}'",
        env!("CARGO_BIN_EXE_ringfence")
    )
}

#[test]
fn cmd_reads_from_the_terminal_and_so_does_the_one_after_it() {
    let lockd = Lockd::start();
    let command = format!(
        "{}; echo code $?; echo second; read y; echo after $y",
        lock("echo first; read x; echo got $x; exit 5")
    );
    let typed = [("first", "one\n"), ("second", "two\n")];
    let (out, _) = on_terminal(&lockd, &command, &typed);
    assert!(out.contains("got one") && out.contains("code 5"), "{out}");
    assert!(
        out.contains("after two"),
        "the terminal was not taken back: {out}"
    );
}

#[test]
fn ctrl_c_ends_cmd_and_the_lock_is_released() {
    let lockd = Lockd::start();
    // `exec`: a shell that is interrupted while it forks may swallow the signal.
    let (out, code) = on_terminal(
        &lockd,
        &lock("echo first; exec sleep 1000"),
        &[("first", "\x03")],
    );
    assert_eq!(code, 130, "{out}");
    assert!(lockd.is_free("a"));
}

#[test]
fn ctrl_z_stops_both_and_fg_goes_on() {
    let lockd = Lockd::start();
    let cmd = lock("echo started=$((40+2)); read x; echo got $x; exit 5");
    // What is typed is echoed too, so what is waited for is built by the shell.
    let line = format!("{cmd}\n");
    let typed = [
        ("ready", line.as_str()),
        ("started=42", "\x1a"),
        ("Stopped", "fg\n"),
        ("Stopped", "one\n"),
        ("got one", "echo code=$?; exit\n"),
    ];
    let shell = "PS1='rea''dy$ ' bash --norc --noprofile -i";
    let (out, _) = on_terminal(&lockd, shell, &typed);
    assert!(out.contains("code=5"), "{out}");
    assert!(lockd.is_free("a"));
}
