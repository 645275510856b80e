//! What a connection may keep.

use super::super::{OUTSTANDING_MAX, TRANSACTION_LOCKS_MAX};
use super::{Code, Talk};
use super::{all, needs, two_rules};

#[test]
fn the_queue_and_a_transactions_locks_are_bounded() {
    let mut talk = Talk::new(two_rules());
    talk.both("MULTI", "+OK\r\n");
    for id in 0..TRANSACTION_LOCKS_MAX {
        talk.both(&format!("SET job:{id}:a 1"), "+QUEUED\r\n");
    }
    assert_eq!(needs(&talk, "SET job:more:a 1"), Err(Code::Unclassified));
    let mut talk = Talk::new(all());
    (0..OUTSTANDING_MAX).for_each(|_| {
        assert!(talk.conversation.has_room());
        talk.client("GET a");
    });
    assert!(!talk.conversation.has_room());
}
