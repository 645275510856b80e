//! Which functions write.

use super::catalog::Function;

/// Volatile functions of pg_catalog that change no data: they read, wait, lock, notify, or set for
/// the session. Sorted. What is volatile and not here is a write to everything; among those are
/// the ones that run a text (`query_to_xml`, `ts_stat`, `ts_rewrite`), large objects, WAL,
/// replication slots and origins, and the killing of sessions.
const HARMLESS: &[&str] = &[
    "amvalidate",
    "array_sample",
    "array_shuffle",
    "bernoulli",
    "clock_timestamp",
    "current_query",
    "currtid",
    "currtid2",
    "currval",
    "gen_random_uuid",
    "lastval",
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_advisory_unlock",
    "pg_advisory_unlock_all",
    "pg_advisory_unlock_shared",
    "pg_advisory_xact_lock",
    "pg_advisory_xact_lock_shared",
    "pg_available_wal_summaries",
    "pg_blocking_pids",
    "pg_collation_actual_version",
    "pg_control_checkpoint",
    "pg_control_init",
    "pg_control_recovery",
    "pg_control_system",
    "pg_current_logfile",
    "pg_current_wal_flush_lsn",
    "pg_current_wal_insert_lsn",
    "pg_current_wal_lsn",
    "pg_database_collation_actual_version",
    "pg_database_size",
    "pg_export_snapshot",
    "pg_get_aios",
    "pg_get_backend_memory_contexts",
    "pg_get_loaded_modules",
    "pg_get_sequence_data",
    "pg_get_shmem_allocations",
    "pg_get_shmem_allocations_numa",
    "pg_get_wait_events",
    "pg_get_wal_replay_pause_state",
    "pg_get_wal_resource_managers",
    "pg_get_wal_summarizer_state",
    "pg_hba_file_rules",
    "pg_ident_file_mappings",
    "pg_indexes_size",
    "pg_is_in_recovery",
    "pg_is_wal_replay_paused",
    "pg_isolation_test_session_is_blocked",
    "pg_jit_available",
    "pg_last_committed_xact",
    "pg_last_wal_receive_lsn",
    "pg_last_wal_replay_lsn",
    "pg_last_xact_replay_timestamp",
    "pg_lock_status",
    "pg_ls_archive_statusdir",
    "pg_ls_dir",
    "pg_ls_logdir",
    "pg_ls_logicalmapdir",
    "pg_ls_logicalsnapdir",
    "pg_ls_replslotdir",
    "pg_ls_summariesdir",
    "pg_ls_tmpdir",
    "pg_ls_waldir",
    "pg_notification_queue_usage",
    "pg_notify",
    "pg_partition_ancestors",
    "pg_partition_tree",
    "pg_prepared_xact",
    "pg_read_binary_file",
    "pg_read_file",
    "pg_relation_size",
    "pg_safe_snapshot_blocking_pids",
    "pg_sequence_last_value",
    "pg_show_all_file_settings",
    "pg_show_replication_origin_status",
    "pg_sleep",
    "pg_sleep_for",
    "pg_sleep_until",
    "pg_stat_clear_snapshot",
    "pg_stat_file",
    "pg_stat_get_backend_io",
    "pg_stat_get_backend_wal",
    "pg_stat_get_io",
    "pg_stat_get_recovery_prefetch",
    "pg_stat_get_xact_blocks_fetched",
    "pg_stat_get_xact_blocks_hit",
    "pg_stat_get_xact_function_calls",
    "pg_stat_get_xact_function_self_time",
    "pg_stat_get_xact_function_total_time",
    "pg_stat_get_xact_numscans",
    "pg_stat_get_xact_tuples_deleted",
    "pg_stat_get_xact_tuples_fetched",
    "pg_stat_get_xact_tuples_hot_updated",
    "pg_stat_get_xact_tuples_inserted",
    "pg_stat_get_xact_tuples_newpage_updated",
    "pg_stat_get_xact_tuples_returned",
    "pg_stat_get_xact_tuples_updated",
    "pg_table_size",
    "pg_tablespace_size",
    "pg_total_relation_size",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
    "pg_wal_summary_contents",
    "pg_xact_commit_timestamp",
    "pg_xact_status",
    "random",
    "random_normal",
    "set_config",
    "setseed",
    "system",
    "timeofday",
    "timezone",
    "txid_status",
    "uuidv4",
    "uuidv7",
];

/// Whether a volatile function of pg_catalog is known to change no data.
pub fn is_harmless(name: &str) -> bool {
    HARMLESS.binary_search(&name).is_ok()
}

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallEffect {
    /// It reads.
    Reads,
    /// It writes to the sequence that its argument names.
    Sequence,
    /// It may write to anything.
    Everything,
}

/// What a call of any of these does.
pub(super) fn effect<'f>(candidates: impl Iterator<Item = &'f Function>) -> CallEffect {
    let mut found = CallEffect::Reads;
    for function in candidates.filter(|function| function.volatile) {
        let builtin = &*function.schema == "pg_catalog";
        match &*function.name {
            "nextval" | "setval" if builtin => found = CallEffect::Sequence,
            name if builtin && is_harmless(name) => {}
            _ => return CallEffect::Everything,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{HARMLESS, is_harmless};

    #[test]
    fn the_list_is_sorted_and_holds_nothing_that_writes() {
        assert!(HARMLESS.is_sorted());
        assert!(is_harmless("random") && is_harmless("pg_advisory_lock"));
        for name in [
            "query_to_xml",
            "ts_stat",
            "ts_rewrite",
            "lo_create",
            "lo_open",
            "nextval",
            "pg_terminate_backend",
            "pg_logical_emit_message",
            "pg_create_logical_replication_slot",
            "dblink_exec",
        ] {
            assert!(!is_harmless(name), "{name}");
        }
    }
}
