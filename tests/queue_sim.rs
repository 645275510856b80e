//! Seeded simulation of the queue's mirror: thousands of random schedules of calls, releases,
//! expiries, early hints, a watch that lags and restarts, and linearizable reads that arrive late.
//! A failure prints its seed and step; `QUEUE_SIM_SEED=<seed>` plays that schedule alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ringfence::lock_name::LockName;
use ringfence::queue::{Changes, Event, Mirror, Place, Verdict, WaitId};
use ringfence::token::Token;

#[path = "support/random.rs"]
mod random;
#[path = "queue_sim/truth.rs"]
mod truth;

use random::Random;
use truth::Truth;

const SCHEDULES: u64 = 4000;
const STEPS: u64 = 160;
const LOCKS: [&str; 3] = ["a", "a/1", "b"];

fn pick<T: Clone>(random: &mut Random, items: &[T]) -> Option<T> {
    (!items.is_empty()).then(|| items[random.below(items.len())].clone())
}

fn place(session: u64) -> Place {
    Place {
        session,
        holder: "sim".into(),
        foreign: false,
        may_hand_over: true,
    }
}

#[derive(Clone, Debug)]
enum Call {
    Opened,
    Written {
        token: Token,
    },
    Standing {
        token: Token,
        read: Option<Vec<Token>>,
    },
}

struct Sim {
    random: Random,
    truth: Truth,
    mirror: Mirror,
    /// How much of the log the watch has told.
    told: usize,
    /// What a restarted watch tells (last first) before it goes on with the log.
    pending: Vec<Event>,
    restarts: usize,
    calls: BTreeMap<WaitId, (LockName, Call)>,
    hints: Vec<(LockName, Token)>,
    /// Each wait's verdicts, in the order in which they were reported.
    verdicts: HashMap<WaitId, Vec<Verdict>>,
}

impl Sim {
    fn new(seed: u64) -> Sim {
        let mut sim = Sim {
            random: Random(seed),
            truth: Truth::default(),
            mirror: Mirror::new(),
            told: 0,
            pending: Vec::new(),
            restarts: 0,
            calls: BTreeMap::new(),
            hints: Vec::new(),
            verdicts: HashMap::new(),
        };
        sim.restart_watch();
        sim
    }

    fn step(&mut self) {
        let lock = LockName::new(LOCKS[self.random.below(LOCKS.len())]).unwrap();
        match self.random.below(100) {
            0..15 => {
                let id = self.mirror.open_wait(&lock);
                self.calls.insert(id, (lock, Call::Opened));
            }
            15..30 => self.write(),
            30..45 => self.reply(),
            45..60 => self.remove(&lock),
            60..64 => self.deliver_hint(),
            64..67 => {
                // Rewritten by a repeated call: same token, told again.
                if let Some(token) = pick(&mut self.random, &self.truth.tokens(&lock)) {
                    self.truth.put(&lock, token);
                }
            }
            67..70 => self.restart_watch(),
            70..74 => self.read(),
            74..78 => {
                let ids: Vec<WaitId> = self.calls.keys().copied().collect();
                if let Some(id) = pick(&mut self.random, &ids) {
                    self.mirror.close_wait(id);
                    self.calls.remove(&id);
                }
            }
            _ => self.tell_one(),
        }
        self.check();
    }

    fn write(&mut self) {
        let opened = self.ids(|call| matches!(call, Call::Opened));
        let Some(id) = pick(&mut self.random, &opened) else {
            return;
        };
        let lock = self.calls[&id].0.clone();
        let standing = self.truth.tokens(&lock);
        // A repeated attempt finds its entry; others get a new one.
        let token = match self.random.below(4) {
            0 => pick(&mut self.random, &standing),
            _ => None,
        };
        let token = token.unwrap_or_else(|| self.truth.create(&lock));
        self.calls.insert(id, (lock, Call::Written { token }));
    }

    fn reply(&mut self) {
        let written = self.ids(|call| matches!(call, Call::Written { .. }));
        let Some(id) = pick(&mut self.random, &written) else {
            return;
        };
        let (lock, call) = self.calls[&id].clone();
        let Call::Written { token } = call else {
            unreachable!()
        };
        let verdict = self.mirror.stand(id, token);
        self.calls
            .insert(id, (lock, Call::Standing { token, read: None }));
        if verdict != Verdict::Waiting {
            self.verdicts.entry(id).or_default().push(verdict);
        }
    }

    fn remove(&mut self, lock: &LockName) {
        let tokens = self.truth.tokens(lock);
        // Mostly the holder releases; now and then a waiter cancels or expires.
        let token = match self.random.below(3) {
            0 => pick(&mut self.random, &tokens),
            _ => tokens.first().copied(),
        };
        let Some(token) = token else { return };
        self.truth.remove(lock, token);
        if let Some(next) = self.truth.first(lock)
            && self.random.below(2) == 0
        {
            self.hints.push((lock.clone(), next));
        }
    }

    fn deliver_hint(&mut self) {
        if self.hints.is_empty() {
            return;
        }
        let at = self.random.below(self.hints.len());
        let (lock, token) = self.hints.swap_remove(at);
        let changes = self.mirror.first_is(&lock, token);
        self.note(changes);
    }

    fn restart_watch(&mut self) {
        self.restarts += 1;
        // The state that is told was read at some moment between what was told last and now.
        let ahead = self.truth.log.len() - self.told;
        self.told += self.random.below(ahead + 1);
        self.pending = vec![Event::Synced];
        for (lock, tokens) in self.truth.at(self.told) {
            for token in tokens {
                let lock = lock.clone();
                self.pending.push(Event::Put {
                    lock,
                    token,
                    place: place(token.get()),
                });
            }
        }
        self.pending.push(Event::Reset);
    }

    fn read(&mut self) {
        let is_unknown = |id: &WaitId| self.mirror.verdict(*id) == Verdict::Unknown;
        let unknown: Vec<WaitId> = self.calls.keys().copied().filter(is_unknown).collect();
        if let Some(id) = pick(&mut self.random, &unknown) {
            self.read_for(id);
        }
    }

    /// First takes the view, and hands it over when called again.
    fn read_for(&mut self, id: WaitId) {
        let view = self.truth.tokens(&self.calls[&id].0);
        let Some((_, Call::Standing { read, .. })) = self.calls.get_mut(&id) else {
            return;
        };
        match read.take() {
            None => {
                *read = Some(view);
                self.mirror.begin_read(id);
            }
            Some(view) => {
                let changes = self.mirror.observe(id, &view);
                self.note(changes);
            }
        }
    }

    fn tell_one(&mut self) {
        let event = match self.pending.pop() {
            Some(event) => event,
            None if self.told < self.truth.log.len() => {
                self.told += 1;
                self.truth.log[self.told - 1].clone()
            }
            None => return,
        };
        let changes = self.mirror.apply(event);
        self.note(changes);
    }

    fn ids(&self, wanted: impl Fn(&Call) -> bool) -> Vec<WaitId> {
        self.calls
            .iter()
            .filter(|(_, (_, call))| wanted(call))
            .map(|(id, _)| *id)
            .collect()
    }

    fn note(&mut self, changes: Changes) {
        let once: BTreeSet<WaitId> = changes.woken.iter().copied().collect();
        assert_eq!(
            once.len(),
            changes.woken.len(),
            "a wait was woken twice by one input"
        );
        for id in changes.woken {
            let verdict = self.mirror.verdict(id);
            self.verdicts.entry(id).or_default().push(verdict);
        }
    }

    fn check(&self) {
        self.mirror.check_invariants();
        let mut holders: BTreeMap<&LockName, Token> = BTreeMap::new();
        for (id, (lock, call)) in &self.calls {
            let Call::Standing { token, .. } = call else {
                continue;
            };
            let verdict = self.mirror.verdict(*id);
            let reported = self.verdicts.get(id).map_or(&[][..], Vec::as_slice);
            let last = reported.last().copied().unwrap_or(Verdict::Waiting);
            assert_eq!(last, verdict, "{id:?} changed without being woken");
            let repeated = reported.windows(2).any(|pair| pair[0] == pair[1]);
            assert!(!repeated, "{id:?} was woken for nothing: {reported:?}");
            match verdict {
                Verdict::First => {
                    let was = self.truth.was_first.contains(&(lock.clone(), *token));
                    assert!(was, "{lock} {token} was never the lowest");
                    if self.truth.stands(lock, *token) {
                        let other = holders.insert(lock, *token);
                        assert!(other.is_none_or(|other| other == *token), "two hold {lock}");
                    }
                }
                Verdict::Gone => {
                    assert!(
                        !self.truth.stands(lock, *token),
                        "{lock} {token} still stands"
                    );
                }
                Verdict::Waiting | Verdict::Unknown => {}
            }
        }
    }

    /// Lets everything arrive: then each wait must know the truth.
    fn finish(&mut self) {
        while self.told < self.truth.log.len() || !self.pending.is_empty() {
            self.tell_one();
            self.check();
        }
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            while self.mirror.verdict(id) == Verdict::Unknown {
                self.read_for(id);
            }
        }
        self.check();
        for (id, (lock, call)) in &self.calls {
            let Call::Standing { token, .. } = call else {
                continue;
            };
            let expected = match self.truth.tokens(lock).iter().position(|t| t == token) {
                None => Verdict::Gone,
                Some(0) => Verdict::First,
                Some(_) => Verdict::Waiting,
            };
            let verdict = self.mirror.verdict(*id);
            // Who was told that it is first has had its wake-up; a restart may hide its end.
            let told = expected == Verdict::Gone && verdict == Verdict::First;
            assert!(
                told && self.restarts > 1 || verdict == expected,
                "lost wake-up: {lock} {token} is {verdict:?}, not {expected:?}"
            );
        }
        for lock in LOCKS.map(|name| LockName::new(name).unwrap()) {
            let held = self.mirror.holder(&lock).map(|held| held.token);
            assert_eq!(held, self.truth.first(&lock), "{lock}");
            assert_eq!(
                self.mirror.queue_length(&lock),
                self.truth.tokens(&lock).len(),
                "{lock}"
            );
        }
        for id in self.calls.keys() {
            self.mirror.close_wait(*id);
        }
        self.mirror.check_invariants();
        let held = self
            .truth
            .queues
            .values()
            .filter(|queue| !queue.is_empty())
            .count();
        assert_eq!(
            self.mirror.locks_known(),
            held,
            "records of unused locks were kept"
        );
    }
}

fn play(seed: u64) {
    let mut step = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut sim = Sim::new(seed);
        while step < STEPS {
            sim.step();
            step += 1;
        }
        sim.finish();
    }));
    if let Err(panic) = outcome {
        eprintln!("queue_sim: seed {seed} failed at step {step} of {STEPS}");
        resume_unwind(panic);
    }
}

#[test]
fn every_schedule_wakes_each_waiter_when_it_is_first_or_gone() {
    if let Ok(seed) = std::env::var("QUEUE_SIM_SEED") {
        return play(seed.parse().expect("QUEUE_SIM_SEED is a number"));
    }
    for seed in 0..SCHEDULES {
        play(seed);
    }
}

#[test]
fn a_release_wakes_one_of_a_thousand() {
    let lock = LockName::new("hot").unwrap();
    let mut mirror = Mirror::new();
    mirror.apply(Event::Reset);
    mirror.apply(Event::Synced);
    let mut waits = Vec::new();
    for number in 1..=1000 {
        let token = Token::new(number).unwrap();
        let id = mirror.open_wait(&lock);
        let put = Event::Put {
            lock: lock.clone(),
            token,
            place: place(number),
        };
        assert_eq!(mirror.apply(put).woken, [], "a new entry wakes nobody");
        mirror.stand(id, token);
        waits.push(id);
    }
    for number in 1..1000 {
        let token = Token::new(number as u64).unwrap();
        let changes = mirror.apply(Event::Gone {
            lock: lock.clone(),
            token,
        });
        // The wait of the entry that is gone, and the one that is first now.
        assert_eq!(changes.woken, [waits[number - 1], waits[number]]);
        assert_eq!(mirror.verdict(waits[number]), Verdict::First);
    }
}

#[test]
fn pages_are_by_name_and_say_whether_more_follow() {
    let mut mirror = Mirror::new();
    for (number, name) in ["a", "b/1", "b/2", "b/3", "c"].iter().enumerate() {
        let token = Token::new(number as u64 + 1).unwrap();
        mirror.apply(Event::Put {
            lock: LockName::new(name).unwrap(),
            token,
            place: place(1),
        });
    }
    let names = |prefix: &str, after: &str, limit| {
        let page = mirror.list(prefix, after, limit);
        let names: Vec<_> = page
            .locks
            .iter()
            .map(|held| held.lock.to_string())
            .collect();
        (names.join(" "), page.more)
    };
    assert_eq!(names("", "", 10), ("a b/1 b/2 b/3 c".to_owned(), false));
    assert_eq!(names("b/", "", 2), ("b/1 b/2".to_owned(), true));
    assert_eq!(names("b/", "b/2", 2), ("b/3".to_owned(), false));
    assert_eq!(names("x", "", 2), (String::new(), false));
}
