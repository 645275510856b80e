//! What the server's command table does not tell, or tells wrongly: one line per command, each with
//! its reason. It wins over the table; what it does not name is judged by the table's flags.

use super::treatment::{Channels, Special, Treatment};

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Override {
    pub(super) name: &'static str,
    pub(super) treatment: Treatment,
    /// Why. Shown to the client where the command is denied.
    pub(super) why: &'static str,
}

const fn line(name: &'static str, treatment: Treatment, why: &'static str) -> Override {
    Override {
        name,
        treatment,
        why,
    }
}

use Treatment::{Denied, Keyless, Read, Server};

const fn special(name: &'static str, special: Special, why: &'static str) -> Override {
    line(name, Treatment::Special(special), why)
}

const TELLS: &str = "it only tells something about the server";
const HELP: &str = "it only tells how it is used";
const TOPOLOGY: &str = "it would lead the client to a node that is not behind the proxy";
const REPLICATION: &str = "it would turn the connection, or the server, into a replica";
const CLUSTER: &str = "it changes which node serves which keys";
const CODE: &str = "it loads code whose writes nobody classifies";
const STATISTICS: &str = "it changes what the server keeps for all: statistics, settings, files";
const ACL_WRITE: &str = "it changes what users may do, other holders among them";
const LIBRARY: &str = "it changes what the functions do that other holders call";
const OWN: &str = "it only changes this connection";
const COUNTED: &str =
    "replies are counted by it; what key space events tell of the proxy's own keys is taken out";
const SET_MODULE: &str =
    "flagged readonly, but the module of vector sets declares every key as written";
const ENTRIES: &str =
    "its entries tell what the proxy itself sends: those about its keys are taken out";

/// Commands whose meaning for data is not what the table says.
pub(super) static DATA: &[Override] = &[
    special(
        "eval",
        Special::Eval { writes: true },
        "flagged neither; writes what it declares",
    ),
    special("evalsha", Special::Eval { writes: true }, "as eval"),
    special("fcall", Special::Eval { writes: true }, "as eval"),
    special(
        "eval_ro",
        Special::Eval { writes: false },
        "the server refuses writes in it",
    ),
    special("evalsha_ro", Special::Eval { writes: false }, "as eval_ro"),
    special("fcall_ro", Special::Eval { writes: false }, "as eval_ro"),
    special(
        "sort",
        Special::Sort,
        "flagged write, but writes only with STORE",
    ),
    special("sort_ro", Special::Sort, "reads what BY and GET name"),
    special(
        "georadius",
        Special::GeoRadius { options: 6 },
        "writes only with STORE",
    ),
    special(
        "georadiusbymember",
        Special::GeoRadius { options: 5 },
        "as georadius",
    ),
    special(
        "xread",
        Special::XRead { writes: false },
        "blocks only with BLOCK",
    ),
    special(
        "xreadgroup",
        Special::XRead { writes: true },
        "its key specification says read, but it moves the group; a group named STREAMS misleads it",
    ),
    special(
        "bitfield",
        Special::BitField,
        "writes unless all its operations are GET",
    ),
    special(
        "copy",
        Special::Copy,
        "its DB names the database of the copy",
    ),
    special(
        "move",
        Special::Move,
        "it also writes to the database that it names",
    ),
    special(
        "swapdb",
        Special::SwapDb,
        "no key, but all keys of two databases",
    ),
    special(
        "flushdb",
        Special::FlushDb,
        "no key, but all keys of the database",
    ),
    line("flushall", Server, "no key, but all keys"),
    special(
        "keys",
        Special::Keys,
        "it lists keys, the proxy's own among them",
    ),
    special("scan", Special::Scan, "as keys"),
    special("randomkey", Special::RandomKey, "as keys"),
    special(
        "acl|log",
        Special::AclLog,
        "RESET erases the log; else it reads, without entries about the proxy's own keys",
    ),
    line("vcard", Read, SET_MODULE),
    line("vdim", Read, SET_MODULE),
    line("vemb", Read, SET_MODULE),
    line("vgetattr", Read, SET_MODULE),
    line("vinfo", Read, SET_MODULE),
    line("vismember", Read, SET_MODULE),
    line("vlinks", Read, SET_MODULE),
    line("vrandmember", Read, SET_MODULE),
    line("vsim", Read, SET_MODULE),
    special("wait", Special::Wait, "flagged neither; waits for replicas"),
    special("waitaof", Special::Wait, "as wait, for the disk"),
    line("publish", Keyless, "flagged neither; a message has no key"),
    line("spublish", Keyless, "as publish; its channel is no key"),
    line("function|load", Server, LIBRARY),
    line("function|delete", Server, LIBRARY),
    line("function|flush", Server, LIBRARY),
    line("function|restore", Server, LIBRARY),
    line(
        "function|kill",
        Server,
        "it ends another connection's function",
    ),
    line(
        "script|flush",
        Server,
        "other holders' scripts are forgotten",
    ),
    line("script|kill", Server, "it ends another connection's script"),
    line(
        "script|load",
        Read,
        "a script's name is its hash: nothing changes its meaning",
    ),
    line("config|set", Server, STATISTICS),
    line("config|rewrite", Server, STATISTICS),
    line("config|resetstat", Server, STATISTICS),
    line("bgsave", Server, STATISTICS),
    line("bgrewriteaof", Server, STATISTICS),
    line("save", Server, STATISTICS),
];

/// Commands that change the state of their connection.
pub(super) static CONNECTION: &[Override] = &[
    special(
        "select",
        Special::Select,
        "a key's identity includes its database",
    ),
    special("auth", Special::Auth, "its user may carry a ticket"),
    special("hello", Special::Hello, "version, user and name at once"),
    special(
        "reset",
        Special::Reset,
        "it clears all of the connection's state",
    ),
    special("quit", Special::Quit, "the server closes after its reply"),
    special("multi", Special::Multi, "what follows is queued"),
    special(
        "exec",
        Special::Exec,
        "flagged neither; it runs what was queued",
    ),
    special(
        "discard",
        Special::Discard,
        "flagged neither; it forgets what was queued",
    ),
    special(
        "watch",
        Special::Watch,
        "it binds the next EXEC to this connection",
    ),
    special("unwatch", Special::Unwatch, "as watch"),
    special("subscribe", Special::Subscribe(Channels::Plain), COUNTED),
    special(
        "psubscribe",
        Special::Subscribe(Channels::Patterns),
        COUNTED,
    ),
    special("ssubscribe", Special::Subscribe(Channels::Shards), COUNTED),
    special(
        "unsubscribe",
        Special::Unsubscribe(Channels::Plain),
        COUNTED,
    ),
    special(
        "punsubscribe",
        Special::Unsubscribe(Channels::Patterns),
        COUNTED,
    ),
    special(
        "sunsubscribe",
        Special::Unsubscribe(Channels::Shards),
        COUNTED,
    ),
    special(
        "monitor",
        Special::Monitor,
        "its reply never ends; beside fence keys it is refused, for it shows all that is sent to them",
    ),
    special("client|reply", Special::ClientReply, COUNTED),
    special(
        "client|setname",
        Special::ClientSetName,
        "the proxy may name its connections itself",
    ),
    special(
        "client|getname",
        Special::ClientGetName,
        "as client|setname",
    ),
    special("client|list", Special::ClientList, "as client|setname"),
    special("client|info", Special::ClientList, "as client|setname"),
    special(
        "client|tracking",
        Special::ClientState,
        "it only changes this connection; invalidations of the proxy's own keys are taken out",
    ),
    special("client|caching", Special::ClientState, OWN),
    special("client|no-evict", Special::ClientState, OWN),
    special("client|no-touch", Special::ClientState, OWN),
    line(
        "client|setinfo",
        Read,
        "it tells the name of the client's library",
    ),
    special("readonly", Special::ClientState, OWN),
    special("readwrite", Special::ClientState, OWN),
    line("client|getredir", Read, TELLS),
    line("client|trackinginfo", Read, TELLS),
    line("client|id", Read, TELLS),
    line("client|help", Read, HELP),
    line(
        "client|unblock",
        Read,
        "it ends a wait as its time-out would",
    ),
    line(
        "client|kill",
        Denied,
        "it would end the connections of other holders, and the proxy's",
    ),
    line("client|pause", Denied, "it would keep seals waiting"),
    line(
        "client|unpause",
        Denied,
        "it would end a pause that an operator began",
    ),
    line("client|capa", Denied, TOPOLOGY),
    line(
        "client|import-source",
        Denied,
        "it would write what has expired",
    ),
    line("asking", Denied, TOPOLOGY),
    line(
        "script|debug",
        Denied,
        "a debugging session is another protocol",
    ),
];

/// Commands that are flagged neither `write` nor `readonly` and change nothing.
pub(super) static TELLING: &[Override] = &[
    line("acl|cat", Read, TELLS),
    line("acl|dryrun", Read, TELLS),
    line("acl|genpass", Read, TELLS),
    line("acl|getuser", Read, TELLS),
    line("acl|help", Read, HELP),
    line("acl|list", Read, TELLS),
    line("acl|users", Read, TELLS),
    line("acl|whoami", Read, TELLS),
    line("cluster|count-failure-reports", Read, TELLS),
    line("cluster|countkeysinslot", Read, TELLS),
    line("cluster|help", Read, HELP),
    line("cluster|info", Read, TELLS),
    line("cluster|keyslot", Read, TELLS),
    line("cluster|myid", Read, TELLS),
    line("cluster|myshardid", Read, TELLS),
    line("cluster|slot-stats", Read, TELLS),
    line("command", Read, TELLS),
    line("command|count", Read, TELLS),
    line("command|docs", Read, TELLS),
    line("command|getkeys", Read, TELLS),
    line("command|getkeysandflags", Read, TELLS),
    line("command|help", Read, HELP),
    line("command|info", Read, TELLS),
    line("command|list", Read, TELLS),
    line("config|get", Read, TELLS),
    line("config|help", Read, HELP),
    line("echo", Read, TELLS),
    line("function|dump", Read, TELLS),
    line("function|help", Read, HELP),
    line("function|list", Read, TELLS),
    line("function|stats", Read, TELLS),
    line("info", Read, TELLS),
    line("lastsave", Read, TELLS),
    line("latency|doctor", Read, TELLS),
    line("latency|graph", Read, TELLS),
    line("latency|help", Read, HELP),
    line("latency|histogram", Read, TELLS),
    line("latency|history", Read, TELLS),
    line("latency|latest", Read, TELLS),
    line("latency|reset", Server, STATISTICS),
    line("memory|doctor", Read, TELLS),
    line("memory|help", Read, HELP),
    line("memory|malloc-stats", Read, TELLS),
    line("memory|purge", Read, "it gives free memory back"),
    line("memory|stats", Read, TELLS),
    line("module|help", Read, HELP),
    line("module|list", Read, TELLS),
    line("object|help", Read, HELP),
    line("ping", Read, TELLS),
    line("pubsub|channels", Read, TELLS),
    line("pubsub|help", Read, HELP),
    line("pubsub|numpat", Read, TELLS),
    line("pubsub|numsub", Read, TELLS),
    line("pubsub|shardchannels", Read, TELLS),
    line("pubsub|shardnumsub", Read, TELLS),
    line("role", Read, TELLS),
    line("script|exists", Read, TELLS),
    line("script|help", Read, HELP),
    line("script|show", Read, TELLS),
    special("slowlog|get", Special::SlowLog, ENTRIES),
    line("slowlog|help", Read, HELP),
    line("slowlog|len", Read, TELLS),
    line("slowlog|reset", Server, STATISTICS),
    special("commandlog|get", Special::SlowLog, ENTRIES),
    line("commandlog|help", Read, HELP),
    line("commandlog|len", Read, TELLS),
    line("commandlog|reset", Server, STATISTICS),
    line("time", Read, TELLS),
    line("xgroup|help", Read, HELP),
    line("xinfo|help", Read, HELP),
    line("acl|save", Server, STATISTICS),
    line("acl|load", Server, ACL_WRITE),
    line("acl|setuser", Server, ACL_WRITE),
];

/// Commands that are not let through unless the configuration permits them by name.
pub(super) static DENIED: &[Override] = &[
    line("psync", Denied, REPLICATION),
    line("sync", Denied, REPLICATION),
    line("replconf", Denied, REPLICATION),
    line("replicaof", Denied, REPLICATION),
    line("slaveof", Denied, REPLICATION),
    line(
        "failover",
        Denied,
        "it hands the data to another server in mid-write",
    ),
    line(
        "migrate",
        Denied,
        "it moves keys to a server that is not behind the proxy",
    ),
    line(
        "restore-asking",
        Denied,
        "it writes past the cluster's own checks",
    ),
    line(
        "debug",
        Denied,
        "it can change data and time in ways that nobody classifies",
    ),
    line(
        "pfdebug",
        Denied,
        "it changes how a value is stored, for Redis's own tests",
    ),
    line(
        "pfselftest",
        Denied,
        "it keeps the server busy, for Redis's own tests",
    ),
    line(
        "shutdown",
        Denied,
        "it loses writes that were acknowledged, and fence keys with them",
    ),
    line("module|load", Denied, CODE),
    line("module|loadex", Denied, CODE),
    line("module|unload", Denied, CODE),
    line("acl|deluser", Server, ACL_WRITE),
    line("cluster|nodes", Denied, TOPOLOGY),
    line("cluster|slots", Denied, TOPOLOGY),
    line("cluster|shards", Denied, TOPOLOGY),
    line("cluster|links", Denied, TOPOLOGY),
    line("cluster|replicas", Denied, TOPOLOGY),
    line("cluster|slaves", Denied, TOPOLOGY),
    line(
        "cluster|getkeysinslot",
        Denied,
        "it lists keys past the proxy's filter",
    ),
    line(
        "clusterscan",
        Denied,
        "it lists keys past the proxy's filter",
    ),
    line("cluster|getslotmigrations", Denied, TOPOLOGY),
    line("cluster|cancelslotmigrations", Denied, CLUSTER),
    line("cluster|migrateslots", Denied, CLUSTER),
    line("cluster|migration", Denied, CLUSTER),
    line("cluster|syncslots", Denied, CLUSTER),
    line("cluster|addslots", Denied, CLUSTER),
    line("cluster|addslotsrange", Denied, CLUSTER),
    line("cluster|bumpepoch", Denied, CLUSTER),
    line("cluster|delslots", Denied, CLUSTER),
    line("cluster|delslotsrange", Denied, CLUSTER),
    line("cluster|failover", Denied, CLUSTER),
    line("cluster|flushslots", Denied, CLUSTER),
    line("cluster|forget", Denied, CLUSTER),
    line("cluster|meet", Denied, CLUSTER),
    line("cluster|replicate", Denied, CLUSTER),
    line("cluster|reset", Denied, CLUSTER),
    line("cluster|saveconfig", Denied, CLUSTER),
    line("cluster|set-config-epoch", Denied, CLUSTER),
    line("cluster|setslot", Denied, CLUSTER),
    // A browser that was led to talk to Redis: the server itself hangs up.
    line("post", Denied, "this is no HTTP server"),
    line("host:", Denied, "this is no HTTP server"),
];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Override> {
    DATA.iter().chain(CONNECTION).chain(TELLING).chain(DENIED)
}
