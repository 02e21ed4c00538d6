//! The connections of the admin server: so many at a time, and none that keeps its place by saying nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Each is a file descriptor, which the connections to Kafka and PostgreSQL need too. Others wait to be accepted.
const MOST: usize = 64;

/// Within this a request's head must be there, from when the connection is made or the one before was answered.
pub(super) const HEAD: Duration = Duration::from_secs(10);

/// Answers until `ended`; then what is asked already is answered, and the connections are closed.
pub(super) async fn serve(listener: TcpListener, router: Router, ended: impl Future<Output = ()>) {
    let permits = Arc::new(Semaphore::new(MOST));
    let (closing, is_closing) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(ended);
    loop {
        let accept = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = &mut ended => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let answered = answer(stream, peer, router.clone(), is_closing.clone());
                connections.spawn(async move {
                    let _permit = permit;
                    answered.await;
                });
            }
            Err(error) => {
                // No descriptor left, perhaps. Asked again at once, it would be so again.
                tracing::debug!(%error, "the admin server can't accept a connection");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    drop(closing);
    while connections.join_next().await.is_some() {}
}

async fn answer(stream: TcpStream, peer: SocketAddr, router: Router, mut is_closing: watch::Receiver<()>) {
    let service = TowerToHyperService::new(router.layer(Extension(ConnectInfo(peer))));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let connection = server.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // Whoever went away, or sent something that is no HTTP, is no news.
    tokio::select! {
        _ = &mut connection => {}
        _ = is_closing.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
