//! The mark of a lock service in etcd: a key of its own that it writes again and again, and whose
//! revision it remembers ([`Seen`]).
//!
//! Revisions alone do not tell an etcd that was restored from a backup: other programs may have
//! written so much since that they are past what was seen. The mark tells it, since nobody else
//! writes it: in a restored etcd it is as old as the backup. So every batch that writes entries
//! compares it, and a watch that starts reads it.
//!
//! It is written when tokens were told since it was written last. A state of etcd from between that
//! moment and now has the mark too, and is told by its revision only.
//!
//! It has no lease, and stays when its lock service goes: one small key for each `data_dir`.

use std::sync::atomic::Ordering;

use prost::bytes::Bytes;

use super::EtcdStore;
use super::endpoints::{Endpoints, store_error};
use super::history::{Mark, Seen};
use super::layout::{KeyRange, Layout};
use super::message::{compare, get, odd, put, take_range};
use crate::etcd_proto::etcdserverpb::compare::{CompareResult, TargetUnion};
use crate::etcd_proto::etcdserverpb::{Compare, RangeRequest, TxnRequest};
use crate::store::{StoreError, random_session_id};
use crate::token::Token;

/// True in etcd exactly while the mark is what was written, or later.
pub fn stands(layout: &Layout, mark: Mark) -> Compare {
    // etcd compares numbers by equal, greater and less only.
    let before = TargetUnion::ModRevision(mark.revision - 1);
    compare(&layout.mark(mark.id), CompareResult::Greater, before)
}

/// Reads the mark, and refuses etcd from now on where it is older than what was written.
pub async fn check(endpoints: &Endpoints, layout: &Layout) -> Result<(), StoreError> {
    let Some(mark) = endpoints.mark() else {
        return Ok(());
    };
    let read = RangeRequest {
        key: layout.mark(mark.id),
        ..RangeRequest::default()
    };
    let read = endpoints.range(read).await;
    let read = read.map_err(|status| store_error(&status))?;
    let found = read.kvs.first().map_or(0, |kv| kv.mod_revision);
    let checked = endpoints.check_mark(mark, found);
    checked.map_err(|status| store_error(&status))
}

impl EtcdStore {
    /// Refuses etcd where it cannot have this behind it.
    pub(super) async fn check_seen(&self, seen: Seen) -> Result<(), StoreError> {
        check(&self.endpoints, &self.layout).await?;
        let now = self.seen().map_or(0, |now| now.token.get());
        if now < seen.token.get() {
            return Err(StoreError::Corrupt(format!(
                "etcd: its next token is above {now} only, and {} may have been given out: it was \
                 restored from a backup",
                seen.token
            )));
        }
        Ok(())
    }

    /// Whether any lock service has ever served from this etcd, under this prefix.
    pub async fn is_marked(&self) -> Result<bool, StoreError> {
        let KeyRange { start, end } = self.layout.mark_range();
        let count = RangeRequest {
            key: start,
            range_end: end,
            count_only: true,
            ..RangeRequest::default()
        };
        let read = self.endpoints.range(count).await;
        let read = read.map_err(|status| store_error(&status))?;
        Ok(read.count > 0)
    }

    /// Whether tokens were told since the mark was written.
    pub fn mark_is_due(&self) -> bool {
        // Relaxed, here and below: a mark that comes a turn later only tells less.
        self.told.load(Ordering::Relaxed) > self.marked.load(Ordering::Relaxed)
    }

    /// Writes the mark, and returns what is to be kept for [`EtcdStore::open_after`]: an etcd that
    /// was restored from a state before now is refused with it.
    pub async fn mark(&self) -> Result<Seen, StoreError> {
        let told = self.told.load(Ordering::Relaxed);
        let before = self.endpoints.mark();
        let id = match before {
            Some(mark) => mark.id,
            None => random_session_id()?,
        };
        let key = self.layout.mark(id);
        // Not over one that is older than it should be: that is what tells a restored etcd.
        let compare = before.map(|mark| stands(&self.layout, mark));
        let write = TxnRequest {
            compare: compare.into_iter().collect(),
            success: vec![put(key.clone(), Bytes::new(), 0)],
            failure: vec![get(key)],
        };
        let written = self.endpoints.txn(write).await;
        let mut answer = written.map_err(|status| store_error(&status))?;
        if !answer.succeeded {
            let found = take_range(&mut answer, 0)?;
            let found = found.kvs.first().map_or(0, |kv| kv.mod_revision);
            let checked = before.map_or(Ok(()), |mark| self.endpoints.check_mark(mark, found));
            checked.map_err(|status| store_error(&status))?;
            return Err(odd("a mark that stands and does not"));
        }
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        self.endpoints.set_mark(Mark { id, revision });
        self.marked.fetch_max(told, Ordering::Relaxed);
        let seen = self.seen();
        seen.ok_or_else(|| StoreError::Corrupt("etcd: an answer without its cluster".to_owned()))
    }

    /// What was seen of the cluster, for [`EtcdStore::open_after`].
    pub fn seen(&self) -> Option<Seen> {
        let (cluster_id, revision) = self.endpoints.seen()?;
        let latest = self.batcher.generations().latest(revision).ok()?;
        let told = self.told.load(Ordering::Relaxed);
        Some(Seen {
            cluster_id,
            revision,
            token: Token::new(told).map_or(latest, |told| told.max(latest)),
            mark: self.endpoints.mark(),
        })
    }

    /// A token has come from etcd, or all later ones were lifted above it.
    pub(super) fn tell(&self, token: Token) {
        self.told.fetch_max(token.get(), Ordering::Relaxed);
    }
}
