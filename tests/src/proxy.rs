//! A TCP proxy in front of PostgreSQL that fails at chosen moments of the protocol.
//!
//! It reads what the client sends far enough to know each statement, whether it comes as a simple
//! query or as a prepared one, and what the server answers far enough to know when a statement has
//! been carried out. Connections must not be encrypted.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::statements::{Frame, Statements};

/// What happens at the armed statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The server carries it out, and the connection is cut before the client hears of it.
    LoseReply,
    /// The connection is cut before the server sees it.
    CutBefore,
    /// Nothing goes either way any more, and nobody is told.
    Blackhole,
}

/// The proxy. It ends when this value is dropped; so do its connections.
pub struct Proxy {
    port: u16,
    control: Arc<Control>,
    accept: JoinHandle<()>,
}

struct Control {
    upstream: AtomicU16,
    delay: Mutex<Duration>,
    armed: Mutex<Option<Armed>>,
    lost_replies: AtomicUsize,
    cut_before: AtomicUsize,
    blackholed: AtomicUsize,
    refusing: AtomicBool,
    /// Raised to cut every connection.
    cut: watch::Sender<u64>,
    /// While true, nothing is forwarded.
    frozen: watch::Sender<bool>,
}

struct Armed {
    fault: Fault,
    statement: String,
    times: usize,
}

impl Proxy {
    /// Starts a proxy in front of a port on 127.0.0.1.
    ///
    /// # Panics
    /// When it can't listen.
    pub async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port to spare");
        let port = listener.local_addr().expect("a bound listener").port();
        let control = Arc::new(Control {
            upstream: AtomicU16::new(upstream),
            delay: Mutex::default(),
            armed: Mutex::new(None),
            lost_replies: AtomicUsize::new(0),
            cut_before: AtomicUsize::new(0),
            blackholed: AtomicUsize::new(0),
            refusing: AtomicBool::new(false),
            cut: watch::Sender::new(0),
            frozen: watch::Sender::new(false),
        });
        let accept = tokio::spawn(accept(listener, Arc::clone(&control)));
        Self { port, control, accept }
    }

    /// The proxy's port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A server's URL, by way of this proxy.
    #[must_use]
    pub fn url(&self, database_url: &str) -> String {
        let upstream = self.control.upstream.load(Ordering::SeqCst);
        database_url.replacen(&format!(":{upstream}/"), &format!(":{}/", self.port), 1)
    }

    /// From now on, new connections go to another server, as after a failover.
    pub fn set_upstream(&self, port: u16) {
        self.control.upstream.store(port, Ordering::SeqCst);
    }

    /// Every message from a client takes this much longer.
    pub fn delay(&self, delay: Duration) {
        *lock(&self.control.delay) = delay;
    }

    /// Lets the next `times` statements that begin with `statement` (in either case) fail, on
    /// whatever connection. A second call replaces the first.
    pub fn arm(&self, fault: Fault, statement: &str, times: usize) {
        let statement = statement.to_ascii_lowercase();
        *lock(&self.control.armed) = (times > 0).then_some(Armed { fault, statement, times });
    }

    /// How often a fault has happened.
    #[must_use]
    pub fn count(&self, fault: Fault) -> usize {
        self.control.counter(fault).load(Ordering::SeqCst)
    }

    /// Cuts every connection there is now.
    pub fn cut_all(&self) {
        self.control.cut.send_modify(|cut| *cut += 1);
    }

    /// While true, new connections are closed at once, as if the server were down.
    pub fn refuse(&self, refuse: bool) {
        self.control.refusing.store(refuse, Ordering::SeqCst);
    }

    /// While true, nothing is forwarded on any connection, and nobody is told.
    pub fn freeze(&self, freeze: bool) {
        self.control.frozen.send_replace(freeze);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept.abort();
        self.cut_all();
    }
}

impl Control {
    fn counter(&self, fault: Fault) -> &AtomicUsize {
        match fault {
            Fault::LoseReply => &self.lost_replies,
            Fault::CutBefore => &self.cut_before,
            Fault::Blackhole => &self.blackholed,
        }
    }

    fn count(&self, fault: Fault) {
        self.counter(fault).fetch_add(1, Ordering::SeqCst);
    }

    /// The fault for a statement that is about to be sent, if one is armed for it.
    fn fault_for(&self, statement: &str) -> Option<Fault> {
        let mut slot = lock(&self.armed);
        let armed = slot.as_mut()?;
        // A simple query may hold several statements.
        let mut parts = statement.split(';').map(|part| part.trim_start().to_ascii_lowercase());
        if !parts.any(|part| part.starts_with(&armed.statement)) {
            return None;
        }
        let fault = armed.fault;
        armed.times -= 1;
        if armed.times == 0 {
            *slot = None;
        }
        Some(fault)
    }

    /// Waits while everything is frozen.
    async fn thawed(&self) {
        let mut frozen = self.frozen.subscribe();
        // The sender lives in `self`.
        let _ = frozen.wait_for(|frozen| !frozen).await;
    }
}

async fn accept(listener: TcpListener, control: Arc<Control>) {
    while let Ok((client, _)) = listener.accept().await {
        if !control.refusing.load(Ordering::SeqCst) {
            tokio::spawn(connection(client, Arc::clone(&control)));
        }
    }
}

/// One connection: whatever ends first, both sides are closed with it.
async fn connection(client: TcpStream, control: Arc<Control>) {
    let mut cut = control.cut.subscribe();
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, control.upstream.load(Ordering::SeqCst))).await else {
        return;
    };
    // Small messages, each waited for.
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let link = Link::default();
    tokio::select! {
        _ = requests(from_client, to_server, &control, &link) => {}
        _ = replies(from_server, to_client, &control, &link) => {}
        _ = cut.changed() => {}
    }
}

/// What the two directions of a connection tell each other.
#[derive(Default)]
struct Link {
    /// The armed statement is on its way: its reply is lost.
    lose_reply: AtomicBool,
    /// Nothing is forwarded any more.
    blackhole: AtomicBool,
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    control: &Control,
    link: &Link,
) -> io::Result<()> {
    let mut statements = Statements::default();
    loop {
        let frame = if statements.started() {
            Frame::read(&mut client).await?
        } else {
            Frame::read_untyped(&mut client).await?
        };
        let fault = statements.executed_by(&frame).and_then(|statement| control.fault_for(&statement));
        match fault {
            Some(Fault::CutBefore) => {
                control.count(Fault::CutBefore);
                return Ok(());
            }
            Some(Fault::Blackhole) => {
                link.blackhole.store(true, Ordering::SeqCst);
                control.count(Fault::Blackhole);
                std::future::pending::<()>().await;
            }
            Some(Fault::LoseReply) => link.lose_reply.store(true, Ordering::SeqCst),
            None => {}
        }
        let delay = *lock(&control.delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        control.thawed().await;
        server.write_all(&frame.bytes).await?;
    }
}

async fn replies(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    control: &Control,
    link: &Link,
) -> io::Result<()> {
    // The answer to a wish for encryption is a single byte, `N` here; no message begins with it
    // before the session has begun.
    let mut first = server.read_u8().await?;
    while first == b'N' || first == b'S' {
        client.write_all(&[first]).await?;
        first = server.read_u8().await?;
    }
    let mut frame = Frame::read_after(first, &mut server).await?;
    loop {
        if link.blackhole.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if !link.lose_reply.load(Ordering::SeqCst) {
            control.thawed().await;
            client.write_all(&frame.bytes).await?;
        } else if matches!(frame.kind, b'Z' | b'E') {
            // Carried out, ready for the next, or refused: either way the client will never know.
            control.count(Fault::LoseReply);
            return Ok(());
        }
        frame = Frame::read(&mut server).await?;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
