//! The keys of the attribute: one table for parsing, suggestions and the documentation.

use crate::suggest;

/// A key of the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    Topic,
    Group,
    EventType,
    Concurrency,
    Retry,
    Timeout,
    Money,
    Operation,
    Conflict,
    Transaction,
    Batch,
    Order,
    Expired,
    Stale,
    Summary,
}

/// What is known of a key.
#[derive(Debug)]
pub struct Key {
    pub name: Name,
    pub word: &'static str,
    pub form: Form,
    /// A value to paste.
    pub example: &'static str,
    /// The column "default" of the documentation.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the documentation"))]
    pub default: &'static str,
    /// The column "meaning" of the documentation.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the documentation"))]
    pub about: &'static str,
}

/// What a value looks like.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A name by Kafka's rules.
    Kafka,
    Text,
    /// Text for people, with at most so many characters.
    Line {
        max: usize,
    },
    Bool,
    Integer {
        min: u64,
        max: u64,
    },
    /// One of these words; the first is what happens anyway.
    OneOf(&'static [&'static str]),
    Duration,
    /// Ascending delays.
    Tiers,
}

impl Form {
    /// The value in words.
    pub fn describe(self) -> String {
        match self {
            Self::Kafka | Self::Text => "a string literal".to_owned(),
            Self::Line { max } => format!("a string literal of one line, at most {max} characters"),
            Self::Bool => "`true` or `false`".to_owned(),
            Self::Integer { min, max } => format!("an integer from {min} to {max}"),
            Self::OneOf(words) => either(words),
            Self::Duration => "a duration in a string literal".to_owned(),
            Self::Tiers => "a list of durations, the shortest first".to_owned(),
        }
    }
}

/// `"a"`, `"b"` or `"c"`.
fn either(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, first)) => format!("{} or {last}", first.join(", ")),
        None => String::new(),
    }
}

pub const KEYS: &[Key] = &[
    Key {
        name: Name::Topic,
        word: "topic",
        form: Form::Kafka,
        example: r#""order-service.order.confirmed""#,
        default: "required",
        about: "the Kafka topic",
    },
    Key {
        name: Name::Group,
        word: "group",
        form: Form::Kafka,
        example: r#""billing-order-confirmed""#,
        default: "required",
        about: "the Kafka consumer group; an event takes effect once in each group",
    },
    Key {
        name: Name::EventType,
        word: "event_type",
        form: Form::Text,
        example: r#""order.confirmed""#,
        default: "none",
        about: "several handlers on one topic and group, told apart by the payload's `event_type`",
    },
    Key {
        name: Name::Concurrency,
        word: "concurrency",
        form: Form::Integer { min: 1, max: 1024 },
        example: "8",
        default: "`1`",
        about: "events of different Kafka keys in progress at once, per partition; the same key \
                never overtakes itself; not with a shared transaction or `batch`",
    },
    Key {
        name: Name::Retry,
        word: "retry",
        form: Form::Tiers,
        example: r#"["1s", "1m", "10m"]"#,
        default: "from the configuration",
        about: "the delays before a transient failure is tried again; `[]`: none, straight to the \
                dead letter queue",
    },
    Key {
        name: Name::Timeout,
        word: "timeout",
        form: Form::Duration,
        example: r#""20s""#,
        default: "`\"20s\"`",
        about: "a handler that takes longer has failed, transiently",
    },
    Key {
        name: Name::Money,
        word: "money",
        form: Form::Bool,
        example: "true",
        default: "`false`",
        about: "the handler calls a payment provider, through a `MoneyClient` parameter",
    },
    Key {
        name: Name::Operation,
        word: "operation",
        form: Form::Text,
        example: r#""charge""#,
        default: "none",
        about: "names the money calls of the handler; only with `money`",
    },
    Key {
        name: Name::Conflict,
        word: "conflict",
        form: Form::OneOf(&["auto", "processed", "in_flight"]),
        example: r#""auto""#,
        default: "`\"auto\"`",
        about: "what the provider's HTTP 409 means: decided by what was recorded, done already, or still in \
                flight; only with `money`",
    },
    Key {
        name: Name::Transaction,
        word: "transaction",
        form: Form::OneOf(&["own", "shared"]),
        example: r#""own""#,
        default: "`\"own\"`",
        about: "`\"shared\"`: consecutive events share a transaction; not with `money`",
    },
    Key {
        name: Name::Batch,
        word: "batch",
        form: Form::Integer { min: 2, max: 10_000 },
        example: "500",
        default: "none",
        about: "the second parameter is a `Vec` of at most so many events, in one transaction; not with `money`",
    },
    Key {
        name: Name::Order,
        word: "order",
        form: Form::OneOf(&["partition", "key"]),
        example: r#""partition""#,
        default: "`\"partition\"`",
        about: "`\"key\"`: while an event waits for a retry, later events of its Kafka key wait behind it, in rows \
                of the database; not with a shared transaction, `batch` or `retry = []`",
    },
    Key {
        name: Name::Expired,
        word: "expired",
        form: Form::OneOf(&["dlq", "process", "skip"]),
        example: r#""dlq""#,
        default: "`\"dlq\"`",
        about: "what happens to an event whose id may have been forgotten: dead-lettered, processed, skipped",
    },
    Key {
        name: Name::Stale,
        word: "stale",
        form: Form::OneOf(&["skip"]),
        example: r#""skip""#,
        default: "none",
        about: "an event older than the version applied already is skipped; it has `#[event(version)]` and \
                `#[event(aggregate)]`",
    },
    Key {
        name: Name::Summary,
        word: "summary",
        form: Form::Line { max: 120 },
        example: r#""charges a confirmed order""#,
        default: "none",
        about: "what the handler does, for people, in the AsyncAPI document",
    },
];

/// What a word that is no key probably stands for.
#[derive(Debug, PartialEq, Eq)]
pub enum Meant {
    /// Another library's name for one of our keys.
    Called(&'static str),
    /// Set elsewhere, or not at all.
    Elsewhere(&'static str),
    /// Misspelt.
    Misspelt(&'static str),
    Unknown,
}

pub fn find(word: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.word == word)
}

/// The word that holds when a key with a list of words is not given.
pub fn first_word(name: Name) -> &'static str {
    let words = KEYS.iter().find(|key| key.name == name).map(|key| key.form);
    if let Some(Form::OneOf([first, ..])) = words { first } else { "" }
}

pub fn meant(word: &str) -> Meant {
    if let Some((_, key)) = CALLED.iter().find(|(theirs, _)| *theirs == word) {
        Meant::Called(key)
    } else if let Some((_, place)) = ELSEWHERE.iter().find(|(theirs, _)| *theirs == word) {
        Meant::Elsewhere(place)
    } else {
        suggest::nearest(word, KEYS.iter().map(|key| key.word)).map_or(Meant::Unknown, Meant::Misspelt)
    }
}

/// The words of other Kafka libraries and of their annotations.
const CALLED: &[(&str, &str)] = &[
    ("topics", "topic"),
    ("queue", "topic"),
    ("stream", "topic"),
    ("subject", "topic"),
    ("channel", "topic"),
    ("consumer_group", "group"),
    ("consumer_group_id", "group"),
    ("group_id", "group"),
    ("consumer", "group"),
    ("event", "event_type"),
    ("type", "event_type"),
    ("message_type", "event_type"),
    ("workers", "concurrency"),
    ("parallelism", "concurrency"),
    ("max_concurrency", "concurrency"),
    ("max_in_flight", "concurrency"),
    ("prefetch", "concurrency"),
    ("retries", "retry"),
    ("max_retries", "retry"),
    ("attempts", "retry"),
    ("max_attempts", "retry"),
    ("backoff", "retry"),
    ("retry_delay", "retry"),
    ("delays", "retry"),
    ("timeout_ms", "timeout"),
    ("timeout_secs", "timeout"),
    ("deadline", "timeout"),
    ("payment", "money"),
    ("payments", "money"),
    ("tx", "transaction"),
    ("transactional", "transaction"),
    ("batch_size", "batch"),
    ("max_batch_size", "batch"),
    ("ordering", "order"),
    ("ordered", "order"),
    ("description", "summary"),
    ("title", "summary"),
];

const ELSEWHERE: &[(&str, &str)] = &[
    ("dlq", "every group has its own topic `<group>.dlq`: leave it out"),
    ("dlq_topic", "every group has its own topic `<group>.dlq`: leave it out"),
    ("dead_letter", "every group has its own topic `<group>.dlq`: leave it out"),
    ("dead_letter_topic", "every group has its own topic `<group>.dlq`: leave it out"),
    ("dead_letter_queue", "every group has its own topic `<group>.dlq`: leave it out"),
    ("retry_topic", "every group has its own topics `<group>.retry.<delay>`: leave it out"),
    ("auto_commit", "offsets are committed after the transaction, always: leave it out"),
    ("enable_auto_commit", "offsets are committed after the transaction, always: leave it out"),
    ("commit", "offsets are committed after the transaction, always: leave it out"),
    ("auto_offset_reset", "it is set for the program: `IDEM_AUTO_OFFSET_RESET=earliest`"),
    ("offset", "it is set for the program: `IDEM_AUTO_OFFSET_RESET=earliest`"),
    ("brokers", "it is set for the program: `IDEM_KAFKA_BROKERS=host:9092`"),
    ("bootstrap_servers", "it is set for the program: `IDEM_KAFKA_BROKERS=host:9092`"),
    ("database_url", "it is set for the program: `IDEM_DATABASE_URL=postgres://..`"),
    ("ttl", "it is set for the program: `IDEM_DEDUP_WINDOW=7d`"),
    ("window", "it is set for the program: `IDEM_DEDUP_WINDOW=7d`"),
    ("dedup_window", "it is set for the program: `IDEM_DEDUP_WINDOW=7d`"),
    ("id", "the event says it: a field `event_id: EventId`, or one marked `#[event(id)]`"),
    ("key", "the event says it: a field `event_id: EventId`, or one marked `#[event(id)]`"),
    ("event_id", "the event says it: a field `event_id: EventId`, or one marked `#[event(id)]`"),
    ("idempotency_key", "the event says it: a field `event_id: EventId`, or one marked `#[event(id)]`"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_a_list_is_the_default() {
        for key in KEYS.iter().filter(|key| matches!(key.form, Form::OneOf(_)) && key.default != "none") {
            assert_eq!(format!("`{:?}`", first_word(key.name)), key.default, "{}", key.word);
        }
    }

    #[test]
    fn every_word_leads_to_a_key() {
        for (theirs, ours) in CALLED {
            assert!(find(ours).is_some(), "{theirs} -> {ours}");
            assert!(find(theirs).is_none(), "{theirs} is a key of ours");
        }
        assert_eq!(meant("consumer_group"), Meant::Called("group"));
        assert_eq!(meant("grup"), Meant::Misspelt("group"));
        assert_eq!(meant("colour"), Meant::Unknown);
        assert!(matches!(meant("dlq"), Meant::Elsewhere(_)));
    }

    #[test]
    fn the_documentation_shows_the_table() {
        let mut table = String::from("| key | value | default | meaning |\n|---|---|---|---|\n");
        for key in KEYS {
            let Key { word, form, default, about, .. } = key;
            table += &format!("| `{word}` | {} | {default} | {about} |\n", form.describe());
        }
        let docs = include_str!("../../../idem-runtime/src/attribute.md");
        assert!(docs.contains(&table), "put this into the documentation of the attribute:\n{table}");
    }
}
