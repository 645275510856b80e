//! What waits for a batch, by lock, and what may share one.

use std::collections::{HashMap, VecDeque};

use prost::Message as _;

use super::batch::Waiting;
use crate::lock_name::LockName;

/// Operations in one batch, and compares. etcd refuses more than 128 of either on any path of
/// nesting (`--max-txn-ops`); ours nest up to 8 below the batch, and the batch adds 4 of its own.
const BATCH_OPERATIONS_MAX: usize = 112;

/// Bytes in one batch. etcd refuses requests above 1.5 MiB (`--max-request-bytes`).
const BATCH_BYTES_MAX: usize = 512 * 1024;

/// Batches in flight. More would make them smaller.
const BATCHES_IN_FLIGHT_MAX: usize = 2;

/// Batches in flight while locks have more waiting than one batch takes: the enqueues for one lock
/// need a batch each, and etcd writes those that come together to disk together.
const CROWDED_IN_FLIGHT_MAX: usize = 12;

/// What waits, by lock: a lock with a thousand enqueues takes one place in each batch.
#[derive(Default)]
pub struct Lanes {
    lanes: HashMap<LockName, Lane>,
    /// The locks that have something waiting, in turn.
    turns: VecDeque<LockName>,
    pub len: usize,
    /// The last batch left something behind that could not share it.
    crowded: bool,
}

/// Others first: a removal must not wait behind the enqueues that it serves.
#[derive(Default)]
struct Lane {
    others: VecDeque<Waiting>,
    creates: VecDeque<Waiting>,
}

impl Lanes {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn in_flight_max(&self) -> usize {
        if self.crowded {
            CROWDED_IN_FLIGHT_MAX
        } else {
            BATCHES_IN_FLIGHT_MAX
        }
    }

    pub fn push(&mut self, waiting: Waiting) {
        let lane = self
            .lanes
            .entry(waiting.nested.lock.clone())
            .or_insert_with(|| {
                self.turns.push_back(waiting.nested.lock.clone());
                Lane::default()
            });
        let queue = if waiting.nested.creates {
            &mut lane.creates
        } else {
            &mut lane.others
        };
        queue.push_back(waiting);
        self.len += 1;
    }

    /// The next batch: each lock in turn gives what may go together.
    pub fn take_batch(&mut self) -> Vec<Waiting> {
        let mut batch: Vec<Waiting> = Vec::new();
        let (mut bytes, mut left) = (0, BATCH_OPERATIONS_MAX);
        for _ in 0..self.turns.len() {
            if left == 0 || bytes >= BATCH_BYTES_MAX {
                break;
            }
            let Some(lock) = self.turns.pop_front() else {
                break;
            };
            let Some(lane) = self.lanes.get_mut(&lock) else {
                continue;
            };
            let start = batch.len();
            self.len -= lane.take(&mut batch, &mut left);
            bytes += batch[start..]
                .iter()
                .map(|one| one.nested.txn.encoded_len())
                .sum::<usize>();
            if lane.others.is_empty() && lane.creates.is_empty() {
                self.lanes.remove(&lock);
            } else {
                self.turns.push_back(lock);
            }
        }
        self.crowded = !self.is_empty();
        batch
    }
}

impl Lane {
    /// Moves to the batch what may join it; returns how many have left the lane.
    fn take(&mut self, batch: &mut Vec<Waiting>, left: &mut usize) -> usize {
        let (start, before) = (batch.len(), self.others.len() + self.creates.len());
        for queue in [&mut self.others, &mut self.creates] {
            while let Some(waiting) = queue.pop_front() {
                let joined = &batch[start..];
                let abandoned = waiting.reply.is_closed();
                let weight = waiting.nested.weight();
                let clash = joined.iter().any(|other| {
                    other.nested.key == waiting.nested.key
                        || (other.nested.creates && waiting.nested.creates)
                });
                if abandoned {
                    continue;
                }
                if clash || weight > *left {
                    queue.push_front(waiting);
                    break;
                }
                *left -= weight;
                // Removals have the first claim to a place in the batch, but an enqueue runs before
                // them: it then still finds the holder that it reads, who may be about to go.
                let at = if waiting.nested.creates {
                    start
                } else {
                    batch.len()
                };
                batch.insert(at, waiting);
            }
        }
        before - self.others.len() - self.creates.len()
    }
}

#[cfg(test)]
mod tests {
    use prost::bytes::Bytes;
    use tokio::sync::oneshot;

    use super::*;
    use crate::etcd_proto::etcdserverpb::TxnRequest;
    use crate::store::etcd::batch::{Answer, Failure, Nested};

    type Reply = oneshot::Receiver<Result<Answer, Failure>>;

    fn push(lanes: &mut Lanes, lock: &str, key: &str, creates: bool) -> Reply {
        let (reply, answer) = oneshot::channel();
        let nested = Nested {
            lock: LockName::new(lock).unwrap(),
            key: Bytes::from(key.to_owned()),
            creates,
            pinned: None,
            flat: false,
            txn: TxnRequest::default(),
        };
        lanes.push(Waiting { nested, reply });
        answer
    }

    fn keys(batch: &[Waiting]) -> Vec<&str> {
        batch
            .iter()
            .map(|one| std::str::from_utf8(&one.nested.key).unwrap())
            .collect()
    }

    #[test]
    fn one_enqueue_of_a_lock_goes_in_a_batch_and_removals_go_before_it() {
        let mut lanes = Lanes::default();
        let _replies = [
            push(&mut lanes, "a", "a/1", true),
            push(&mut lanes, "a", "a/2", true),
            push(&mut lanes, "b", "b/1", true),
            push(&mut lanes, "a", "a/3", false),
            push(&mut lanes, "a", "a/4", false),
        ];
        assert_eq!(keys(&lanes.take_batch()), ["a/1", "a/3", "a/4", "b/1"]);
        assert_eq!(keys(&lanes.take_batch()), ["a/2"]);
        assert!(lanes.is_empty() && lanes.take_batch().is_empty());
    }

    #[test]
    fn two_writes_of_one_key_never_share_a_batch() {
        let mut lanes = Lanes::default();
        let _replies = [
            push(&mut lanes, "a", "a/1", false),
            push(&mut lanes, "a", "a/1", false),
            push(&mut lanes, "a", "a/1", true),
        ];
        for _ in 0..3 {
            assert_eq!(keys(&lanes.take_batch()), ["a/1"]);
        }
        assert!(lanes.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_not_sent() {
        let mut lanes = Lanes::default();
        drop(push(&mut lanes, "a", "a/1", true));
        let _reply = push(&mut lanes, "a", "a/2", true);
        drop(push(&mut lanes, "b", "b/1", false));
        assert_eq!(keys(&lanes.take_batch()), ["a/2"]);
        assert!(lanes.is_empty());
    }

    #[test]
    fn a_batch_has_a_limit_and_each_lock_has_its_turn() {
        let mut lanes = Lanes::default();
        let mut replies = Vec::new();
        for index in 0..BATCH_OPERATIONS_MAX {
            replies.push(push(&mut lanes, "hot", &format!("hot/{index}"), true));
            replies.push(push(&mut lanes, &format!("l{index}"), "l/1", true));
        }
        assert_eq!(lanes.take_batch().len(), BATCH_OPERATIONS_MAX);
        let second = lanes.take_batch();
        assert_eq!(
            keys(&second)
                .iter()
                .filter(|key| key.starts_with("hot/"))
                .count(),
            1
        );
    }
}
