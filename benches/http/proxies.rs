//! The origin and the three proxies in front of it, one worker each.

use std::path::Path;
use std::process::Command;

use ringfence::ticket::SigningKey;

use super::process::{Server, free_port};
use super::proxy::{self, INSTANCE, LOCK, start_one, written};

/// A server and where it listens.
pub struct Proxy {
    /// What it is called in the tables.
    pub name: &'static str,
    pub server: Server,
    pub port: u16,
}

/// A ticket for the fenced path, and the key that it is signed with.
pub struct Signed {
    pub envelope: String,
    key: SigningKey,
}

/// A ticket of the lock that the rule names.
pub fn ticket() -> Signed {
    let key = SigningKey::generate();
    let envelope = proxy::ticket(&key);
    Signed { envelope, key }
}

/// nginx that answers everything with a small body.
pub fn origin(dir: &Path) -> Proxy {
    let locations = r#"
        location / {
          default_type application/json;
          return 200 "{\"ok\":true}\n";
        }"#;
    start_nginx("origin", dir, "", locations)
}

/// nginx as a proxy that removes the header.
pub fn nginx(dir: &Path, origin: u16) -> Proxy {
    let upstream = format!("upstream origin {{ server 127.0.0.1:{origin}; keepalive 64; }}");
    let locations = r#"
        location / {
          proxy_pass http://origin;
          proxy_http_version 1.1;
          proxy_set_header Connection "";
          proxy_set_header Host $http_host;
          proxy_set_header Fencing-Token "";
        }"#;
    start_nginx("nginx", dir, &upstream, locations)
}

fn start_nginx(name: &'static str, dir: &Path, upstream: &str, locations: &str) -> Proxy {
    let port = free_port();
    let home = dir.join(format!("{name}-home"));
    std::fs::create_dir(&home).expect("a directory for nginx");
    let text = format!(
        "daemon off; worker_processes 1; pid {home}/nginx.pid; error_log stderr warn;
         events {{ worker_connections 1024; }}
         http {{
           access_log off; keepalive_requests 1000000;
           client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
           fastcgi_temp_path {home}/fastcgi; uwsgi_temp_path {home}/uwsgi;
           scgi_temp_path {home}/scgi;
           {upstream}
           server {{ listen 127.0.0.1:{port} backlog=1024; {locations} }}
         }}",
        home = home.display(),
    );
    let config = dir.join(format!("{name}.conf"));
    std::fs::write(&config, text).expect("nginx's configuration");
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&config).arg("-p").arg(&home);
    Proxy {
        name,
        server: Server::start(name, &mut command, dir, &[port]),
        port,
    }
}

/// haproxy that removes the header.
pub fn haproxy(dir: &Path, origin: u16) -> Proxy {
    let port = free_port();
    let text = format!(
        "global
           nbthread 1
         defaults
           mode http
           timeout connect 5s
           timeout client 30s
           timeout server 30s
           http-reuse always
         listen web
           bind 127.0.0.1:{port}
           http-request del-header Fencing-Token
           server origin 127.0.0.1:{origin}
"
    );
    let config = dir.join("haproxy.cfg");
    std::fs::write(&config, text).expect("haproxy's configuration");
    let mut command = Command::new("haproxy");
    // In the foreground and without a master, so that its pid is the child's.
    command.arg("-db").arg("-f").arg(&config);
    Proxy {
        name: "haproxy",
        server: Server::start("haproxy", &mut command, dir, &[port]),
        port,
    }
}

/// The ringfence proxy with one http listener and one rule.
pub fn ringfence(dir: &Path, origin: u16, ticket: &Signed) -> Proxy {
    let (port, admin) = (free_port(), free_port());
    let keys = written(dir, "keys.txt", &(ticket.key.verifying().to_text() + "\n"));
    let text = format!(
        r#"
        instance = "{INSTANCE}"
        data_dir = "{data}"
        [tickets]
        keys = "{keys}"
        [admin]
        listen = "127.0.0.1:{admin}"
        [[listener]]
        name = "web"
        protocol = "http"
        listen = "127.0.0.1:{port}"
        upstream = "127.0.0.1:{origin}"
        unmatched = "pass"
        [[listener.rule]]
        lock = "{LOCK}"
        path = "/fenced/{{id}}"
        "#,
        data = dir.join("ringfence").display(),
        keys = keys.display(),
    );
    let config = written(dir, "ringfence.toml", &text);
    Proxy {
        name: "ringfence",
        server: start_one("ringfence", &config, dir, &[port]),
        port,
    }
}
