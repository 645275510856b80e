//! The command line, as types. What the commands do is in [`crate::cmd`].

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::clock;
use crate::lock_name::LockName;

#[cfg(test)]
mod tests;

/// Locks whose tokens are enforced: a lock service, and a proxy that refuses stale writers.
#[derive(Parser, Debug)]
#[command(name = "ringfence", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run lock service, proxy and an S3 store in this process, to try it out.
    Dev(Box<DevArgs>),
    /// Play the paused-writer story and show what is accepted and what is refused.
    ///
    /// Exit: 0 if the stale write was refused and the newer one stands, 1 if not.
    Demo(DemoArgs),
    /// Run the lock service.
    Lockd(LockdArgs),
    /// Run the proxy.
    Proxy(ProxyArgs),
    /// Hold a lock while CMD runs; without CMD until Ctrl-C, with the ticket on stdout.
    ///
    /// CMD runs in its own process group and finds the ticket in FENCING_TOKEN, the bare number in
    /// FENCING_TOKEN_NUMBER and the lock's name in FENCING_LOCK. When the lock is lost, or cannot
    /// be shown to be held, the group gets SIGTERM before the lease can have ended, and SIGKILL
    /// after --grace. The lock is released when the whole group is gone: what CMD leaves running
    /// in its group when it exits is ended the same way. SIGINT, SIGTERM, SIGHUP and SIGQUIT are
    /// passed on to the group.
    ///
    /// While ringfence itself is stopped (SIGSTOP, a suspended machine) it can end nothing: CMD may
    /// run past the lease then. When it goes on, it kills CMD at once. What covers the time between
    /// is the ticket: a proxy refuses CMD's writes once a newer holder exists.
    ///
    /// Exit: CMD's own code (128 + signal if a signal ended it); 75 not acquired within --wait; 76
    /// lost while CMD ran; 69 lock service unreachable; 64 usage; 126, 127 CMD cannot be run.
    Lock(LockArgs),
    /// List the locks that are held.
    Locks(LocksArgs),
    /// Show who holds a lock and who waits for it.
    Show(ShowArgs),
    /// Print each holder of a lock, the present one first.
    Watch(ShowArgs),
    /// Raise a proxy's watermark to a ticket's token; returns when nothing older can be applied.
    Seal(SealArgs),
    /// The proxies that lockd seals grants through.
    #[command(subcommand)]
    Proxies(ProxiesCommand),
    /// Read the proxy's audit.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// The keys that sign tickets.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// A client of the demo, as a process of its own.
    #[command(hide = true)]
    DemoWriter(DemoWriterArgs),
}

/// Where the lock service is.
#[derive(Args, Debug, Clone)]
pub struct LockdAddress {
    /// The lock service; several endpoints of one service by commas.
    #[arg(
        long = "lockd",
        env = "RINGFENCE_LOCKD",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7420"
    )]
    pub endpoints: Vec<String>,
}

/// Where the proxy's admin port is.
#[derive(Args, Debug, Clone)]
pub struct ProxyAddress {
    /// The admin port of the proxy.
    #[arg(
        long = "proxy",
        env = "RINGFENCE_PROXY",
        value_name = "URL",
        default_value = "http://127.0.0.1:7431"
    )]
    pub endpoint: String,
}

/// How a listing is printed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Aligned columns for people.
    Text,
    /// One JSON value; `watch` and `audit tail`: one per line.
    Json,
}

/// The form of a listing.
#[derive(Args, Debug, Clone)]
pub struct OutputArgs {
    /// How to print.
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// `ringfence dev`
#[derive(Args, Debug, Clone)]
pub struct DevArgs {
    /// Folder for everything that is kept.
    #[arg(long, value_name = "DIR", default_value = ".ringfence-dev")]
    pub data: PathBuf,
    /// Also fence this REST service: each write to it needs a ticket of the lock `http`.
    #[arg(long = "http", value_name = "URL")]
    pub http: Option<String>,
    /// Also fence this etcd (host:port, no TLS): each write to it needs a ticket of the lock
    /// `etcd`.
    #[arg(long = "etcd", value_name = "ADDR")]
    pub etcd: Option<String>,
    /// Lock service (gRPC). Port 0 takes a free one, here and below.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7420")]
    pub lockd_listen: SocketAddr,
    /// Proxy: admin port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7431")]
    pub admin_listen: SocketAddr,
    /// Proxy: S3 listener.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7490")]
    pub s3_listen: SocketAddr,
    /// Also fence this Redis server: each write to it needs a ticket of the lock `redis`.
    #[arg(long = "redis", value_name = "HOST:PORT")]
    pub redis: Option<String>,

    /// Proxy: Redis listener, with --redis.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6380")]
    pub redis_listen: SocketAddr,

    /// Also fence this Postgres server: each write to it needs a ticket of the lock `postgres`.
    #[cfg(feature = "postgres")]
    #[arg(long = "postgres", value_name = "HOST:PORT")]
    pub postgres: Option<String>,
    /// Whom the proxy itself is there; its password, if it needs one, in PGPASSWORD.
    ///
    /// CREATE ROLE ringfence LOGIN; GRANT pg_read_all_stats, pg_signal_backend TO ringfence
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "ROLE", default_value = "ringfence")]
    pub postgres_control: String,
    /// Proxy: Postgres listener, with --postgres.
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6432")]
    pub postgres_listen: SocketAddr,
    /// Proxy: HTTP listener, with --http.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7480")]
    pub http_listen: SocketAddr,
    /// Proxy: etcd listener, with --etcd.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2389")]
    pub etcd_listen: SocketAddr,
}

/// `ringfence demo`
#[derive(Args, Debug, Clone)]
pub struct DemoArgs {
    /// Time to live of the writers' leases.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    pub ttl: Duration,
}

/// `ringfence lockd`
#[derive(Args, Debug, Clone)]
pub struct LockdArgs {
    /// The configuration file; defaults without one.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Start although the store is not the one that was there before.
    ///
    /// The embedded store's file is gone, empty or an older copy, though its keys are there; etcd
    /// was replaced, or restored from a backup; or the locks move between the two. Tokens then
    /// begin above all that the data_dir knows to be out, and further up by the time in
    /// milliseconds. What it does not know may be higher, and tokens fall, where the clock was
    /// ahead when an earlier store was begun in this way, or a proxy has lifted them: proxies do
    /// so again for the locks that they guard.
    ///
    /// The proxies that the data_dir knows (`proxies.seen`) are put back into the set, and may run
    /// on. Stop those before that it does not know: grants are not sealed through them, and they
    /// would go on to admit older holders. The log says which those can be.
    #[arg(long)]
    pub init: bool,
}

/// `ringfence proxy`
#[derive(Args, Debug, Clone)]
pub struct ProxyArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration and exit.
    #[arg(long)]
    pub check: bool,
    /// Make what `watermarks.store = "backend"` needs in the databases, and exit.
    ///
    /// In the database of each Postgres listener's control role: the schema `ringfence`, with the
    /// watermarks and the sessions that were let in under them. What is there is kept. Where the
    /// schema was lost, stop every proxy first: sessions that it had let in are not known any more.
    #[arg(long)]
    pub install: bool,
    /// Start on an empty or missing data_dir although the proxy stands alone.
    ///
    /// With keys from a file, or unsigned tokens, there is nobody who knows which tokens were
    /// admitted before: every lock starts with the lowest floor, so that a stale token may be
    /// admitted if this data_dir replaces a lost one.
    #[arg(long)]
    pub init: bool,
}

/// `ringfence lock`
#[derive(Args, Debug, Clone)]
pub struct LockArgs {
    /// The lock, which is the name of what it guards.
    pub name: LockName,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub lockd: LockdAddress,
    /// Longest wait for the lock; 0 tries once. Forever if not given.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    /// Time to live of the lease: how long others wait when this machine dies. 500ms to 24h; the
    /// service may ask for more or less (`session_ttl_min`, 1s, and `session_ttl_max`, 1h).
    #[arg(long, value_name = "TIME", value_parser = parse_ttl, default_value = "15s")]
    pub ttl: Duration,
    /// Time between SIGTERM and SIGKILL.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    pub grace: Duration,
    /// Shown to operators as the holder. The machine's name and the process id if not given.
    #[arg(long, value_name = "TEXT")]
    pub holder: Option<String>,
    /// What to run.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `ringfence locks`
#[derive(Args, Debug, Clone)]
pub struct LocksArgs {
    /// Only locks whose names begin so.
    #[arg(default_value = "")]
    pub prefix: String,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub lockd: LockdAddress,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub output: OutputArgs,
}

/// `ringfence show`, `ringfence watch`
#[derive(Args, Debug, Clone)]
pub struct ShowArgs {
    /// The lock.
    pub name: LockName,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub lockd: LockdAddress,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub output: OutputArgs,
}

/// `ringfence seal`
#[derive(Args, Debug, Clone)]
pub struct SealArgs {
    /// The lock, which must be the ticket's.
    pub name: LockName,
    /// The ticket of the lock's holder.
    #[arg(
        long,
        env = "FENCING_TOKEN",
        value_name = "TICKET",
        hide_env_values = true
    )]
    pub ticket: String,
    /// Longest wait for older writes to end, at most 60s; 0 asks once.
    #[arg(long, value_name = "TIME", value_parser = parse_seal_wait, default_value = "10s")]
    pub wait: Duration,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub proxy: ProxyAddress,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub output: OutputArgs,
}

/// `ringfence proxies`
#[derive(Subcommand, Debug)]
pub enum ProxiesCommand {
    /// List them.
    List(ProxiesListArgs),
    /// Take one out that will not come back: grants are then sealed without it.
    ///
    /// What it left in flight at a backend would land unfenced, so its backend sessions must be
    /// proven dead first. Recorded in the audit of the lock service before it is done.
    Remove(ProxiesRemoveArgs),
}

/// `ringfence proxies list`
#[derive(Args, Debug, Clone)]
pub struct ProxiesListArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub lockd: LockdAddress,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub output: OutputArgs,
}

/// `ringfence proxies remove`
#[derive(Args, Debug, Clone)]
pub struct ProxiesRemoveArgs {
    /// The proxy's `instance`.
    pub instance: String,
    /// Why, for the audit.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// You have proven that none of its connections to a backend lives: its process is gone, and
    /// each backend has ended its sessions or the in_doubt_hold has passed.
    #[arg(long)]
    pub sessions_proven_dead: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub lockd: LockdAddress,
}

/// `ringfence audit`
#[derive(Subcommand, Debug)]
pub enum AuditCommand {
    /// Print the last refusals.
    Tail(TailArgs),
}

/// `ringfence audit tail`
#[derive(Args, Debug, Clone)]
pub struct TailArgs {
    /// How many records from before.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 10)]
    pub lines: u32,
    /// Go on with each new record.
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub proxy: ProxyAddress,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub output: OutputArgs,
}

/// `ringfence keys`
#[derive(Subcommand, Debug)]
pub enum KeysCommand {
    /// Make the signing key of a lock service, if its folder holds none; print the public half.
    Generate(KeysFolder),
    /// Make a new signing key. The ones before go on verifying what they signed.
    ///
    /// A running lock service takes the new key over within seconds, and proxies from it.
    Rotate(KeysFolder),
    /// Print the public keys of a running lock service, as a proxy's key file takes them.
    Show(KeysShowArgs),
}

/// Where the signing keys are.
#[derive(Args, Debug, Clone)]
pub struct KeysFolder {
    /// The lock service's configuration file, which names the folder.
    #[arg(long, value_name = "FILE", conflicts_with = "folder")]
    pub config: Option<PathBuf>,
    /// The folder itself.
    #[arg(long = "dir", value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// `ringfence keys show`
#[derive(Args, Debug, Clone)]
pub struct KeysShowArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub lockd: LockdAddress,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the help of the flattened type is shown")]
    pub output: OutputArgs,
}

/// `ringfence demo-writer`
#[derive(Args, Debug, Clone)]
pub struct DemoWriterArgs {
    /// The lock.
    #[arg(long)]
    pub name: LockName,
    /// The lock service.
    #[arg(long)]
    pub lockd: String,
    /// Time to live of its lease.
    #[arg(long, value_parser = parse_duration)]
    pub ttl: Duration,
    /// Where to write, `http://host:port/path`.
    #[arg(long)]
    pub target: String,
    /// What to write.
    #[arg(long)]
    pub content: String,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = "a whole number with its unit is a time: 250ms, 15s, 5m, 1h, 2d, or 0";
    clock::parse_duration(text).ok_or_else(|| expected.to_owned())
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = parse_duration(text)?;
    if (crate::client::TTL_MIN..=crate::client::TTL_MAX).contains(&ttl) {
        Ok(ttl)
    } else {
        Err("it must be from 500ms to 24h".into())
    }
}

/// Longer than that no proxy waits.
const SEAL_WAIT_MAX: Duration = Duration::from_secs(60);

fn parse_seal_wait(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        wait if wait > SEAL_WAIT_MAX => Err("a proxy waits at most 60s".into()),
        wait => Ok(wait),
    }
}
