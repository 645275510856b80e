//! The proxy is killed at each of its system calls in turn, from the seal of a new holder's token
//! to the answer of its write: strace counts the calls of one kind and sends SIGKILL on entering
//! the Nth. What a restart on the same data must refuse is refused at the first request.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::backend::Origin;
use crate::clients::{Holder, Reply, put, put_soon};
use crate::stack::{Lockd, Proxy, ProxySetup, eventually};

/// What moves a write from step to step: bytes in, bytes out, bytes to disk, disk told to keep
/// them, connections made and ended, threads waiting for and waking each other.
const CALLS: [&str; 7] = [
    "recvfrom,read,readv",
    "sendto,write,writev,sendmsg",
    "pwrite64",
    "fdatasync,fsync",
    "accept4,connect,close,shutdown",
    "epoll_wait,epoll_pwait",
    "futex",
];
/// More calls of one kind than one seal and two writes make.
const MOST: usize = 60;

/// strace on a running process, which it leaves alone when it ends.
struct Killer {
    strace: Child,
}

impl Killer {
    /// Kills the process on entering the Nth call of this kind on any of its threads.
    fn attach(pid: u32, calls: &str, nth: usize) -> Killer {
        let mut strace = Command::new("strace")
            .args(["-f", "-q", "-o", "/dev/null", "-p", &pid.to_string()])
            .args(["-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:signal=KILL:when={nth}")])
            .stdin(Stdio::null())
            .spawn()
            .expect("strace is installed");
        eventually("strace on every thread", || {
            assert!(
                strace.try_wait().unwrap().is_none() || !is_alive(pid),
                "strace cannot attach"
            );
            traced_throughout(pid, strace.id())
        });
        Killer { strace }
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        // On SIGTERM it lets a living process go. After the death of one it may wait for ever for a
        // thread that is gone, and takes no SIGTERM then.
        if self.strace.try_wait().is_ok_and(|ended| ended.is_none()) {
            crate::stack::signal(self.strace.id(), "TERM");
        }
        let until = Instant::now() + Duration::from_secs(2);
        while self.strace.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > until {
                let _ = self.strace.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}

/// Whether the tracer holds every thread of the process, or the process is gone already.
fn traced_throughout(pid: u32, tracer: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    let wanted = format!("TracerPid:\t{tracer}\n");
    let mut statuses = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    !is_alive(pid) || statuses.all(|status| status.contains(&wanted))
}

struct Stage {
    lockd: Lockd,
    proxy: Proxy,
    origin: Origin,
    /// The ticket of the last holder that was told that it holds: its token is sealed.
    last: String,
    _dir: tempfile::TempDir,
}

fn stage() -> Stage {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), "");
    let origin = Origin::start();
    let setup = ProxySetup {
        name: "edge-1",
        protocol: "http",
        upstream: origin.address,
        lockd: &lockd,
        listener: "in_doubt_hold = \"100ms\"",
        rules: "[[listener.rule]]\nlock = \"orders\"\npath = \"/orders/**\"\n",
        data: None,
    };
    let proxy = Proxy::start(dir.path(), &setup);
    Stage {
        lockd,
        proxy,
        origin,
        last: String::new(),
        _dir: dir,
    }
}

/// What one new holder saw.
struct Story {
    /// Token and ticket, where it was told any.
    grant: Option<(u64, String)>,
    replies: Vec<Option<Reply>>,
}

impl Story {
    fn is_undisturbed(&self) -> bool {
        let stored = |reply: &Option<Reply>| reply.as_ref().is_some_and(|it| it.status == 200);
        self.replies.len() == 2 && self.replies.iter().all(stored)
    }
}

/// Acquires, which seals, and writes its token twice.
fn live(lockd: &Lockd, url: &str) -> Story {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let grant = runtime.block_on(async {
        let mut holder = Holder::open(lockd, 30_000).await;
        let grant = holder.acquire("orders", 5_000).await;
        // It goes on writing after it gave the lock back, as a holder that lost it would.
        holder.close().await;
        grant.ok()
    });
    let Some(grant) = grant else {
        return Story {
            grant: None,
            replies: Vec::new(),
        };
    };
    let write = || put_soon(url, &grant.token.to_string(), &grant.ticket);
    let replies = vec![write(), write()];
    Story {
        grant: Some((grant.token, grant.ticket)),
        replies,
    }
}

impl Stage {
    fn tokens_applied(&self) -> Vec<u64> {
        let applied = self.origin.applied();
        let token = |write: &String| write.rsplit('=').next().unwrap().parse().unwrap();
        applied.iter().map(token).collect()
    }

    /// Plays one holder's story with a kill at the Nth call; whether the kill came.
    fn play(&mut self, calls: &str, nth: usize) -> bool {
        let killer = Killer::attach(self.proxy.process.pid(), calls, nth);
        let url = self.proxy.url("/orders/1");
        let (lockd, proxy) = (&self.lockd, &mut self.proxy);
        let (story, killed) = std::thread::scope(|scope| {
            let living = scope.spawn(|| live(lockd, &url));
            let mut killed = false;
            while !living.is_finished() {
                if !killed && proxy.process.has_ended() {
                    killed = true;
                    proxy.start_again();
                    proxy.wait_until_ready();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            (living.join().unwrap(), killed)
        });
        drop(killer);
        let undisturbed = story.is_undisturbed();
        if self.proxy.process.has_ended() || !(killed || undisturbed) {
            // Killed as the story ended, or held by the tracer: it is started again all the same.
            self.proxy.kill_and_restart();
        }
        self.check(story, &format!("killed at call {nth} of {calls}"));
        killed || !undisturbed
    }

    fn check(&mut self, story: Story, moment: &str) {
        let applied = self.tokens_applied();
        assert!(applied.is_sorted(), "{moment}: {applied:?}");
        let Some((token, ticket)) = story.grant else {
            return;
        };
        let told = |reply: &&Option<Reply>| reply.as_ref().is_some_and(|it| it.status == 200);
        let stored = story.replies.iter().filter(told).count();
        let kept = applied.iter().filter(|it| **it == token).count();
        assert!(kept >= stored, "{moment}: {stored} told stored");
        // The first request of the holder before, whose token was the watermark until now.
        let before = std::mem::replace(&mut self.last, ticket);
        let refused = put(&self.proxy.url("/orders/1"), "0", Some(&before));
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (412, "stale"),
            "{moment}: {refused:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_system_call_leaves_older_tokens_refused() {
    let mut stage = stage();
    tokio::task::spawn_blocking(move || {
        let first = live(&stage.lockd, &stage.proxy.url("/orders/1"));
        assert!(first.is_undisturbed());
        stage.last = first.grant.unwrap().1;
        let mut kills = 0;
        for calls in CALLS {
            let reached = (1..MOST).take_while(|nth| stage.play(calls, *nth)).count();
            assert!(reached > 0, "no kill came at {calls}");
            println!("{reached} kills at {calls}");
            kills += reached;
        }
        assert!(kills > 15, "only {kills} kills");
    })
    .await
    .unwrap();
}
