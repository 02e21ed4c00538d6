//! The rules between keys, one function each.

use std::time::Duration;

use proc_macro2::Span;

use super::args::RawArgs;
use super::keys::{self, Name};
use super::value::Kind;
use crate::diag::{Diag, Site};
use crate::names;

/// What expansion relies on.
#[derive(Debug)]
pub struct HandlerArgs {
    pub topic: String,
    pub group: String,
    pub event_type: Option<String>,
    pub retry: Option<Vec<Duration>>,
    pub timeout: Duration,
    pub concurrency: u16,
    pub money: Option<Money>,
    /// One of the words of its key, as in the next ones.
    pub transaction: String,
    pub batch: Option<u16>,
    pub order: String,
    pub expired: String,
    pub stale: bool,
    pub summary: Option<String>,
}

/// What `money = true` and its companions say.
#[derive(Debug)]
pub struct Money {
    pub operation: Option<String>,
    pub conflict: String,
}

/// What the handler's types have to agree with. Known also when another key is wrong, so that all
/// mistakes are told at once.
#[derive(Debug, Default)]
pub struct Demands {
    /// `None`: written wrongly, so nothing is demanded.
    pub money: Option<bool>,
    /// Where `true` stands.
    pub money_at: Option<Site>,
    /// `None`: written wrongly.
    pub batch: Option<bool>,
    /// Where the value of `stale` stands.
    pub stale_at: Option<Site>,
}

impl Demands {
    pub fn of(raw: &RawArgs) -> Self {
        let known = |name, value| (!raw.is_presumed(name)).then_some(value);
        let money = has_money(raw);
        Self {
            money: known(Name::Money, money),
            money_at: raw.get(Name::Money).filter(|_| money).map(|value| value.site),
            batch: known(Name::Batch, raw.get(Name::Batch).is_some()),
            stale_at: raw.get(Name::Stale).map(|value| value.site),
        }
    }
}

/// The longest tier of the default configuration is the one that matters for names.
const DEFAULT_TIERS: [Duration; 1] = [Duration::from_secs(600)];

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);

/// The checked value, unless the collector has seen an error.
pub fn check(raw: &RawArgs, diag: &mut Diag) -> Option<HandlerArgs> {
    topic_and_group_are_given(raw, diag);
    derived_names_fit(raw, diag);
    topic_is_not_the_groups_own(raw, diag);
    money_is_alone_in_its_transaction(raw, diag);
    operation_and_conflict_need_money(raw, diag);
    batch_shares_its_transaction(raw, diag);
    order_by_key_needs_single_events(raw, diag);
    concurrency_needs_transactions_of_their_own(raw, diag);
    if diag.has_errors() {
        return None;
    }
    let text = |name| raw.text(name).map(str::to_owned);
    let batch = integer(raw, Name::Batch);
    Some(HandlerArgs {
        topic: text(Name::Topic)?,
        group: text(Name::Group)?,
        event_type: text(Name::EventType),
        retry: tiers(raw).map(<[Duration]>::to_vec),
        timeout: match raw.get(Name::Timeout).map(|value| &value.kind) {
            Some(Kind::Duration(timeout)) => *timeout,
            _ => DEFAULT_TIMEOUT,
        },
        concurrency: integer(raw, Name::Concurrency).unwrap_or(1),
        money: has_money(raw)
            .then(|| Money { operation: text(Name::Operation), conflict: word(raw, Name::Conflict).to_owned() }),
        transaction: if batch.is_some() { "shared" } else { word(raw, Name::Transaction) }.to_owned(),
        batch,
        order: word(raw, Name::Order).to_owned(),
        expired: word(raw, Name::Expired).to_owned(),
        stale: raw.get(Name::Stale).is_some(),
        summary: text(Name::Summary),
    })
}

/// Both are required; one error names all that is missing and shows the attribute as it should be.
fn topic_and_group_are_given(raw: &RawArgs, diag: &mut Diag) {
    let required = [("topic", Name::Topic), ("group", Name::Group)];
    let missing: Vec<String> = required
        .iter()
        .filter(|(_, name)| raw.get(*name).is_none() && !raw.is_presumed(*name))
        .map(|(word, _)| format!("`{word}`"))
        .collect();
    if missing.is_empty() {
        return;
    }
    let pairs = required.map(|(word, name)| {
        let given = raw.text(name).map(|text| format!("{text:?}"));
        let example = keys::find(word).map(|key| key.example.to_owned());
        format!("{word} = {}", given.or(example).unwrap_or_default())
    });
    let be = if missing.len() == 1 { "is" } else { "are" };
    diag.error(Span::call_site(), format!("{} {be} missing", missing.join(" and ")))
        .help(format!("`#[idempotent_handler({})]`", pairs.join(", ")));
}

/// The group's retry, replay and dead letter topics have to be valid names too.
fn derived_names_fit(raw: &RawArgs, diag: &mut Diag) {
    let Some((group, value)) = raw.text(Name::Group).zip(raw.get(Name::Group)) else {
        return;
    };
    let names = names::derived(group, tiers(raw).unwrap_or(&DEFAULT_TIERS));
    let Some(longest) = names.last().filter(|name| name.len() > names::MAX_NAME) else {
        return;
    };
    let suffix = &longest[group.len()..];
    diag.error(
        value.site,
        format!(
            "the group is too long: its topic `<group>{suffix}` would have {} characters, and Kafka allows {}",
            longest.len(),
            names::MAX_NAME
        ),
    )
    .help(format!("use at most {} characters", names::MAX_NAME - suffix.len()));
}

/// The group's own topics are read already; a handler of its dead letters would feed itself.
fn topic_is_not_the_groups_own(raw: &RawArgs, diag: &mut Diag) {
    let (Some(topic), Some(group)) = (raw.text(Name::Topic), raw.text(Name::Group)) else {
        return;
    };
    let Some(own) = topic.strip_prefix(group) else {
        return;
    };
    let is_own = own == ".dlq" || own == ".replay" || own.starts_with(".retry.");
    if let (true, Some(value)) = (is_own, raw.get(Name::Topic)) {
        diag.error(value.site, format!("{topic:?} is one of the group's own topics"))
            .help("read the origin topic: retries and replays come to the same handler by themselves");
    }
}

/// A provider can't be rolled back with the neighbours of an event.
fn money_is_alone_in_its_transaction(raw: &RawArgs, diag: &mut Diag) {
    if !has_money(raw) {
        return;
    }
    if let Some(span) = raw.span(Name::Batch) {
        diag.error(span, "`batch` can't be combined with `money`")
            .help("remove `batch`: a provider can't be rolled back with an event's neighbours");
    }
    if let (Some("shared"), Some(span)) = (raw.text(Name::Transaction), raw.span(Name::Transaction)) {
        diag.error(span, "`transaction = \"shared\"` can't be combined with `money`")
            .help("write `transaction = \"own\"`: a provider can't be rolled back with an event's neighbours");
    }
}

/// They say something about money calls.
fn operation_and_conflict_need_money(raw: &RawArgs, diag: &mut Diag) {
    if has_money(raw) || raw.is_presumed(Name::Money) {
        return;
    }
    for (word, name) in [("operation", Name::Operation), ("conflict", Name::Conflict)] {
        if let Some(span) = raw.span(name) {
            diag.error(span, format!("`{word}` is for handlers with `money = true`"))
                .help(format!("add `money = true`, or remove `{word}`"));
        }
    }
}

/// A batch is one transaction by nature.
fn batch_shares_its_transaction(raw: &RawArgs, diag: &mut Diag) {
    let (Some(_), Some("own")) = (raw.span(Name::Batch), raw.text(Name::Transaction)) else {
        return;
    };
    if let Some(span) = raw.span(Name::Transaction) {
        diag.error(span, "`transaction = \"own\"` can't be combined with `batch`")
            .help("remove it: a batch is one transaction");
    }
}

/// An event that waits behind another one has to wait alone, and somewhere.
fn order_by_key_needs_single_events(raw: &RawArgs, diag: &mut Diag) {
    let (Some("key"), Some(order)) = (raw.text(Name::Order), raw.span(Name::Order)) else {
        return;
    };
    let clash = if raw.span(Name::Batch).is_some() {
        Some(("batch", "an event waits for its key alone"))
    } else if raw.text(Name::Transaction) == Some("shared") {
        Some(("transaction = \"shared\"", "an event waits for its key alone"))
    } else if tiers(raw).is_some_and(<[Duration]>::is_empty) {
        Some(("retry = []", "without a retry nothing waits"))
    } else {
        None
    };
    if let Some((with, why)) = clash {
        diag.error(order, format!("`order = \"key\"` can't be combined with `{with}`"))
            .help(format!("remove one of them: {why}"));
    }
}

/// Within one transaction there is one thing at a time.
fn concurrency_needs_transactions_of_their_own(raw: &RawArgs, diag: &mut Diag) {
    let (Some(2..), Some(concurrency)) = (integer(raw, Name::Concurrency), raw.span(Name::Concurrency)) else {
        return;
    };
    let with = if raw.span(Name::Batch).is_some() {
        "batch"
    } else if raw.text(Name::Transaction) == Some("shared") {
        "transaction = \"shared\""
    } else {
        return;
    };
    diag.error(concurrency, format!("`concurrency` can't be combined with `{with}`"))
        .help("remove it: a transaction has one event at a time, and partitions run side by side anyway");
}

fn has_money(raw: &RawArgs) -> bool {
    raw.get(Name::Money).is_some_and(|value| value.kind == Kind::Bool(true))
}

fn tiers(raw: &RawArgs) -> Option<&[Duration]> {
    match raw.get(Name::Retry).map(|value| &value.kind) {
        Some(Kind::Tiers(tiers)) => Some(tiers),
        _ => None,
    }
}

/// Every range in the table fits.
fn integer(raw: &RawArgs, name: Name) -> Option<u16> {
    match raw.get(name).map(|value| &value.kind) {
        Some(Kind::Integer(number)) => Some(u16::try_from(*number).unwrap_or(u16::MAX)),
        _ => None,
    }
}

/// The word that was given, else the one that holds anyway.
fn word(raw: &RawArgs, name: Name) -> &str {
    raw.text(name).unwrap_or_else(|| keys::first_word(name))
}
