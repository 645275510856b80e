//! Storage behind the proxy: an HTTP key-value service that the test can hold at each step, and an
//! S3 store on disk.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};

use crate::stack::eventually;

#[derive(Default)]
struct Shared {
    objects: HashMap<String, String>,
    /// `PATH=BODY` of each write, in the order of applying.
    applied: Vec<String>,
    /// Heads as they came, before their bodies.
    heads: Vec<String>,
    hold_before_apply: bool,
    hold_before_reply: bool,
    /// Requests held now.
    held: usize,
    connections: usize,
}

/// A REST service in this process: `PUT` stores, `GET` reads.
#[derive(Clone)]
pub struct Origin {
    pub address: SocketAddr,
    shared: Arc<(Mutex<Shared>, Condvar)>,
}

impl Origin {
    pub fn start() -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let origin = Origin {
            address,
            shared: Arc::default(),
        };
        let serving = origin.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let origin = serving.clone();
                origin.shared.0.lock().unwrap().connections += 1;
                std::thread::spawn(move || while origin.serve_one(&stream).is_some() {});
            }
        });
        origin
    }

    fn serve_one(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::with_capacity(1, stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        self.shared.0.lock().unwrap().heads.push(head.clone());
        let body = read_body(&mut reader, &head)?;
        let mut words = head.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (status, answer) = self.handle(&method, &path, body);
        let mut stream = stream;
        let length = answer.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{answer}"
        )
        .ok()
    }

    fn handle(&self, method: &str, path: &str, body: String) -> (&'static str, String) {
        let (mutex, changed) = &*self.shared;
        let mut shared = mutex.lock().unwrap();
        if method == "GET" {
            return match shared.objects.get(path) {
                Some(body) => ("200 OK", body.clone()),
                None => ("404 Not Found", String::new()),
            };
        }
        shared.held += 1;
        shared = changed
            .wait_while(shared, |it| it.hold_before_apply)
            .unwrap();
        shared.applied.push(format!("{path}={body}"));
        shared.objects.insert(path.to_owned(), body);
        shared = changed
            .wait_while(shared, |it| it.hold_before_reply)
            .unwrap();
        shared.held -= 1;
        ("200 OK", "stored".to_owned())
    }

    /// From now on writes are held after they arrived and before they are applied.
    pub fn hold_before_apply(&self) {
        self.shared.0.lock().unwrap().hold_before_apply = true;
    }

    /// From now on writes are applied at once and their replies are held.
    pub fn hold_before_reply(&self) {
        self.shared.0.lock().unwrap().hold_before_reply = true;
    }

    pub fn let_go(&self) {
        let mut shared = self.shared.0.lock().unwrap();
        shared.hold_before_apply = false;
        shared.hold_before_reply = false;
        self.shared.1.notify_all();
    }

    pub fn wait_until_held(&self) {
        eventually("a write that the backend holds", || {
            self.shared.0.lock().unwrap().held > 0
        });
    }

    pub fn applied(&self) -> Vec<String> {
        self.shared.0.lock().unwrap().applied.clone()
    }

    pub fn heads(&self) -> Vec<String> {
        self.shared.0.lock().unwrap().heads.clone()
    }

    pub fn object(&self, path: &str) -> Option<String> {
        self.shared.0.lock().unwrap().objects.get(path).cloned()
    }
}

/// `None`: the connection ended before the body did, which is then discarded.
fn read_body(reader: &mut impl BufRead, head: &str) -> Option<String> {
    let lower = head.to_ascii_lowercase();
    let mut body = Vec::new();
    if lower.contains("\r\ntransfer-encoding: chunked\r\n") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let size = usize::from_str_radix(line.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                break;
            }
        }
    } else if let Some((_, rest)) = lower.split_once("\r\ncontent-length: ") {
        body = vec![0; rest.split("\r\n").next()?.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
    }
    Some(String::from_utf8_lossy(&body).into_owned())
}

/// An S3 store in this process.
pub struct S3 {
    pub address: SocketAddr,
    /// `PUT /box/key` of each request, before its body came.
    requests: Arc<Mutex<Vec<String>>>,
}

impl S3 {
    /// s3s-fs on a folder, with bucket `box`.
    pub async fn start(dir: &std::path::Path) -> S3 {
        std::fs::create_dir_all(dir.join("box")).unwrap();
        let store = s3s_fs::FileSystem::new(dir).unwrap();
        let mut builder = s3s::service::S3ServiceBuilder::new(store);
        builder.set_auth(s3s::auth::SimpleAuth::from_single("AKTEST", "SKTEST"));
        let service = builder.build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let (service, seen) = (service.clone(), Arc::clone(&seen));
                let service = service_fn(move |request: Request<Incoming>| {
                    let head = format!("{} {}", request.method(), request.uri().path());
                    seen.lock().unwrap().push(head);
                    Service::call(&service, request)
                });
                tokio::spawn(async move {
                    let io = hyper_util::rt::TokioIo::new(stream);
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(io, service).await;
                });
            }
        });
        S3 { address, requests }
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}
