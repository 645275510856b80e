//! `ringfence lock` with real children.

mod cli_support;

use std::time::{Duration, Instant};

use cli_support::{
    Lockd, Running, boottime_ms, is_running, is_stopped, lines, number_in, ringfence, until,
};
use rustix::process::{Pid, Signal, kill_process_group};

fn code(output: &std::process::Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

#[test]
fn cmd_finds_its_ticket_and_its_exit_code_passes() {
    let lockd = Lockd::start();
    let script = "echo $FENCING_LOCK; echo $FENCING_TOKEN_NUMBER; echo $FENCING_TOKEN; exit 7";
    let mut last = 0;
    for _ in 0..2 {
        let ran = lockd.run(&["lock", "tenant/42", "--", "sh", "-c", script]);
        assert_eq!(code(&ran), 7, "{ran:?}");
        let out = String::from_utf8(ran.stdout).unwrap();
        let [lock, number, ticket] = out.lines().collect::<Vec<_>>()[..] else {
            panic!("{out}")
        };
        assert_eq!(lock, "tenant/42");
        assert!(ticket.starts_with("v4.public."), "{ticket}");
        let number = number.parse::<u64>().unwrap();
        assert!(number > last, "{number} after {last}");
        last = number;
        assert!(lockd.is_free("tenant/42"));
    }
}

#[test]
fn exit_codes_of_a_cmd_that_is_killed_or_cannot_run() {
    let lockd = Lockd::start();
    let cases = [
        (&["sh", "-c", "kill -9 $$"][..], 137),
        (&["/no/such/program"], 127),
        (&["/etc/passwd"], 126),
    ];
    for (command, expected) in cases {
        let ran = lockd.run(&[&["lock", "a", "--"], command].concat());
        assert_eq!(code(&ran), expected, "{command:?}: {ran:?}");
    }
    assert!(lockd.is_free("a"));
}

#[test]
fn wrong_usage_is_64_and_help_is_none() {
    for wrong in [
        &["lock"][..],
        &["lock", "a//b"],
        &["lock", "a", "--"],
        &["lock", "a", "--ttl", "1"],
        &["no-such"],
    ] {
        let ran = ringfence().args(wrong).output().unwrap();
        assert_eq!(code(&ran), 64, "{wrong:?}");
        assert!(!ran.stderr.is_empty());
    }
    let bad_address = ["lock", "a", "--lockd", "not an address", "--", "true"];
    assert_eq!(code(&ringfence().args(bad_address).output().unwrap()), 64);
    assert_eq!(code(&ringfence().arg("--help").output().unwrap()), 0);
    assert_eq!(
        code(&ringfence().args(["lock", "--help"]).output().unwrap()),
        0
    );
}

#[test]
fn an_unreachable_service_is_69_and_cmd_never_runs() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", unused.local_addr().unwrap());
    drop(unused);
    let ran = ringfence()
        .args(["lock", "a", "--lockd", &url, "--", "echo", "ran"])
        .output();
    let ran = ran.unwrap();
    assert_eq!(code(&ran), 69, "{ran:?}");
    assert!(ran.stdout.is_empty());
}

#[test]
fn a_second_endpoint_is_used_when_the_first_is_not_there() {
    let lockd = Lockd::start();
    let both = format!("http://127.0.0.1:1,{}", lockd.url);
    let ran = ringfence()
        .args(["lock", "a", "--lockd", &both, "--", "true"])
        .output()
        .unwrap();
    assert_eq!(code(&ran), 0, "{ran:?}");
}

#[test]
fn not_acquired_in_time_is_75() {
    let lockd = Lockd::start();
    let holder = lockd.hold("a");
    for wait in ["0", "300ms"] {
        let ran = lockd.run(&["lock", "a", "--wait", wait, "--", "echo", "ran"]);
        assert_eq!(code(&ran), 75, "{ran:?}");
        assert!(ran.stdout.is_empty());
    }
    assert_eq!(lockd.show("a")["waiters"].as_array().unwrap().len(), 0);
    drop(holder);
}

#[test]
fn without_cmd_the_lock_is_held_until_a_signal() {
    let lockd = Lockd::start();
    for signal in [Signal::INT, Signal::TERM, Signal::USR2] {
        let mut holder = lockd.hold("a");
        assert!(!lockd.is_free("a"));
        holder.signal(signal);
        assert_eq!(holder.code(), 0, "{}", holder.stderr());
        assert!(lockd.is_free("a"));
    }
}

#[test]
fn a_ticket_that_nobody_is_told_gives_the_lock_up() {
    let lockd = Lockd::start();
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = lockd.ringfence();
    let ran = command.args(["lock", "a"]).stdout(full).output().unwrap();
    assert_eq!(code(&ran), 1, "{ran:?}");
    assert!(lockd.is_free("a"));
}

#[test]
fn a_closed_stderr_breaks_nothing() {
    let lockd = Lockd::start();
    let unheard = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = lockd.ringfence();
        command.args(args).stderr(writer).output().unwrap()
    };
    assert_eq!(code(&unheard(&["lock", "a", "--", "/no/such"])), 127);
    assert_eq!(
        code(&unheard(&["show", "a", "--lockd", "http://127.0.0.1:1"])),
        69
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.toml");
    std::fs::write(&file, "data_dirr = 1").unwrap();
    let check = unheard(&["proxy", "--check", "--config", file.to_str().unwrap()]);
    assert_eq!(code(&check), 64);
    // What is logged goes nowhere, and takes nothing with it.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = lockd.ringfence();
    command.env("RINGFENCE_LOG", "trace").stderr(writer);
    let ran = command.args(["lock", "a", "--", "true"]).output().unwrap();
    assert_eq!(code(&ran), 0, "{ran:?}");
}

#[test]
fn a_cmd_whose_lock_is_lost_ends_though_nobody_hears_why() {
    let mut lockd = Lockd::start();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let pid = lockd.path("pid");
    let script = format!("echo $$ > {}; exec sleep 600", pid.display());
    let mut command = lockd.ringfence();
    command.args(["lock", "a", "--ttl", "1s", "--", "sh", "-c", &script]);
    let mut holder = command.stderr(writer).spawn().unwrap();
    let pid = number_in(&pid);
    lockd.process.signal(Signal::KILL);
    lockd.process.wait();
    assert_eq!(holder.wait().unwrap().code(), Some(76));
    assert!(!is_running(pid));
}

#[test]
fn a_signal_ends_the_waiting_and_the_place_is_given_up() {
    let lockd = Lockd::start();
    let _holder = lockd.hold("a");
    let mut waiter = lockd.start_command(&["lock", "a", "--", "echo", "ran"]);
    until("it waits", || {
        lockd.show("a")["waiters"].as_array().unwrap().len() == 1
    });
    waiter.signal(Signal::INT);
    assert_eq!(waiter.code(), 130);
    assert_eq!(waiter.stdout(), "");
    until("its place is given up", || {
        lockd.show("a")["waiters"].as_array().unwrap().is_empty()
    });
}

#[test]
fn a_waiter_is_granted_when_the_holder_ends() {
    let lockd = Lockd::start();
    let mut holder = lockd.hold("a");
    let mut waiter = lockd.start_command(&["lock", "a", "--", "echo", "ran"]);
    until("it waits", || {
        lockd.show("a")["waiters"].as_array().unwrap().len() == 1
    });
    holder.signal(Signal::INT);
    assert_eq!(holder.code(), 0);
    assert_eq!(waiter.code(), 0, "{}", waiter.stderr());
    assert_eq!(waiter.stdout(), "ran\n");
}

#[test]
fn signals_are_passed_on_to_the_group() {
    let lockd = Lockd::start();
    let script = "trap 'exit 9' TERM; trap 'exit 8' HUP; trap 'exit 7' USR1; trap 'exit 6' ALRM
        echo ready; while :; do sleep 0.05; done";
    for (signal, expected) in [
        (Signal::TERM, 9),
        (Signal::HUP, 8),
        (Signal::USR1, 7),
        (Signal::ALARM, 6),
    ] {
        let mut ran = lockd.start_command(&["lock", "a", "--", "sh", "-c", script]);
        ran.line_with("ready");
        ran.signal(signal);
        assert_eq!(ran.code(), expected, "{}", ran.stderr());
        assert!(lockd.is_free("a"));
    }
}

#[test]
fn grandchildren_are_gone_before_the_lock_is_released() {
    let lockd = Lockd::start();
    let (pid_file, log) = (lockd.path("pid"), lockd.path("log"));
    // The grandchild ignores SIGTERM and notes that it lives. Its parent ends once it does.
    let script = format!(
        "(trap '' TERM; while :; do cat /proc/uptime >> {log}; sleep 0.02; done) &\n\
         echo $! > {pid}; while [ ! -s {log} ]; do sleep 0.02; done; exit 3",
        log = log.display(),
        pid = pid_file.display()
    );
    let mut ran =
        lockd.start_command(&["lock", "a", "--grace", "700ms", "--", "sh", "-c", &script]);
    let grandchild = number_in(&pid_file);
    let mut next = lockd.start_command(&["lock", "a", "--", "cat", "/proc/uptime"]);
    assert_eq!(ran.code(), 3, "{}", ran.stderr());
    assert!(!is_running(grandchild));
    assert_eq!(next.code(), 0);
    let begun = uptime_ms(next.stdout().lines().next().unwrap());
    let lived = uptime_ms(lines(&log).last().unwrap());
    assert!(
        lived <= begun,
        "the grandchild ran at {lived}, the next holder began at {begun}"
    );
}

/// The first field of /proc/uptime, which is CLOCK_BOOTTIME in hundredths of a second.
fn uptime_ms(line: &str) -> u64 {
    let seconds = line.split(' ').next().unwrap();
    (seconds.parse::<f64>().unwrap() * 1000.0).round() as u64
}

#[test]
fn sigterm_comes_before_the_lease_can_have_ended_when_the_service_dies() {
    let mut lockd = Lockd::start();
    let (ready, told) = (lockd.path("ready"), lockd.path("told"));
    let script = format!(
        "trap 'cat /proc/uptime > {told}; exit 0' TERM; echo $$ > {ready}\n\
         while :; do sleep 0.02; done",
        told = told.display(),
        ready = ready.display()
    );
    let ttl_ms = 3000;
    let mut command = lockd.ringfence();
    command.env("RINGFENCE_LOG", "ringfence::client=debug");
    command.args(["lock", "a", "--ttl", "3s", "--", "sh", "-c", &script]);
    let mut ran = Running::start(&mut command);
    let cmd = number_in(&ready);
    until("it is renewed", || last_renewal(&ran.stderr()).is_some());
    lockd.process.signal(Signal::KILL);
    lockd.process.wait();
    let killed = boottime_ms();

    assert_eq!(ran.code(), 76, "{}", ran.stderr());
    assert!(!is_running(cmd));
    let renewed = last_renewal(&ran.stderr()).unwrap();
    let told = uptime_ms(&lines(&told)[0]);
    assert!(
        told < renewed + ttl_ms,
        "told at {told}, but the lease of {renewed} had ended"
    );
    // And not at the first trouble: most of the lease is used to reach the service again.
    assert!(
        told > killed,
        "told at {told}, before the service was killed at {killed}"
    );
    assert!(
        told > renewed + ttl_ms / 2,
        "told at {told}, renewed at {renewed}"
    );
}

/// When the last renewal that was answered was sent, from the client's own log.
fn last_renewal(log: &str) -> Option<u64> {
    let at = log.rfind("sent_ms=")? + "sent_ms=".len();
    let digits: String = log[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[test]
fn a_cmd_that_ignores_sigterm_is_killed_after_the_grace() {
    let mut lockd = Lockd::start();
    let ready = lockd.path("ready");
    let script = format!(
        "trap '' TERM; echo $$ > {}; while :; do sleep 0.02; done",
        ready.display()
    );
    let args = [
        "lock", "a", "--ttl", "1s", "--grace", "200ms", "--", "sh", "-c", &script,
    ];
    let mut ran = lockd.start_command(&args);
    let cmd = number_in(&ready);
    lockd.process.signal(Signal::KILL);
    lockd.process.wait();
    assert_eq!(ran.code(), 76, "{}", ran.stderr());
    assert!(!is_running(cmd));
}

#[test]
fn a_cmd_that_is_stopped_when_the_lock_is_lost_goes_on_to_its_end() {
    let mut lockd = Lockd::start();
    let (ready, told) = (lockd.path("ready"), lockd.path("told"));
    let script = format!(
        "trap 'echo told > {told}; exit 0' TERM; echo $$ > {ready}\n\
         while :; do sleep 0.02; done",
        told = told.display(),
        ready = ready.display()
    );
    // A lease that a loaded machine renews in time, and a grace that is longer than the test may
    // take: SIGKILL, which ends what is stopped, must not be what ends it.
    let args = [
        "lock", "a", "--ttl", "5s", "--grace", "1h", "--", "sh", "-c", &script,
    ];
    let mut ran = lockd.start_command(&args);
    let cmd = number_in(&ready);
    let group = Pid::from_raw(cmd.try_into().unwrap()).unwrap();
    // Again where the signal with which ringfence lets its CMD go comes after it.
    until("it stands still", || {
        kill_process_group(group, Signal::STOP).unwrap();
        is_stopped(cmd)
    });
    lockd.process.signal(Signal::KILL);
    lockd.process.wait();
    let lost = Instant::now();
    assert_eq!(ran.code(), 76, "{}", ran.stderr());
    assert!(!is_running(cmd));
    assert_eq!(lines(&told), ["told"]);
    assert!(lost.elapsed() < Duration::from_secs(30));
}

#[test]
fn stopped_past_its_lease_and_continued_it_kills_cmd_at_once() {
    let lockd = Lockd::start();
    let ready = lockd.path("ready");
    // SIGTERM would not end it, and the grace is longer than the test may take.
    let script = format!(
        "trap '' TERM; echo $$ > {}; while :; do sleep 0.02; done",
        ready.display()
    );
    let args = [
        "lock", "a", "--ttl", "1s", "--grace", "1h", "--", "sh", "-c", &script,
    ];
    let mut ran = lockd.start_command(&args);
    let cmd = number_in(&ready);
    ran.signal(Signal::STOP);
    // The lease ends; another one gets the lock, while CMD runs on. The ticket is for that time.
    let next = lockd.run(&["lock", "a", "--wait", "30s", "--", "true"]);
    assert_eq!(code(&next), 0, "{next:?}");
    assert!(is_running(cmd));
    let continued = Instant::now();
    ran.signal(Signal::CONT);
    assert_eq!(ran.code(), 76, "{}", ran.stderr());
    assert!(!is_running(cmd));
    assert!(continued.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_holder_without_cmd_is_told_of_the_loss_too() {
    let mut lockd = Lockd::start();
    let mut holder = lockd.start_command(&["lock", "a", "--ttl", "1s"]);
    holder.first_line();
    lockd.process.signal(Signal::KILL);
    lockd.process.wait();
    assert_eq!(holder.code(), 76, "{}", holder.stderr());
}

#[test]
fn a_stopped_service_is_a_lost_lock_as_well() {
    let lockd = Lockd::start();
    let mut ran = lockd.start_command(&["lock", "a", "--ttl", "1s", "--", "sleep", "1000"]);
    until("it holds the lock", || !lockd.is_free("a"));
    // The connection stays open and silent.
    lockd.process.signal(Signal::STOP);
    assert_eq!(ran.code(), 76, "{}", ran.stderr());
}

#[test]
fn a_lock_is_kept_far_past_its_time_to_live() {
    let lockd = Lockd::start();
    let args = ["lock", "a", "--ttl", "1s", "--", "sleep", "3"];
    let mut ran = lockd.start_command(&args);
    until("it holds the lock", || !lockd.is_free("a"));
    let other = lockd.run(&["lock", "a", "--wait", "1500ms", "--", "true"]);
    assert_eq!(code(&other), 75);
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
}
