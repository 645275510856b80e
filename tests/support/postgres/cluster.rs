//! The files of a cluster. It is copied from a template that the first test makes; the template
//! lies in Cargo's folder for temporary files and is named for all that it was made from.

use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

/// Everything in the template, a statement a line: single-user mode reads them so.
const TEMPLATE: &str = "\
CREATE ROLE app LOGIN
CREATE ROLE other LOGIN
CREATE ROLE tls_user LOGIN
SET password_encryption = 'md5'; CREATE ROLE md5_user LOGIN PASSWORD 'md5 secret'
SET password_encryption = 'scram-sha-256'; CREATE ROLE scram_user LOGIN PASSWORD 'scram secret'
CREATE ROLE cleartext_user LOGIN PASSWORD 'cleartext secret'
CREATE ROLE ringfence_control LOGIN PASSWORD 'control secret'
GRANT pg_signal_backend, pg_read_all_stats TO ringfence_control
CREATE DATABASE app OWNER app
";

/// The folder of the server's programs: the newest version that Debian has installed, or what
/// `RINGFENCE_TEST_POSTGRES` names, to test with another version.
pub fn programs() -> PathBuf {
    if let Some(folder) = std::env::var_os("RINGFENCE_TEST_POSTGRES") {
        return folder.into();
    }
    debian_programs()
}

fn debian_programs() -> PathBuf {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .expect("postgresql is installed (make test-needs)")
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, bin)| bin.join("postgres").exists())
        .collect();
    versions.sort();
    versions.pop().expect("a server of Postgres is installed").1
}

/// One of the programs that are for clients. Where the version that was asked for comes without
/// them, it is Debian's: what is compared is the same one twice.
pub fn client_program(name: &str) -> PathBuf {
    let program = programs().join(name);
    if program.exists() {
        program
    } else {
        debian_programs().join(name)
    }
}

/// A program as the user who may run a server.
pub fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if geteuid().is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    // Ends with the test, even where that is killed.
    command.arg("--pdeathsig=KILL").arg(program);
    command
}

pub fn give_to_postgres(folder: &Path) {
    if geteuid().is_root() {
        run(Command::new("chown")
            .args(["-R", "postgres:postgres"])
            .arg(folder));
    }
}

fn run(command: &mut Command) {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complaint}");
}

pub fn copy(from: &Path, to: &Path) {
    run(Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .args([from, to]));
}

/// The template's folder, made by whoever comes first.
pub fn template() -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (programs(), TEMPLATE).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).unwrap();
    let lock = File::create(folder.join("postgres.lock")).unwrap();
    lock.lock().expect("a lock on the template");
    let template = folder.join(format!("postgres-{:016x}", hasher.finish()));
    if !template.exists() {
        make_template(&template);
    }
    template
}

fn make_template(template: &Path) {
    let folder = tempfile::tempdir().expect("a folder for the template");
    give_to_postgres(folder.path());
    let data = folder.path().join("data");
    run(as_postgres(&programs().join("initdb"))
        .args(["--auth=trust", "--no-sync", "--username=postgres"])
        .args(["--locale=C.UTF-8", "-D"])
        .arg(&data));
    let mut single = as_postgres(&programs().join("postgres"));
    single.args(["--single", "-F", "-D"]).arg(&data);
    let mut single = single
        .arg("postgres")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("single-user mode");
    let mut stdin = single.stdin.take().expect("its input");
    stdin.write_all(TEMPLATE.as_bytes()).unwrap();
    drop(stdin);
    assert!(single.wait().unwrap().success(), "single-user mode failed");
    // Complete under this name, or not there.
    let unfinished = template.with_extension("unfinished");
    let _ = std::fs::remove_dir_all(&unfinished);
    copy(&data, &unfinished);
    std::fs::rename(&unfinished, template).unwrap();
}

pub fn make_certificate(data: &Path) {
    let (key, certificate) = (data.join("server.key"), data.join("server.crt"));
    run(Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "3650", "-newkey", "ec"])
        .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-subj", "/CN=localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args([Path::new("-keyout"), &key, Path::new("-out"), &certificate]));
}
