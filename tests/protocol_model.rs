//! A model of the whole protocol, explored state by state: lock service, two proxies that can be
//! killed, and a backend that applies what is in its sockets in any order, also after the proxy
//! that sent it has died.
//!
//! The variants that are known to be broken stay here as models that must fail: if one of them
//! passed, the model would have lost the power to see the fault.

use stateright::{Checker, Model, Property};

const TOKENS: u8 = 3;
const PROXIES: usize = 2;
const KILLS: u8 = 2;
/// Writes of one token through one proxy.
const WRITES: u8 = 1;

/// How a proxy decides that a write may be forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    /// Each proxy has its own watermark; nobody seals across.
    LocalWatermark,
    /// One watermark for all, nobody drains.
    SharedWithoutDrain,
    /// One watermark for all; a raise waits for the proxy's own writes.
    SharedDrainOwn,
    /// One watermark for all; a raise waits for the writes of all living proxies.
    SharedDrainLiving,
    /// One watermark for all; a raise waits for every write, orphans proven dead included.
    SharedDrainAll,
    /// The backend compares inside the write.
    BackendCheck,
    /// What Ringfence does: each proxy has its own durable watermark and its own orphans; a grant
    /// is sealed at every registered proxy before its ticket exists.
    SealEverywhere,
    /// The same, but a restarted proxy forgets what it left in flight.
    SealForgettingOrphans,
    /// The same, but the watermark is not on disk before the write leaves.
    SealWithoutDisk,
    /// The same, but only the first proxy is sealed and the second takes the ticket all the same.
    SealOneTakeAnywhere,
    /// The same, but a write is admitted when the watermark is raised, before it is drained.
    SealWithoutDrain,
}

impl Variant {
    fn is_shared(self) -> bool {
        use Variant::{SharedDrainAll, SharedDrainLiving, SharedDrainOwn, SharedWithoutDrain};
        matches!(
            self,
            SharedWithoutDrain | SharedDrainOwn | SharedDrainLiving | SharedDrainAll
        )
    }

    fn seals(self) -> bool {
        use Variant::{
            SealEverywhere, SealForgettingOrphans, SealOneTakeAnywhere, SealWithoutDisk,
            SealWithoutDrain,
        };
        matches!(
            self,
            SealEverywhere
                | SealForgettingOrphans
                | SealWithoutDisk
                | SealOneTakeAnywhere
                | SealWithoutDrain
        )
    }
}

/// A write between a proxy's decision and the backend's applying.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct InFlight {
    token: u8,
    proxy: u8,
    /// In the backend's socket: it lands or is terminated, whatever becomes of the proxy.
    sent: bool,
    /// Its proxy was killed after sending it.
    orphan: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct State {
    granted: u8,
    kills: u8,
    /// In memory and on disk, for each proxy.
    watermark: [u8; PROXIES],
    disk: [u8; PROXIES],
    shared: u8,
    backend: u8,
    /// Highest token that each proxy has answered as sealed.
    sealed: [u8; PROXIES],
    /// Highest token whose ticket exists.
    ticket: u8,
    in_flight: Vec<InFlight>,
    written: [[u8; PROXIES]; TOKENS as usize + 1],
    applied: Vec<u8>,
    /// A write was applied below a token whose ticket existed.
    applied_behind_ticket: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Grant,
    Raise { token: u8, proxy: usize },
    Persist { proxy: usize },
    Seal { proxy: usize },
    IssueTicket,
    Admit { token: u8, proxy: usize },
    Send(InFlight),
    Apply(InFlight),
    Kill { proxy: usize },
    TerminateOrphan(InFlight),
}

struct Protocol(Variant);

impl Protocol {
    /// Whether nothing older than the token stands in the way, as far as this variant looks.
    fn is_drained(&self, state: &State, token: u8, proxy: usize) -> bool {
        let own = |it: &&InFlight| usize::from(it.proxy) == proxy;
        let mut older = state.in_flight.iter().filter(|it| it.token < token);
        match self.0 {
            Variant::LocalWatermark
            | Variant::SharedWithoutDrain
            | Variant::BackendCheck
            | Variant::SealWithoutDrain => true,
            Variant::SharedDrainOwn | Variant::SealForgettingOrphans => {
                !older.any(|it| own(&it) && !it.orphan)
            }
            Variant::SharedDrainLiving => !older.any(|it| !it.orphan),
            Variant::SharedDrainAll => older.next().is_none(),
            Variant::SealEverywhere | Variant::SealWithoutDisk | Variant::SealOneTakeAnywhere => {
                !older.any(|it| own(&it))
            }
        }
    }

    fn has_ticket(&self, state: &State, token: u8) -> bool {
        match self.0.seals() {
            true => token <= state.ticket,
            false => token <= state.granted,
        }
    }

    fn watermark(&self, state: &State, proxy: usize) -> u8 {
        if self.0.is_shared() {
            state.shared
        } else {
            state.watermark[proxy]
        }
    }

    fn is_admitted(&self, state: &State, token: u8, proxy: usize) -> bool {
        let on_disk =
            self.0.is_shared() || self.0 == Variant::SealWithoutDisk || state.disk[proxy] == token;
        let raised = match self.0 {
            Variant::BackendCheck => state.backend == token,
            _ => self.watermark(state, proxy) == token && on_disk,
        };
        raised && self.is_drained(state, token, proxy)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.granted < TOKENS {
            actions.push(Action::Grant);
        }
        if self.0.seals() && state.ticket < state.granted {
            actions.push(Action::IssueTicket);
        }
        for proxy in 0..PROXIES {
            if state.kills < KILLS {
                actions.push(Action::Kill { proxy });
            }
            if state.disk[proxy] < state.watermark[proxy] {
                actions.push(Action::Persist { proxy });
            }
            if self.0.seals() && state.sealed[proxy] < state.granted {
                actions.push(Action::Raise {
                    token: state.granted,
                    proxy,
                });
                actions.push(Action::Seal { proxy });
            }
            for token in 1..=state.granted {
                if self.has_ticket(state, token)
                    && state.written[usize::from(token)][proxy] < WRITES
                {
                    actions.push(Action::Raise { token, proxy });
                    actions.push(Action::Admit { token, proxy });
                }
            }
        }
        for write in &state.in_flight {
            match (write.sent, write.orphan) {
                (false, _) => actions.push(Action::Send(*write)),
                (true, false) => actions.push(Action::Apply(*write)),
                (true, true) => {
                    actions.push(Action::Apply(*write));
                    actions.push(Action::TerminateOrphan(*write));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Grant => state.granted += 1,
            Action::Raise { token, proxy } => {
                let watermark = match self.0 {
                    Variant::BackendCheck => &mut state.backend,
                    variant if variant.is_shared() => &mut state.shared,
                    _ => &mut state.watermark[proxy],
                };
                if *watermark >= token {
                    return None;
                }
                *watermark = token;
            }
            Action::Persist { proxy } => state.disk[proxy] = state.watermark[proxy],
            Action::Seal { proxy } => {
                if !self.is_admitted(&state, state.granted, proxy) {
                    return None;
                }
                state.sealed[proxy] = state.granted;
            }
            Action::IssueTicket => {
                let asked = if self.0 == Variant::SealOneTakeAnywhere {
                    1
                } else {
                    PROXIES
                };
                if state.sealed[..asked]
                    .iter()
                    .any(|sealed| *sealed < state.granted)
                {
                    return None;
                }
                state.ticket = state.granted;
            }
            Action::Admit { token, proxy } => {
                if !self.is_admitted(&state, token, proxy) {
                    return None;
                }
                state.written[usize::from(token)][proxy] += 1;
                let proxy = proxy as u8;
                state.in_flight.push(InFlight {
                    token,
                    proxy,
                    sent: false,
                    orphan: false,
                });
            }
            Action::Send(write) => {
                let at = position(&state, write);
                state.in_flight[at].sent = true;
            }
            Action::Apply(write) => {
                let at = position(&state, write);
                state.in_flight.swap_remove(at);
                let refused = self.0 == Variant::BackendCheck && write.token < state.backend;
                if !refused {
                    state.applied_behind_ticket |= self.0.seals() && write.token < state.ticket;
                    state.applied.push(write.token);
                }
            }
            Action::TerminateOrphan(write) => {
                let at = position(&state, write);
                state.in_flight.swap_remove(at);
            }
            Action::Kill { proxy } => {
                state.kills += 1;
                state.watermark[proxy] = state.disk[proxy];
                state
                    .in_flight
                    .retain(|it| usize::from(it.proxy) != proxy || it.sent);
                for write in &mut state.in_flight {
                    write.orphan |= usize::from(write.proxy) == proxy;
                }
            }
        }
        state.in_flight.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("monotone apply", |_, state: &State| {
                state.applied.is_sorted()
            }),
            Property::always("seal before read", |_, state: &State| {
                !state.applied_behind_ticket
            }),
            Property::sometimes("a newer write lands", |_, state: &State| {
                state.applied.last() == Some(&TOKENS)
            }),
        ]
    }
}

fn position(state: &State, write: InFlight) -> usize {
    state
        .in_flight
        .iter()
        .position(|it| *it == write)
        .expect("actions name what is in flight")
}

fn holds(variant: Variant) {
    let checker = Protocol(variant).checker().threads(2).spawn_bfs().join();
    println!("{variant:?}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

fn is_broken(variant: Variant) {
    let checker = Protocol(variant).checker().threads(2).spawn_bfs().join();
    let found = checker
        .discovery("monotone apply")
        .or_else(|| checker.discovery("seal before read"))
        .unwrap_or_else(|| panic!("{variant:?} passed: the model does not see its fault"));
    println!("{variant:?}, as expected: {:?}", found.into_actions());
}

#[test]
fn sealing_every_proxy_with_its_orphans_holds() {
    holds(Variant::SealEverywhere);
}

#[test]
fn a_shared_watermark_that_drains_everything_holds() {
    holds(Variant::SharedDrainAll);
}

#[test]
fn a_check_inside_the_backend_holds() {
    holds(Variant::BackendCheck);
}

#[test]
fn known_faults_are_found() {
    for variant in [
        Variant::LocalWatermark,
        Variant::SharedWithoutDrain,
        Variant::SharedDrainOwn,
        Variant::SharedDrainLiving,
        Variant::SealForgettingOrphans,
        Variant::SealWithoutDisk,
        Variant::SealOneTakeAnywhere,
        Variant::SealWithoutDrain,
    ] {
        is_broken(variant);
    }
}
