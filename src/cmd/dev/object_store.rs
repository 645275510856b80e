//! The S3 store of `dev` and `demo`: s3s-fs on a folder, served in this process on a free port.
//!
//! It stands for the storage that is to be fenced, so it knows nothing of tickets. Signed requests
//! are verified; unsigned ones are taken too, so that plain curl can try it: it is reachable from
//! this machine only, and holds nothing but what is tried out.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::S3Result;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The access key that the store knows.
pub const ACCESS_KEY: &str = "ringfence";
/// Its secret: no secret, since the store is for trying out only.
pub const SECRET_KEY: &str = "ringfence-dev";
/// The bucket that is there from the beginning.
pub const BUCKET: &str = "demo";
/// Most connections at once.
const CONNECTIONS_MAX: usize = 1024;

/// A running store. Ends when dropped.
#[derive(Debug)]
pub struct ObjectStore {
    address: SocketAddr,
    server: tokio::task::JoinHandle<()>,
}

impl ObjectStore {
    /// Serves the folder, which is created with [`BUCKET`] in it if it is not there.
    pub async fn start(folder: &Path) -> io::Result<ObjectStore> {
        std::fs::create_dir_all(folder.join(BUCKET))?;
        let files = s3s_fs::FileSystem::new(folder)
            .map_err(|error| io::Error::other(format!("{error:?}")))?;
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        builder.set_access(Anyone);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(serve(listener, builder.build()));
        Ok(ObjectStore { address, server })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, service: S3Service) {
    let http = Builder::new(TokioExecutor::new());
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the object store cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let connection = http
            .serve_connection(TokioIo::new(stream), service.clone())
            .into_owned();
        connections.spawn(async move {
            // A client that goes away is no failure of the store.
            let _ = connection.await;
        });
    }
}

/// Lets unsigned requests in. A signature that is there was verified before.
struct Anyone;

#[async_trait::async_trait]
impl S3Access for Anyone {
    async fn check(&self, _: &mut S3AccessContext<'_>) -> S3Result<()> {
        Ok(())
    }
}
