//! Write commands whose reply is short whatever the data: a status, a number, or a number as text.
//! Clients that share a backend connection can wait for them there: none of them can hold the
//! others up by not taking a long reply.

use super::args::Args;

/// In order. As in the `reply_schema` of each command (redis.io/commands), in RESP2 and RESP3.
const BRIEF: [&str; 43] = [
    "append",
    "decr",
    "decrby",
    "expire",
    "expireat",
    "hdel",
    "hincrby",
    "hincrbyfloat",
    "hmset",
    "hset",
    "hsetnx",
    "incr",
    "incrby",
    "incrbyfloat",
    "linsert",
    "lpush",
    "lpushx",
    "lrem",
    "lset",
    "ltrim",
    "persist",
    "pexpire",
    "pexpireat",
    "pfadd",
    "psetex",
    "rpush",
    "rpushx",
    "sadd",
    "set",
    "setbit",
    "setex",
    "setnx",
    "setrange",
    "srem",
    "xack",
    "xadd",
    "xdel",
    "xtrim",
    "zadd",
    "zincrby",
    "zrem",
    "zremrangebyrank",
    "zremrangebyscore",
];

/// Whether the reply to a command of this name can be short.
pub(super) fn has_brief_reply(operation: &str) -> bool {
    BRIEF.binary_search(&operation).is_ok()
}

/// Whether these arguments make it long all the same: `SET key value GET` tells the old value.
pub(super) fn asks_for_value(operation: &str, args: &Args<'_>) -> bool {
    operation == "set"
        && args.len() > 3
        && args
            .iter()
            .skip(3)
            .any(|it| it.eq_ignore_ascii_case(b"get"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order() {
        assert!(BRIEF.is_sorted());
    }
}
