//! What every command of Redis 7.0 is taken for, and what is added to it by later servers. A
//! command that is added to a server, or to the overrides, is added here by hand.

use ringfence::protocol::redis::CommandClass;

use crate::redis_server::RedisServer;

/// What a server has besides [`ALL`].
pub fn added(server: RedisServer) -> &'static [(CommandClass, &'static str)] {
    match server {
        RedisServer::Redis7 => &[],
        RedisServer::Redis8 => &REDIS8,
        RedisServer::Valkey8 => &VALKEY8,
    }
}

const REDIS8: [(CommandClass, &str); 3] = [
    (
        CommandClass::Read,
        "client|setinfo cluster|myshardid hexpiretime hpexpiretime hpttl httl vcard vdim vemb \
         vgetattr vinfo vismember vlinks vrandmember vsim waitaof",
    ),
    (
        CommandClass::Write,
        "hexpire hexpireat hgetdel hgetex hpersist hpexpire hpexpireat hsetex vadd vrem vsetattr",
    ),
    (CommandClass::Connection, "client|no-touch"),
];

const VALKEY8: [(CommandClass, &str); 4] = [
    (
        CommandClass::Read,
        "client|setinfo cluster|myshardid cluster|slot-stats commandlog|get commandlog|help \
         commandlog|len script|show waitaof",
    ),
    (CommandClass::Whole, "commandlog commandlog|reset"),
    (CommandClass::Connection, "client|no-touch"),
    (CommandClass::Denied, "client|capa client|import-source"),
];

pub const ALL: [(CommandClass, &str); 7] = [
    (
        CommandClass::Read,
        "acl|cat acl|dryrun acl|genpass acl|getuser acl|help acl|list acl|users acl|whoami \
         bitcount bitfield_ro bitpos client|getredir client|help client|id client|trackinginfo \
         client|unblock cluster|count-failure-reports cluster|countkeysinslot cluster|help \
         cluster|info cluster|keyslot cluster|myid command command|count command|docs \
         command|getkeys command|getkeysandflags command|help command|info command|list \
         config|get config|help dbsize dump echo eval_ro evalsha_ro exists expiretime fcall_ro \
         function|dump function|help function|list function|stats geodist geohash geopos \
         georadius_ro georadiusbymember_ro geosearch get getbit getrange hexists hget hgetall \
         hkeys hlen hmget hrandfield hscan hstrlen hvals info keys lastsave latency|doctor \
         latency|graph latency|help latency|histogram latency|history latency|latest lcs lindex \
         llen lolwut lpos lrange memory|doctor memory|help memory|malloc-stats memory|purge \
         memory|stats memory|usage mget module|help module|list object|encoding object|freq \
         object|help object|idletime object|refcount pexpiretime ping pttl pubsub|channels \
         pubsub|help pubsub|numpat pubsub|numsub pubsub|shardchannels pubsub|shardnumsub \
         randomkey role scan scard script|exists script|help script|load sdiff sinter sintercard \
         sismember slowlog|get slowlog|help slowlog|len smembers smismember srandmember sscan \
         strlen substr sunion time touch ttl type wait xgroup|help xinfo|consumers xinfo|groups \
         xinfo|help xinfo|stream xlen xpending xrange xread xrevrange zcard zcount zdiff zinter \
         zintercard zlexcount zmscore zrandmember zrange zrangebylex zrangebyscore zrank \
         zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion",
    ),
    (
        CommandClass::Write,
        "append bitop blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin copy decr \
         decrby del expire expireat geoadd geosearchstore getdel getex getset hdel hincrby \
         hincrbyfloat hmset hset hsetnx incr incrby incrbyfloat linsert lmove lmpop lpop lpush \
         lpushx lrem lset ltrim move mset msetnx persist pexpire pexpireat pfadd pfcount pfmerge \
         psetex rename renamenx restore rpop rpoplpush rpush rpushx sadd sdiffstore set setbit \
         setex setnx setrange sinterstore smove spop srem sunionstore unlink xack xadd xautoclaim \
         xclaim xdel xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy \
         xgroup|setid xreadgroup xsetid xtrim zadd zdiffstore zincrby zinterstore zmpop zpopmax \
         zpopmin zrangestore zrem zremrangebylex zremrangebyrank zremrangebyscore zunionstore",
    ),
    (
        CommandClass::ByArguments,
        "acl|log bitfield eval evalsha fcall georadius georadiusbymember sort sort_ro",
    ),
    (CommandClass::Keyless, "publish spublish"),
    (
        CommandClass::Whole,
        "acl acl|deluser acl|load acl|save acl|setuser bgrewriteaof bgsave client cluster config \
         config|resetstat config|rewrite config|set flushall flushdb function function|delete \
         function|flush function|kill function|load function|restore latency latency|reset memory \
         module object pubsub save script script|flush script|kill slowlog slowlog|reset swapdb \
         xgroup xinfo",
    ),
    (
        CommandClass::Connection,
        "auth client|caching client|getname client|info client|list client|no-evict client|reply \
         client|setname client|tracking discard exec hello monitor multi psubscribe punsubscribe \
         quit readonly readwrite reset select ssubscribe subscribe sunsubscribe unsubscribe \
         unwatch watch",
    ),
    (
        CommandClass::Denied,
        "asking client|kill client|pause client|unpause cluster|addslots cluster|addslotsrange \
         cluster|bumpepoch cluster|delslots cluster|delslotsrange cluster|failover \
         cluster|flushslots cluster|forget cluster|getkeysinslot cluster|links cluster|meet \
         cluster|nodes cluster|replicas cluster|replicate cluster|reset cluster|saveconfig \
         cluster|set-config-epoch cluster|setslot cluster|shards cluster|slaves cluster|slots \
         debug failover migrate module|load module|loadex module|unload pfdebug pfselftest psync \
         replconf replicaof restore-asking script|debug shutdown slaveof sync",
    ),
];
