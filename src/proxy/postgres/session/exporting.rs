//! Snapshots that go from one session to another: exported by one, whose name is in the answer, and
//! imported by others.

use super::Session;
use crate::config::{Mode, Trust};
use crate::protocol::postgres::classify::{Class, Classified, SessionControl};
use crate::protocol::postgres::session::Considered;
use crate::proxy::postgres::snapshots::Exported;

/// Most snapshots that one transaction exports.
const EXPORTED_MAX: usize = 100;

/// What a session exports.
#[derive(Default)]
pub(super) struct Exporting {
    /// A statement that does is on its way.
    pub(super) awaited: bool,
    /// Of the open transaction.
    exported: Vec<Exported>,
}

impl Exporting {
    /// No transaction is open.
    pub(super) fn ended(&mut self) {
        self.exported.clear();
    }
}

impl Session {
    /// Looks up the snapshots that a text imports.
    pub(super) fn find_imported(&mut self, classified: &Classified) {
        for statement in &classified.statements {
            if let Class::Session(SessionControl::ImportSnapshot(name)) = &statement.class
                && let Some(shown) = self.listener.snapshots.find(name)
            {
                self.core.knows_snapshot(name, shown);
            }
        }
    }

    /// A message is forwarded that may export. A bare token may be another lock's in another
    /// session, and observing, nothing is settled.
    pub(super) fn note_exports(&mut self, considered: &Considered) {
        let mut runs = considered.runs.iter();
        let config = &self.listener.config;
        let settles = config.mode == Mode::Enforce && config.trust == Trust::Signed;
        self.exporting.awaited |= settles && runs.any(|run| run.statement.uses.exports_snapshot);
    }

    /// A row of the server's: it may tell the name of an exported snapshot.
    pub(super) fn take_exported(&mut self, row: &[u8]) {
        let Some(shown) = self.core.exports() else {
            return;
        };
        self.exporting.awaited = false;
        if self.exporting.exported.len() < EXPORTED_MAX
            && let Some(name) = only_column(row)
        {
            let exported = self.listener.snapshots.export(name, shown);
            self.exporting.exported.extend(exported);
        }
    }
}

/// The text of a row of one column (PostgreSQL docs 55.7, DataRow).
fn only_column(row: &[u8]) -> Option<&str> {
    let rest = row.strip_prefix(&[0, 1])?;
    let (length, text) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
    std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() == length)
}
