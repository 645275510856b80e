//! Whether a process may register under a name, and what lockd knows of its store: pure.
//!
//! A seal reaches one process for each name. So another one takes a name over only once the process
//! that is registered cannot admit anything any more; otherwise holders that were sealed out at one
//! of them would still be let in by the other. Invariants:
//! - no clock decides: a process is gone when nothing, or another process, answers at its address;
//!   silence proves nothing;
//! - only a store that is shown to follow the registered one is believed to know its watermarks,
//!   and only it may come while the process before is silent: its file is open in one process at a
//!   time;
//! - a store is not believed for locks that the registration before it did not name: their seals
//!   passed it by;
//! - what a process is told about its store it is told again until it says that it has noted it.
//!
//! A store follows when the process that is registered here is one that it knows as its own past.
//! It keeps, durably, the process that lockd is known to have noted last, and every one that has
//! asked since; a process joins them before it asks, and stands there alone, durably, before it
//! admits anything. So, wherever a process is killed:
//! - before lockd has noted it, the one before it is registered, and the store knows that one;
//! - after that, whether or not the answer came or was written down, the store knows this one;
//! - a copy that was made while no process had the file open knows only processes up to the last
//!   one before it. It follows while one of them is registered; then none came after it, and it has
//!   everything that they admitted. Once another one is noted, it never follows again, however
//!   often it is started: its own later processes are unknown here.
//!
//! A copy that was made under a running process knows that process, and follows while that is
//! registered. Its mark says that it did not end in order: such a store asks for every floor
//! (`proxy::watermarks`).

use crate::lockd::proxies::Proxy;
use crate::lockd::status::Error;
use crate::proto::register_response::Known;

/// What was found at the address of the process that is registered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Presence {
    /// That process.
    Here,
    /// Nothing, or another process.
    Gone,
    /// No answer that proves anything, in words for operators.
    Unknown(String),
}

/// What becomes of a registration.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It is taken, as this record.
    Taken(Proxy, Known),
    /// First it has to be found out whether the registered process is gone.
    Ask,
    /// It is not.
    Refused(Error),
}

/// What a registration says beside the record that it is to become.
#[derive(Clone, Default, Debug)]
pub(super) struct Says {
    /// The process has noted an answer before.
    pub(super) registered: bool,
    /// The processes that its store may follow.
    pub(super) after: Vec<String>,
}

/// `before`: what is registered under the name. `presence`: of the process that is registered, if
/// it was looked for.
pub(super) fn decide(
    before: Option<&Proxy>,
    mut proxy: Proxy,
    says: &Says,
    presence: Option<&Presence>,
) -> Verdict {
    let registered = says.registered;
    let instance = proxy.instance.clone();
    let tells_process = !proxy.process.is_empty();
    let Some(before) = before else {
        if registered {
            return Verdict::Refused(Error::TakenOut(instance));
        }
        proxy.is_new = tells_process;
        return Verdict::Taken(proxy, Known::New);
    };
    let same_store = before.store_id == proxy.store_id;
    if same_store && before.process == proxy.process {
        proxy.replaced = before.replaced && !registered;
        proxy.missed = before.missed && !registered;
        proxy.is_new = before.is_new && !registered;
        let known = known(&proxy);
        return Verdict::Taken(proxy, known);
    }
    if registered {
        return Verdict::Refused(Error::TakenOut(instance));
    }
    let follows = same_store && says.after.contains(&before.process);
    let admin = before.admin.clone();
    match presence {
        None => return Verdict::Ask,
        Some(Presence::Here) => return Verdict::Refused(Error::NameTaken { instance, admin }),
        Some(Presence::Unknown(cause)) if !follows => {
            let cause = cause.clone();
            return Verdict::Refused(Error::NotProvenGone {
                instance,
                admin,
                cause,
            });
        }
        Some(Presence::Unknown(_) | Presence::Gone) => {}
    }
    let mut patterns = proxy.patterns.iter();
    let widened = patterns.any(|pattern| !before.patterns.contains(pattern));
    proxy.replaced = !follows || before.replaced;
    proxy.missed = widened || before.missed;
    proxy.is_new = follows && before.is_new;
    let known = known(&proxy);
    Verdict::Taken(proxy, known)
}

fn known(proxy: &Proxy) -> Known {
    match (proxy.replaced, proxy.is_new, proxy.missed) {
        (true, _, _) => Known::StoreLost,
        (false, true, _) => Known::New,
        (false, false, true) => Known::SealsMissed,
        (false, false, false) => Known::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::{Presence, Says, Verdict, decide};
    use crate::lock_name::LockPattern;
    use crate::lockd::proxies::Proxy;
    use crate::lockd::status::Error;
    use crate::proto::register_response::Known;

    fn proxy(store_id: &str, process: &str) -> Proxy {
        Proxy {
            instance: "edge".to_owned(),
            store_id: store_id.to_owned(),
            process: process.to_owned(),
            replaced: false,
            missed: false,
            is_new: false,
            admin: "http://10.0.0.7:7431".to_owned(),
            loopback_of: String::new(),
            patterns: vec![],
        }
    }

    /// A process that asks for the first time.
    fn after(processes: &[&str]) -> Says {
        Says {
            registered: false,
            after: processes.iter().map(|&it| it.to_owned()).collect(),
        }
    }

    /// One that has noted an answer.
    fn registered() -> Says {
        Says {
            registered: true,
            ..Says::default()
        }
    }

    fn unknown() -> Presence {
        Presence::Unknown("no answer".to_owned())
    }

    fn taken(verdict: Verdict) -> (Proxy, Known) {
        match verdict {
            Verdict::Taken(proxy, known) => (proxy, known),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn while_the_registered_process_runs_nobody_takes_its_name() {
        let before = proxy("one", "a");
        for (other, says) in [
            (proxy("two", "b"), after(&[])),
            (proxy("one", "b"), after(&[])),
            (proxy("one", "b"), after(&["a"])),
            (proxy("two", ""), after(&[])),
        ] {
            let asked = decide(Some(&before), other.clone(), &says, None);
            assert!(matches!(asked, Verdict::Ask), "{asked:?}");
            let here = decide(Some(&before), other, &says, Some(&Presence::Here));
            assert!(
                matches!(here, Verdict::Refused(Error::NameTaken { .. })),
                "{here:?}"
            );
        }
    }

    #[test]
    fn silence_proves_nothing_but_where_the_store_itself_goes_on() {
        let before = proxy("one", "a");
        for (other, says) in [
            (proxy("two", "b"), after(&["a"])),
            (proxy("one", "b"), after(&["0"])),
        ] {
            let silent = decide(Some(&before), other, &says, Some(&unknown()));
            assert!(
                matches!(silent, Verdict::Refused(Error::NotProvenGone { .. })),
                "{silent:?}"
            );
        }
        let next = proxy("one", "b");
        let next = decide(Some(&before), next, &after(&["a"]), Some(&unknown()));
        assert_eq!(taken(next).1, Known::Same);
    }

    #[test]
    fn another_store_and_one_that_does_not_know_the_last_process_are_lost_ones() {
        let before = proxy("one", "c");
        for (other, says, known) in [
            (proxy("one", "d"), after(&["c"]), Known::Same),
            // Killed once or more before it heard an answer.
            (proxy("one", "d"), after(&["a", "b", "c"]), Known::Same),
            (proxy("one", "d"), after(&["c", "x", "y"]), Known::Same),
            // A copy from before `c`, started any number of times.
            (proxy("one", "d"), after(&["b"]), Known::StoreLost),
            (proxy("one", "d"), after(&["b", "x", "y"]), Known::StoreLost),
            (proxy("one", "d"), after(&[]), Known::StoreLost),
            (proxy("one", ""), after(&[]), Known::StoreLost),
            (proxy("two", "d"), after(&["c"]), Known::StoreLost),
        ] {
            let presence = Some(&Presence::Gone);
            let gone = decide(Some(&before), other.clone(), &says, presence);
            assert_eq!(taken(gone).1, known, "{other:?} {says:?}");
        }
    }

    #[test]
    fn what_is_told_is_told_again_until_it_is_noted() {
        let gone = Some(&Presence::Gone);
        for (before, known) in [
            (None, Known::New),
            (Some(proxy("one", "a")), Known::StoreLost),
        ] {
            let other = proxy("two", "b");
            let verdict = decide(before.as_ref(), other.clone(), &after(&[]), gone);
            let (first, told) = taken(verdict);
            assert_eq!(told, known);
            // The same process, whose answer was lost, and the next one of its store.
            let again = decide(Some(&first), other.clone(), &after(&[]), None);
            assert_eq!(taken(again).1, known);
            let next = || proxy("two", "c");
            let verdict = decide(Some(&first), next(), &after(&["b"]), gone);
            assert_eq!(taken(verdict).1, known);
            let (noted, told) = taken(decide(Some(&first), other, &registered(), None));
            assert_eq!(told, Known::Same);
            let verdict = decide(Some(&noted), next(), &after(&["b"]), gone);
            assert_eq!(taken(verdict).1, Known::Same);
        }
    }

    #[test]
    fn a_lock_that_was_not_guarded_meanwhile_may_have_missed_seals_until_that_is_noted() {
        let guarding = |process: &str, patterns: &[&str]| Proxy {
            patterns: patterns
                .iter()
                .map(|it| LockPattern::new(it).unwrap())
                .collect(),
            ..proxy("one", process)
        };
        let (both, one) = (["orders", "other"], ["other"]);
        let gone = Some(&Presence::Gone);
        let next = |before: &Proxy, process: &str, patterns: &[&str]| {
            let says = after(&[&before.process]);
            taken(decide(
                Some(before),
                guarding(process, patterns),
                &says,
                gone,
            ))
        };
        let (less, told) = next(&guarding("a", &both), "b", &one);
        assert_eq!(told, Known::Same);
        let (again, told) = next(&less, "c", &both);
        assert_eq!(told, Known::SealsMissed);
        // Whoever comes next hears it too, as long as nobody has noted it.
        assert_eq!(next(&again, "d", &both).1, Known::SealsMissed);
        let same = decide(Some(&again), guarding("c", &both), &registered(), None);
        let (noted, told) = taken(same);
        assert_eq!(told, Known::Same);
        assert_eq!(next(&noted, "d", &both).1, Known::Same);
    }

    #[test]
    fn a_process_that_was_taken_out_or_replaced_does_not_come_back() {
        let other = proxy("two", "b");
        for before in [None, Some(&other)] {
            let presence = Some(&Presence::Gone);
            let back = decide(before, proxy("one", "a"), &registered(), presence);
            assert!(
                matches!(back, Verdict::Refused(Error::TakenOut(_))),
                "{back:?}"
            );
        }
    }

    #[test]
    fn a_proxy_that_tells_no_process_is_the_same_by_its_store() {
        let before = proxy("one", "");
        let again = decide(Some(&before), before.clone(), &after(&[]), None);
        assert_eq!(taken(again).1, Known::Same);
        let (first, told) = taken(decide(None, before, &after(&[]), None));
        assert_eq!((told, first.is_new), (Known::New, false));
    }
}
