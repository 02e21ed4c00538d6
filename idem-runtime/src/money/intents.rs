//! The intents of all calls of a process, written together.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::pg::money::begin::{Asked, Begun, begin};
use crate::pg::session::INTENT_CONNECTIONS;

/// Most intents in one commit.
const MOST: usize = 64;

/// Writes intents. Those that are asked for while a commit is under way share the next one: a commit, and the
/// way to the server and back, then cost what they cost for one.
pub(super) struct Intents(mpsc::Sender<Waiting>);

struct Waiting {
    asked: Asked,
    answer: oneshot::Sender<Result<Begun, sqlx::Error>>,
}

impl Intents {
    /// Starts the tasks, one per connection, so that one that got no answer does not hold up all. They end with
    /// this.
    pub(super) fn start(pool: &PgPool, key_ttl: Duration) -> Self {
        let (sender, receiver) = mpsc::channel(MOST);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..INTENT_CONNECTIONS {
            let (pool, receiver) = (pool.clone(), Arc::clone(&receiver));
            tokio::spawn(async move {
                let mut waiting = Vec::new();
                while receiver.lock().await.recv_many(&mut waiting, MOST).await > 0 {
                    write(&pool, std::mem::take(&mut waiting), key_ttl).await;
                }
            });
        }
        Self(sender)
    }

    /// Writes the intent of a call's first request, or reads what is known of an earlier one.
    ///
    /// # Cancel safety
    /// Dropped, the intent may be written all the same: the next attempt finds it.
    pub(super) async fn begin(&self, asked: Asked) -> Result<Begun, sqlx::Error> {
        let (answer, answered) = oneshot::channel();
        let is_sent = self.0.send(Waiting { asked, answer }).await.is_ok();
        match answered.await {
            Ok(begun) if is_sent => begun,
            _ => Err(sqlx::Error::PoolClosed),
        }
    }
}

/// Writes intents and answers. Together they can only fail together, so where it is one's fault each is written
/// alone; and so are two of one call: a handler may have given up one that still waits here.
async fn write(pool: &PgPool, mut waiting: Vec<Waiting>, key_ttl: Duration) {
    waiting.retain(|waiting| !waiting.answer.is_closed());
    waiting.sort_by(|one, other| one.asked.id().cmp(&other.asked.id()));
    if waiting.is_sorted_by(|one, next| one.asked.id() < next.asked.id()) {
        let asked: Vec<&Asked> = waiting.iter().map(|waiting| &waiting.asked).collect();
        match begin(pool, &asked, key_ttl).await {
            Ok(begun) => {
                for (waiting, begun) in waiting.into_iter().zip(begun) {
                    // Who asked may have gone.
                    let _ = waiting.answer.send(Ok(begun));
                }
                return;
            }
            Err(sqlx::Error::Database(_)) if waiting.len() > 1 => {}
            Err(error) => {
                let text = format!("the intent of a money call could not be written: {error}");
                // The error is one's, and can't be copied.
                let mut error = Some(error);
                for waiting in waiting {
                    let error = error.take().unwrap_or_else(|| sqlx::Error::Protocol(text.clone()));
                    let _ = waiting.answer.send(Err(error));
                }
                return;
            }
        }
    }
    for Waiting { asked, answer } in waiting {
        if !answer.is_closed() {
            let begun = begin(pool, &[&asked], key_ttl).await;
            let _ = answer.send(begun.and_then(|begun| begun.into_iter().next().ok_or(sqlx::Error::RowNotFound)));
        }
    }
}
