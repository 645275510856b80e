//! One suite for every store: each sentence of the documentation of `ringfence::store` that a store
//! can break. The rules run on the embedded store, on etcd 3.4 and on etcd 3.5; what only one of
//! them can be asked follows in a file of its own.

#[path = "store_conformance/embedded.rs"]
mod embedded;
#[path = "store_conformance/etcd.rs"]
mod etcd;
#[path = "store_conformance/etcd_cluster.rs"]
mod etcd_cluster;
#[path = "store_conformance/fixture.rs"]
mod fixture;
#[path = "store_conformance/queue_rules.rs"]
mod queue_rules;
#[path = "store_conformance/session_rules.rs"]
mod session_rules;
mod support;
#[path = "store_conformance/watch_rules.rs"]
mod watch_rules;

/// Runs each rule on each store, under the store's name.
macro_rules! on_every_store {
    ($($rules:ident: $($rule:ident)+;)+) => {
        on_every_store!(@ on_embedded, Kind::Embedded, $($rules: $($rule)+;)+);
        on_every_store!(@ on_etcd_3_4, Kind::Etcd(Version::V3_4), $($rules: $($rule)+;)+);
        on_every_store!(@ on_etcd_3_5, Kind::Etcd(Version::V3_5), $($rules: $($rule)+;)+);
    };
    (@ $store:ident, $kind:expr, $($rules:ident: $($rule:ident)+;)+) => {
        mod $store {
            use crate::fixture::{Fixture, Kind};
            #[allow(unused_imports, reason = "the embedded store has no version")]
            use crate::support::etcd::Version;
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $rule() {
                    crate::$rules::$rule(Fixture::start($kind).await).await;
                }
            )+)+
        }
    };
}

on_every_store! {
    session_rules:
        a_session_is_opened_renewed_and_closed
        a_session_that_is_not_renewed_ends_with_its_entries_and_a_renewed_one_stays
        a_session_that_is_gone_cannot_enqueue
        sessions_entries_and_attempts_survive_a_restart
        tokens_grow_across_release_expiry_close_and_restart
        raised_tokens_stay_raised_and_standing_entries_keep_theirs
        records_are_kept_listed_and_removed
        a_record_is_replaced_only_as_it_was_seen
        what_exceeds_a_limit_is_refused
        session_ids_do_not_follow_each_other;
    queue_rules:
        the_queue_is_first_come_first_served
        a_repeated_attempt_keeps_its_place_and_changes_its_version
        a_later_attempt_gets_a_new_entry_and_the_late_cancel_of_the_earlier_removes_nothing
        a_released_attempt_is_over
        only_if_first_writes_nothing_behind_another
        one_of_many_atomic_tries_wins
        a_removal_names_token_session_and_version
        many_callers_of_one_lock_get_distinct_ordered_tokens
        nested_names_are_different_locks
        a_view_bounds_the_tokens_before_and_after_it;
    watch_rules:
        a_watch_tells_what_exists_and_then_every_change_in_order
        a_watch_tells_the_end_of_a_session_for_every_lock
        two_watches_see_the_same
        a_watch_that_is_read_late_ends_up_right;
}
