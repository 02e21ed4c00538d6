//! The intents of all calls of a process, written together by one task.

use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};

use crate::pg::money::begin::{Asked, Begun, begin};

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
    /// Starts the task. It ends with this.
    pub(super) fn start(pool: PgPool, key_ttl: Duration) -> Self {
        let (sender, mut receiver) = mpsc::channel(MOST);
        tokio::spawn(async move {
            let mut waiting = Vec::with_capacity(MOST);
            while receiver.recv_many(&mut waiting, MOST).await > 0 {
                write(&pool, waiting.drain(..).collect(), key_ttl).await;
            }
        });
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

/// Writes intents and answers. Together they can only fail together, so then each is written alone, for
/// its own error; and so are two of one call, which only a member that was replaced and its successor make.
async fn write(pool: &PgPool, mut waiting: Vec<Waiting>, key_ttl: Duration) {
    waiting.sort_by(|one, other| one.asked.id().cmp(&other.asked.id()));
    if waiting.is_sorted_by(|one, next| one.asked.id() < next.asked.id()) {
        let asked: Vec<&Asked> = waiting.iter().map(|waiting| &waiting.asked).collect();
        if let Ok(begun) = begin(pool, &asked, key_ttl).await {
            for (waiting, begun) in waiting.into_iter().zip(begun) {
                // Who asked may have gone.
                let _ = waiting.answer.send(Ok(begun));
            }
            return;
        }
    }
    for Waiting { asked, answer } in waiting {
        let begun = begin(pool, &[&asked], key_ttl).await;
        let _ = answer.send(begun.and_then(|begun| begun.into_iter().next().ok_or(sqlx::Error::RowNotFound)));
    }
}
