//! What is published: the subjects, the events and what their handlers do, as a pure function of a seed.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Partitions of every topic.
pub const PARTITIONS: u32 = 4;

/// Keys of orders, and of what has no order to keep.
pub const KEYS: u32 = 400;

/// Keys of accounts: few, so that events of a key wait behind each other all the time.
pub const ACCOUNTS: u32 = 20;

/// What an event is about: a topic, with its handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// Handled in batches.
    Clicks,
    /// Handled in shared transactions.
    Views,
    /// Handled by two groups: each in its own transaction, and in shared ones.
    Orders,
    /// Handled in the order of their keys.
    Accounts,
    /// Charged.
    Payments,
    /// Published by the handler of orders, through the outbox, and handled by two groups.
    Invoices,
}

impl Subject {
    /// All of them, with their shares of the producer's events in a hundred.
    pub const SHARES: [(Self, u32); 6] = [
        (Self::Clicks, 60),
        (Self::Views, 25),
        (Self::Orders, 7),
        (Self::Accounts, 5),
        (Self::Payments, 3),
        (Self::Invoices, 0),
    ];

    /// Its topic.
    #[must_use]
    pub fn topic(self) -> &'static str {
        match self {
            Self::Clicks => "campaign.clicks",
            Self::Views => "campaign.views",
            Self::Orders => "campaign.orders",
            Self::Accounts => "campaign.accounts",
            Self::Payments => "campaign.payments",
            Self::Invoices => "campaign.invoices",
        }
    }

    fn keys(self) -> u32 {
        if self == Self::Accounts { ACCOUNTS } else { KEYS }
    }

    /// The subject of a topic.
    #[must_use]
    pub fn of_topic(topic: &str) -> Option<Self> {
        Self::SHARES.into_iter().map(|(subject, _)| subject).find(|subject| subject.topic() == topic)
    }

    /// Its handlers, as they sign their effects, each with its group.
    #[must_use]
    pub fn handlers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Clicks => &[("clicks", "books")],
            Self::Views => &[("views", "books")],
            Self::Orders => &[("orders", "billing"), ("order-books", "books")],
            Self::Accounts => &[("accounts", "ledger")],
            Self::Payments => &[("payments", "billing")],
            Self::Invoices => &[("invoices", "ledger"), ("invoice-books", "books")],
        }
    }
}

/// The groups of the service.
pub const GROUPS: [&str; 3] = ["billing", "books", "ledger"];

/// What a handler does besides its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Plan {
    /// Nothing.
    Succeed,
    /// Fails transiently, this often, after its effect.
    Fail(u32),
    /// Panics, this often, after its effect.
    Panic(u32),
    /// Ignores an error of the database the first time, and says that all went well.
    Swallow,
    /// Takes this many milliseconds.
    Slow(u64),
    /// Fails for good, after its effect.
    Refuse,
}

impl Plan {
    /// What a subject's events do, each in so many of ten thousand; the rest succeeds.
    fn shares(subject: Subject) -> &'static [(Self, u32)] {
        match subject {
            Subject::Clicks => &[(Self::Refuse, 3)],
            Subject::Views => &[(Self::Fail(1), 10), (Self::Swallow, 3), (Self::Refuse, 5)],
            Subject::Orders => &[
                (Self::Fail(1), 200),
                (Self::Fail(2), 100),
                (Self::Swallow, 150),
                (Self::Panic(1), 20),
                (Self::Slow(8_000), 4),
                (Self::Refuse, 10),
            ],
            Subject::Accounts => {
                &[(Self::Fail(1), 1_000), (Self::Fail(2), 400), (Self::Fail(3), 100), (Self::Refuse, 100)]
            }
            Subject::Payments => &[(Self::Fail(1), 400), (Self::Slow(300), 100), (Self::Refuse, 100)],
            Subject::Invoices => &[],
        }
    }
}

/// How far the producer's clock is off, for some of its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Clock {
    #[default]
    Right,
    /// Ahead by less than the skew that is allowed.
    Ahead,
    /// Ahead by far more.
    FarAhead,
    /// Behind by so many days.
    Behind(u8),
}

impl Clock {
    fn off_millis(self, rng: &mut fastrand::Rng) -> i64 {
        const DAY: i64 = 86_400_000;
        match self {
            Self::Right => 0,
            Self::Ahead => rng.i64(1_000..6_000),
            // For longer than any campaign: a copy of it is never in time.
            Self::FarAhead => DAY,
            Self::Behind(days) => -DAY * i64::from(days),
        }
    }
}

/// The body of an event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Body {
    pub event_id: Uuid,
    pub key: u32,
    pub part: i32,
    pub plan: Plan,
}

/// Whether the handler of an order publishes: for half of the keys, as what is published is one more statement in the
/// transaction, which would show that the transaction was aborted before.
#[must_use]
pub fn publishes(key: u32) -> bool {
    key % (2 * PARTITIONS) < PARTITIONS
}

/// The body of what the handler of an order publishes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Invoice {
    pub event_id: Uuid,
    /// The order's event.
    pub cause: Uuid,
    pub key: u32,
    /// Counts what was published for the key.
    pub number: i64,
    /// How often the database had gone back.
    pub epoch: i32,
}

/// A record to be sent.
#[derive(Debug, Clone)]
pub struct Draft {
    pub subject: Subject,
    pub key: u32,
    /// `None`: a record that is nobody's event.
    pub event: Option<(Uuid, Plan)>,
    pub value: Option<Vec<u8>>,
    pub timestamp_millis: i64,
    /// The clock was so far ahead that the event is to be refused.
    pub is_far_ahead: bool,
    /// The clock was so far behind that the group may have forgotten the event.
    pub is_behind: bool,
    pub is_copy: bool,
}

impl Draft {
    /// Its partition: the key decides.
    #[must_use]
    pub fn partition(&self) -> i32 {
        (self.key % PARTITIONS).cast_signed()
    }
}

/// Makes records: one in ten is a copy of an earlier one, a few are nobody's event.
#[derive(Debug)]
pub struct Load {
    rng: fastrand::Rng,
    recent: Vec<Draft>,
}

/// Copies are made of one of so many.
const RECENT: usize = 20_000;

impl Load {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), recent: Vec::new() }
    }

    /// The next records, in an order that is not that of their making.
    pub fn chunk(&mut self, size: usize, now_millis: i64, clock: Clock) -> Vec<Draft> {
        let mut chunk: Vec<Draft> = (0..size).map(|_| self.next(now_millis, clock)).collect();
        self.rng.shuffle(&mut chunk);
        chunk
    }

    fn next(&mut self, now_millis: i64, clock: Clock) -> Draft {
        let kind = self.rng.u32(0..1_000);
        if kind < 100 && !self.recent.is_empty() {
            // Half of them soon after the original.
            let from = if kind < 50 { self.recent.len().saturating_sub(500) } else { 0 };
            let at = self.rng.usize(from..self.recent.len());
            return Draft { is_copy: true, ..self.recent[at].clone() };
        }
        let subject = self.pick(&Subject::SHARES, 100).unwrap_or(Subject::Clicks);
        let key = self.rng.u32(0..subject.keys());
        if kind < 105 {
            return self.bad(subject, key, now_millis);
        }
        let clock = if self.rng.u8(0..10) == 0 { clock } else { Clock::Right };
        let timestamp_millis = now_millis + clock.off_millis(&mut self.rng);
        let id = id_at(timestamp_millis, &mut self.rng);
        let plan = self.pick(Plan::shares(subject), 10_000).unwrap_or(Plan::Succeed);
        let part = (key % PARTITIONS).cast_signed();
        let draft = Draft {
            subject,
            key,
            event: Some((id, plan)),
            value: serde_json::to_vec(&Body { event_id: id, key, part, plan }).ok(),
            timestamp_millis,
            is_far_ahead: clock == Clock::FarAhead,
            is_behind: matches!(clock, Clock::Behind(_)),
            is_copy: false,
        };
        if self.recent.len() < RECENT {
            self.recent.push(draft.clone());
        } else {
            let at = self.rng.usize(0..RECENT);
            self.recent[at] = draft.clone();
        }
        draft
    }

    /// What producers send by mistake.
    fn bad(&mut self, subject: Subject, key: u32, now_millis: i64) -> Draft {
        let value = match self.rng.u8(0..4) {
            0 => None,
            1 => Some(b"no event at all".to_vec()),
            2 => Some(br#"{"event_id":"0198c5f4-7a00-7000-8000-0000000"#.to_vec()),
            // A v4.
            _ => Some(
                br#"{"event_id":"9b2f4c1e-3d4a-4b6f-8a3e-0c1d2e3f4a5b","key":1,"part":0,"plan":"succeed"}"#.to_vec(),
            ),
        };
        Draft {
            subject,
            key,
            event: None,
            value,
            timestamp_millis: now_millis,
            is_far_ahead: false,
            is_behind: false,
            is_copy: false,
        }
    }

    fn pick<T: Copy>(&mut self, shares: &[(T, u32)], of: u32) -> Option<T> {
        let mut at = self.rng.u32(0..of);
        for &(what, share) in shares {
            if at < share {
                return Some(what);
            }
            at -= share;
        }
        None
    }
}

/// A UUID v7 of this time.
fn id_at(millis: i64, rng: &mut fastrand::Rng) -> Uuid {
    let time = u128::from(millis.cast_unsigned()) << 80;
    let random = rng.u128(..) & 0x0000_0000_0000_0fff_3fff_ffff_ffff_ffff;
    Uuid::from_u128(time | random | 0x7000_8000_0000_0000_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_records_each_time_and_one_in_ten_is_a_copy() {
        let of = |seed| Load::new(seed).chunk(10_000, 1_800_000_000_000, Clock::Behind(2));
        let (one, same, other) = (of(1), of(1), of(2));
        let ids = |drafts: &[Draft]| drafts.iter().map(|draft| draft.event).collect::<Vec<_>>();
        assert_eq!(ids(&one), ids(&same));
        assert_ne!(ids(&one), ids(&other));
        let copies = one.iter().filter(|draft| draft.is_copy).count();
        assert!((800..1_200).contains(&copies), "{copies}");
        assert!(one.iter().any(|draft| draft.event.is_none()));
        assert!(one.iter().any(|draft| draft.is_behind));
    }

    #[test]
    fn ids_are_of_their_time() {
        let id = id_at(1_800_000_000_123, &mut fastrand::Rng::with_seed(7));
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(id.get_variant(), uuid::Variant::RFC4122);
        assert_eq!(id.as_u128() >> 80, 1_800_000_000_123);
    }
}
