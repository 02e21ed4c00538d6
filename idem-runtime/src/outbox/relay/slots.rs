//! Which partitions of the outbox have dead rows to give back.

use std::time::{Duration, Instant};

use super::session::Session;
use crate::decide::relay::Seen;
use crate::pg::outbox::{SLOTS, slot};

/// Between two looks at them.
const EVERY: Duration = Duration::from_millis(500);

pub(super) struct Slots {
    /// Had rows since they were last truncated.
    used: [bool; SLOTS as usize],
    /// The highest number that was seen: new rows go where it is.
    highest: Option<i64>,
    looked_at: Instant,
}

impl Default for Slots {
    /// A former relay may have left dead rows everywhere.
    fn default() -> Self {
        Self { used: [true; SLOTS as usize], highest: None, looked_at: Instant::now() }
    }
}

impl Slots {
    /// Notes where visible rows are, which are sorted.
    pub(super) fn saw(&mut self, seen: &[Seen]) {
        let Some(last) = seen.last() else { return };
        for row in seen {
            self.used[slot(row.seq) as usize] = true;
        }
        self.highest = self.highest.max(Some(last.seq));
    }

    /// Truncates those that the numbers have left, where every row is gone.
    pub(super) async fn give_back(&mut self, session: &mut Session) -> Result<(), sqlx::Error> {
        if self.looked_at.elapsed() < EVERY {
            return Ok(());
        }
        self.looked_at = Instant::now();
        let current = self.highest.map(slot);
        for number in 0..SLOTS {
            if self.used[number as usize] && current != Some(number) {
                self.used[number as usize] = !session.truncate(number).await?;
            }
        }
        Ok(())
    }
}
