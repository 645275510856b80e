//! The proxy is killed at each of its system calls in turn, from the seal of a new holder's token
//! to the answer of its second write, and started again on the same data. What must be refused
//! comes first then: the new holder presents nothing before, since that would raise again what was
//! lost.
//!
//! strace sends SIGKILL on entering the Nth call of one name by one thread, because it counts for
//! each thread and each name by itself (strace(1), "when="). Which there are is recorded before,
//! and every one is tried for N = 1, 2, .. until the story passes undisturbed. The proxy has one
//! core, so that there is one thread of each kind, with the same work each time. A thread that is
//! started in the middle, to read a lock's record, is not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::backend::Origin;
use crate::clients::{Holder, Reply, put, put_soon};
use crate::stack::{Lockd, Proxy, ProxySetup, eventually};
use crate::strace::{Strace, is_alive, threads};

/// What is seen outside of the process, and what its threads wait for: bytes in, bytes out, bytes
/// to disk, disk told to keep them, connections made and ended. Between two of them nothing changes
/// but memory, which dies with it.
const CALLS: &str = "recvfrom,read,readv,sendto,sendmsg,write,writev,pwrite64,fdatasync,fsync,\
                     accept4,connect,close,shutdown,epoll_wait,epoll_pwait,futex";
/// More calls of one name by one thread than one seal and two writes make.
const MOST: usize = 60;

/// A thread by its name, and how many of this name are older.
type Place = (String, usize);

struct Stage {
    lockd: Lockd,
    proxy: Proxy,
    origin: Origin,
    /// The ticket of the last holder that was told that it holds: its token is sealed.
    last: String,
    /// That holder, which keeps the lock until the next one asks for it.
    held: Option<Held>,
    dir: tempfile::TempDir,
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
    let mut proxy = Proxy::start_by(dir.path(), &setup, &on_one_core());
    let url = proxy.url("/orders/1");
    let (first, held) = acquire(&lockd, None).expect("nothing disturbs it");
    let mut alive_for = Duration::ZERO;
    eventually("a store that lockd knows", || {
        assert_eq!(put(&url, "0", Some(&first.ticket)).status, 200);
        // Nothing else shows from outside that both have noted it.
        alive_for += Duration::from_millis(250);
        std::thread::sleep(alive_for);
        let before = floors_taken(&proxy);
        proxy.kill_and_restart();
        before == floors_taken(&proxy)
    });
    Stage {
        lockd,
        proxy,
        origin,
        last: first.ticket,
        held: Some(held),
        dir,
    }
}

/// How often it took its floors from lockd at a start. That would hide that it lost a watermark,
/// and a proxy does so until both have noted that lockd knows its store.
fn floors_taken(proxy: &Proxy) -> usize {
    const SAYS: &str = "watermarks were lost: floors come from the lock service";
    assert!(include_str!("../../src/proxy/start/mod.rs").contains(SAYS));
    proxy.process.log().matches(SAYS).count()
}

/// taskset on the first core that is allowed here.
fn on_one_core() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.split("Cpus_allowed_list:").nth(1).unwrap();
    let core: String = allowed
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    vec!["taskset".to_owned(), "-c".to_owned(), core]
}

struct Grant {
    token: u64,
    ticket: String,
}

/// A client that holds the lock, and what runs it.
struct Held {
    runtime: tokio::runtime::Runtime,
    holder: Holder,
}

/// A new holder's grant, which is sealed, once the one before has given the lock back.
fn acquire(lockd: &Lockd, before: Option<Held>) -> Option<(Grant, Held)> {
    if let Some(Held { runtime, holder }) = before {
        runtime.block_on(holder.close());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (grant, holder) = runtime.block_on(async {
        let mut holder = Holder::open(lockd, 30_000).await;
        let grant = holder.acquire("orders", 5_000).await;
        (grant, holder)
    });
    let Ok(grant) = grant else {
        runtime.block_on(holder.close());
        return None;
    };
    assert_eq!(grant.sealed, ["edge-1"]);
    let grant = Grant {
        token: grant.token,
        ticket: grant.ticket,
    };
    Some((grant, Held { runtime, holder }))
}

fn is_stored(reply: &Option<Reply>) -> bool {
    reply.as_ref().is_some_and(|it| it.status == 200)
}

/// The proxy while a thread of it is followed to its death.
struct Followed<'a> {
    proxy: &'a mut Proxy,
    strace: Option<Strace>,
    killed: bool,
}

impl Followed<'_> {
    fn wait_for_death(&self) {
        let pid = self.proxy.process.pid();
        eventually("the death that left no answer", || !is_alive(pid));
    }

    /// Starts it again if it was killed.
    fn revive(&mut self) -> bool {
        let died = !is_alive(self.proxy.process.pid());
        if died {
            // The tracer first: what it traces is nobody else's to reap.
            self.strace = None;
            self.proxy.kill_and_restart();
            self.killed = true;
        }
        died
    }
}

impl Stage {
    /// Its threads, oldest first.
    fn places(&self) -> Vec<(Place, u32)> {
        let mut counts = BTreeMap::new();
        let all = threads(self.proxy.process.pid()).into_iter();
        all.map(|thread| {
            let count = counts.entry(thread.name.clone()).or_insert(0);
            *count += 1;
            ((thread.name, *count - 1), thread.id)
        })
        .collect()
    }

    /// Which threads make which calls in a story that nothing disturbs.
    fn record(&mut self) -> BTreeSet<(Place, String)> {
        let file = self.dir.path().join("calls");
        let (to, tracing) = (file.to_str().unwrap(), format!("trace={CALLS}"));
        let arguments = ["-o", to, "-e", &tracing];
        let places = self.places();
        let strace = Strace::on_process(self.proxy.process.pid(), &arguments);
        assert!(!self.tell(strace, "recorded"));
        let recorded = std::fs::read_to_string(file).unwrap();
        let call = |line: &str| {
            let (id, call) = line.split_once(' ')?;
            let (name, _) = call.trim_start().split_once('(')?;
            let (place, _) = places.iter().find(|(_, it)| id == it.to_string())?;
            let is_name = name
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || it == '_');
            is_name.then(|| (place.clone(), name.to_owned()))
        };
        recorded.lines().filter_map(call).collect()
    }

    /// Plays one holder's story with a kill at the Nth call of this name by this thread; whether it
    /// came.
    fn play(&mut self, place: &Place, call: &str, nth: usize) -> bool {
        let places = self.places();
        let Some((_, thread)) = places.iter().find(|(it, _)| it == place) else {
            return false;
        };
        let inject = format!("inject={call}:signal=KILL:when={nth}");
        let tracing = format!("trace={call}");
        let arguments = ["-o", "/dev/null", "-e", &tracing, "-e", &inject];
        let strace = Strace::on_thread(self.proxy.process.pid(), *thread, &arguments);
        self.tell(strace, &format!("killed at {call} {nth} of {place:?}"))
    }

    /// One holder's story; whether the proxy was killed in it.
    fn tell(&mut self, strace: Strace, moment: &str) -> bool {
        let mut followed = Followed {
            proxy: &mut self.proxy,
            strace: Some(strace),
            killed: false,
        };
        let (lockd, before) = (&self.lockd, self.held.take());
        let granted = std::thread::scope(|scope| {
            let acquiring = scope.spawn(|| acquire(lockd, before));
            // The seal may need the proxy again.
            while !acquiring.is_finished() {
                followed.revive();
                std::thread::sleep(Duration::from_millis(2));
            }
            acquiring.join().unwrap()
        });
        followed.revive();
        let Some((grant, held)) = granted else {
            assert!(followed.killed, "{moment}: no grant and no kill");
            return true;
        };
        self.held = Some(held);
        let before = std::mem::replace(&mut self.last, grant.ticket.clone());
        let url = followed.proxy.url("/orders/1");
        let (mut told, mut refused) = (0, followed.killed);
        if followed.killed {
            refuses(&url, &before, moment);
        }
        for _ in 0..2 {
            let reply = put_soon(&url, &grant.token.to_string(), &grant.ticket);
            if !is_stored(&reply) {
                followed.wait_for_death();
            }
            told += usize::from(is_stored(&reply));
            if followed.revive() {
                refuses(&url, &before, moment);
                refused = true;
            }
        }
        // A kill that comes now is behind the story. One that is on its way leaves no answer.
        followed.strace = None;
        if put_soon(&url, "0", &before).is_none() {
            followed.wait_for_death();
        }
        if followed.revive() || !refused {
            refuses(&url, &before, moment);
        }
        let killed = followed.killed;
        self.check(&grant, told, moment);
        killed
    }

    /// What the backend has applied, and that service goes on.
    fn check(&self, grant: &Grant, told: usize, moment: &str) {
        let url = self.proxy.url("/orders/1");
        let after = put(&url, &grant.token.to_string(), Some(&grant.ticket));
        assert_eq!(after.status, 200, "{moment}: {after:?}");
        let applied = self.origin.applied();
        let token = |write: &String| write.rsplit('=').next().unwrap().parse().unwrap();
        let applied: Vec<u64> = applied.iter().map(token).collect();
        assert!(applied.is_sorted(), "{moment}: {applied:?}");
        let kept = applied.iter().filter(|it| **it == grant.token).count();
        assert!(kept > told, "{moment}: {told} told stored and one after");
    }
}

/// The holder before: its token was the watermark until the new one was sealed.
fn refuses(url: &str, ticket: &str, moment: &str) {
    let refused = put(url, "0", Some(ticket));
    assert_eq!(refused.status, 412, "{moment}: {refused:?}");
    assert_eq!(refused.code(), "stale", "{moment}: {refused:?}");
}

#[test]
fn a_kill_at_any_system_call_leaves_older_tokens_refused() {
    let mut stage = stage();
    let floors = floors_taken(&stage.proxy);
    let recorded = stage.record();
    let mut kills = BTreeMap::new();
    for (place, call) in &recorded {
        let reached = (1..=MOST)
            .take_while(|nth| stage.play(place, call, *nth))
            .count();
        assert!(reached < MOST, "{place:?} makes {MOST} {call} and more");
        println!("{reached} kills at {call} of {place:?}");
        *kills.entry((&*place.0, &**call)).or_insert(0) += reached;
    }
    assert_eq!(floors, floors_taken(&stage.proxy));
    for known in [
        // The seal, from lockd and to it.
        ("tokio-rt-worker", "recvfrom"),
        ("tokio-rt-worker", "writev"),
        ("watermarks", "pwrite64"),
        ("watermarks", "fdatasync"),
        // The writes, to the backend and back.
        ("proxy", "sendto"),
    ] {
        assert!(kills.get(&known) > Some(&0), "{known:?}: {kills:?}");
    }
}
