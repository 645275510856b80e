//! Whether a process may register under a name, and what lockd knows of its store: pure.
//!
//! A seal reaches one process for each name. So another one takes a name over only once the process
//! that is registered cannot admit anything any more; otherwise holders that were sealed out at one
//! of them would still be let in by the other. Invariants:
//! - no clock decides: a process is gone when nothing, or another process, answers at its address;
//!   silence proves nothing;
//! - only a store that is shown to follow the registered one (the same, in a later run) is believed
//!   to know its watermarks, and only it may come while the process before is silent: its file is
//!   open in one process at a time;
//! - what a process is told about its store it is told again until it says that it has noted it.

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

/// `before`: what is registered under the name. `registered`: the process has noted an answer
/// before. `presence`: of the process that is registered, if it was looked for.
pub(super) fn decide(
    before: Option<&Proxy>,
    mut proxy: Proxy,
    registered: bool,
    presence: Option<&Presence>,
) -> Verdict {
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
        proxy.is_new = before.is_new && !registered;
        proxy.run = proxy.run.max(before.run);
        let known = known(&proxy);
        return Verdict::Taken(proxy, known);
    }
    if registered {
        return Verdict::Refused(Error::TakenOut(instance));
    }
    // An older proxy does not tell its run.
    let follows = same_store && (!tells_process || proxy.run > before.run);
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
    proxy.replaced = !follows || before.replaced;
    proxy.is_new = follows && before.is_new;
    if same_store {
        proxy.run = proxy.run.max(before.run);
    }
    let known = known(&proxy);
    Verdict::Taken(proxy, known)
}

fn known(proxy: &Proxy) -> Known {
    match (proxy.replaced, proxy.is_new) {
        (true, _) => Known::StoreLost,
        (false, true) => Known::New,
        (false, false) => Known::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::{Presence, Verdict, decide};
    use crate::lockd::proxies::Proxy;
    use crate::lockd::status::Error;
    use crate::proto::register_response::Known;

    fn proxy(store_id: &str, run: u64, process: &str) -> Proxy {
        Proxy {
            instance: "edge".to_owned(),
            store_id: store_id.to_owned(),
            run,
            process: process.to_owned(),
            replaced: false,
            is_new: false,
            admin: "http://127.0.0.1:7431".to_owned(),
            patterns: vec![],
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
        let before = proxy("one", 4, "a");
        for other in [
            proxy("two", 1, "b"),
            proxy("one", 4, "b"),
            proxy("one", 5, "b"),
            proxy("two", 0, ""),
        ] {
            let asked = decide(Some(&before), other.clone(), false, None);
            assert!(matches!(asked, Verdict::Ask), "{asked:?}");
            let here = decide(Some(&before), other, false, Some(&Presence::Here));
            assert!(
                matches!(here, Verdict::Refused(Error::NameTaken { .. })),
                "{here:?}"
            );
        }
    }

    #[test]
    fn silence_proves_nothing_but_where_the_store_itself_goes_on() {
        let before = proxy("one", 4, "a");
        for other in [proxy("two", 9, "b"), proxy("one", 4, "b")] {
            let silent = decide(Some(&before), other, false, Some(&unknown()));
            assert!(
                matches!(silent, Verdict::Refused(Error::NotProvenGone { .. })),
                "{silent:?}"
            );
        }
        let next = decide(Some(&before), proxy("one", 5, "b"), false, Some(&unknown()));
        assert_eq!(taken(next).1, Known::Same);
    }

    #[test]
    fn another_store_and_one_that_is_not_in_a_later_run_are_lost_ones() {
        let before = proxy("one", 4, "a");
        for (other, known) in [
            (proxy("one", 5, "b"), Known::Same),
            (proxy("one", 4, "b"), Known::StoreLost),
            (proxy("one", 3, "b"), Known::StoreLost),
            (proxy("two", 9, "b"), Known::StoreLost),
            // It does not tell.
            (proxy("one", 0, ""), Known::Same),
        ] {
            let gone = decide(Some(&before), other.clone(), false, Some(&Presence::Gone));
            assert_eq!(taken(gone).1, known, "{other:?}");
        }
    }

    #[test]
    fn what_is_told_is_told_again_until_it_is_noted() {
        for (before, known) in [
            (None, Known::New),
            (Some(proxy("one", 4, "a")), Known::StoreLost),
        ] {
            let other = proxy("two", 1, "b");
            let verdict = decide(before.as_ref(), other.clone(), false, Some(&Presence::Gone));
            let (first, told) = taken(verdict);
            assert_eq!(told, known);
            // The same process, whose answer was lost, and the next one of its store.
            let again = decide(Some(&first), other.clone(), false, None);
            assert_eq!(taken(again).1, known);
            let next = proxy("two", 2, "c");
            let next = decide(Some(&first), next, false, Some(&Presence::Gone));
            assert_eq!(taken(next).1, known);
            let (noted, told) = taken(decide(Some(&first), other, true, None));
            assert_eq!(told, Known::Same);
            let next = proxy("two", 2, "c");
            let next = decide(Some(&noted), next, false, Some(&Presence::Gone));
            assert_eq!(taken(next).1, Known::Same);
        }
    }

    #[test]
    fn a_process_that_was_taken_out_or_replaced_does_not_come_back() {
        let other = proxy("two", 1, "b");
        for before in [None, Some(&other)] {
            let back = decide(before, proxy("one", 4, "a"), true, Some(&Presence::Gone));
            assert!(
                matches!(back, Verdict::Refused(Error::TakenOut(_))),
                "{back:?}"
            );
        }
    }

    #[test]
    fn an_older_proxy_that_tells_no_process_is_the_same_by_its_store() {
        let before = proxy("one", 0, "");
        let again = decide(Some(&before), before.clone(), false, None);
        assert_eq!(taken(again).1, Known::Same);
        let (first, told) = taken(decide(None, before, false, None));
        assert_eq!((told, first.is_new), (Known::New, false));
    }
}
