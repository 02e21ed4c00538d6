//! What each command prints: the library's value as JSON, or as text for people.

use std::time::Duration;

use idem_runtime::ConfigErrors;
use idem_runtime::ops::dlq::{LetterInFull, Letters};
use idem_runtime::ops::forget::Forgotten;
use idem_runtime::ops::groups::{Accepted, Group, Resumed};
use idem_runtime::ops::money::Call;
use idem_runtime::ops::offsets::GroupOffsets;
use idem_runtime::ops::outbox::{Outbox, Released};
use idem_runtime::ops::partitions::Partitions;
use idem_runtime::ops::replay::Replayed;
use idem_runtime::ops::settings::Setting;
use idem_runtime::ops::status::{Schema, Status};
use serde::Serialize;

use crate::table::{facts, number, or_dash, table, text};

/// A result, for programs and for people.
pub trait Report {
    fn json(&self) -> String;
    fn text(&self) -> String;
    /// Whether everything that was asked for is in it.
    fn is_complete(&self) -> bool {
        true
    }
}

/// Only maps with text for keys, numbers and text: always valid JSON.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl Report for Resumed {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        if self.lanes.is_empty() {
            return format!("no lane of group {} is stopped", self.group);
        }
        let rows = self.lanes.iter().map(|lane| [text(&lane.topic), number(lane.partition)]);
        format!(
            "{}\nthese lanes of group {} go on within a second or two",
            table(["topic", "partition"], rows),
            self.group
        )
    }
}

impl Report for Outbox {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let waiting = format!(
            "{} to be sent, the oldest for {:.0} s; {}",
            self.pending,
            self.oldest_seconds,
            if self.relayed { "a process relays" } else { "nobody relays" }
        );
        if self.parked.is_empty() {
            return format!("{waiting}\nnothing is parked");
        }
        let rows = self.parked.iter().map(|parked| {
            [
                number(parked.seq),
                text(&parked.topic),
                text(&parked.reason),
                number(parked.bytes),
                number(parked.behind),
                text(or_dash(parked.parked_at)),
                text(parked.event_id),
            ]
        });
        format!("{waiting}\n{}", table(["seq", "topic", "reason", "bytes", "behind it", "parked", "event"], rows))
    }
}

impl Report for Released {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        format!("{} to be sent, {} dropped", self.released, self.dropped)
    }
}

/// The relay was asked to end.
#[derive(Serialize)]
pub struct RelayEnded {
    pub relay: &'static str,
}

impl Report for RelayEnded {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        format!("the relay has {}", self.relay)
    }
}

/// The money calls that somebody has to look at.
#[derive(Serialize)]
pub struct MoneyCalls {
    pub calls: Vec<Call>,
}

impl Report for MoneyCalls {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        if self.calls.is_empty() {
            return "no money call is open".to_owned();
        }
        let rows = self.calls.iter().map(|call| {
            [
                text(&call.key),
                text(if call.state == "applied" { "unrecorded" } else { &call.state }),
                text(&call.group),
                text(&call.operation),
                number(call.attempts),
                text(or_dash(call.status)),
                text(or_dash(call.last_at)),
                text(call.event_id),
            ]
        });
        table(["key", "state", "group", "operation", "requests", "last status", "last request", "event"], rows)
    }
}

impl Report for Call {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let next = match self.state.as_str() {
            "applied" => "the next attempt at the event sends nothing and goes on as after a charge",
            _ => "the next attempt at the event sends the call with another key",
        };
        format!("{} is resolved as {}: {next}", self.key, self.state)
    }
}

impl Report for Letters {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let rows = self.groups.iter().map(|group| {
            [
                text(or_dash(group.reason.as_ref())),
                text(or_dash(group.handler.as_ref())),
                number(group.letters),
                number(group.events),
                text(or_dash(group.first_seen)),
                text(or_dash(group.last_seen)),
                text(format!("{}/{}", group.last_partition, group.last_offset)),
            ]
        });
        let head = ["reason", "handler", "letters", "events", "first seen", "last seen", "last: partition/offset"];
        format!("{}\n{} dead letters in {}", table(head, rows), self.letters, self.topic)
    }
}

impl Report for LetterInFull {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let letter = &self.letter;
        let origin = letter.origin.as_ref().map(|at| format!("{} {}/{}", at.topic, at.partition, at.offset));
        let mut known = vec![
            ("dead-lettered at", or_dash(letter.at)),
            ("reason", or_dash(letter.reason.as_ref())),
            ("handler", or_dash(letter.handler.as_ref())),
            ("error", or_dash(letter.error.as_ref())),
            ("attempts", or_dash(letter.attempts)),
            ("first failed at", or_dash(letter.first_failed_at)),
            ("replayed", format!("{} times, last at {}", letter.replay_count, or_dash(letter.replayed_at))),
            ("origin", or_dash(origin)),
            ("event id", or_dash(self.event_id)),
            ("state", word(&self.state)),
            ("key", or_dash(self.key_bytes.map(|bytes| format!("{bytes} bytes")))),
            ("value", or_dash(self.value_bytes.map(|bytes| format!("{bytes} bytes")))),
        ];
        known.extend(self.key.as_ref().map(|key| ("key", key.to_string())));
        known.extend(self.payload.as_ref().map(|payload| ("payload", payload.to_string())));
        let headers = self.headers.iter().map(|header| [text(&header.name), text(or_dash(header.value.as_ref()))]);
        format!("{}\n{}", facts(known), table(["header", "value"], headers))
    }
}

/// Events that a person reads through; the rest is in the JSON.
const SHOWN_EVENTS: usize = 20;

impl Report for Replayed {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let events = self.events.iter().take(SHOWN_EVENTS).map(|event| {
            [
                text(format!("{}/{}", event.partition, event.offset)),
                text(or_dash(event.reason.as_ref())),
                text(or_dash(event.event_id)),
                text(word(&event.state)),
                number(event.replay_count),
                text(word(&event.action)),
            ]
        });
        let mut said = table(["partition/offset", "reason", "event id", "state", "replays", "action"], events);
        if self.events.len() > SHOWN_EVENTS {
            said.push_str(&format!("\n.. and {} more, which --json lists", self.events.len() - SHOWN_EVENTS));
        }
        let states = &self.states;
        let counts = facts([
            ("matched", self.matched.to_string()),
            ("state: done", states.done.to_string()),
            ("state: in window", states.in_window.to_string()),
            ("state: expired", states.expired.to_string()),
            ("state: no id", states.no_id.to_string()),
            ("to replay", self.to_replay.to_string()),
            ("replayed", self.replayed.to_string()),
            ("skipped: done", self.done.to_string()),
            ("skipped: superseded", self.superseded.to_string()),
            ("refused: expired", self.expired.to_string()),
            ("skipped: impossible", self.impossible.to_string()),
        ]);
        let end = match (self.dry_run, self.limit_reached) {
            (true, _) => "a dry run: nothing was changed".to_owned(),
            (false, true) => format!("the limit was reached; sent to {}", self.to),
            (false, false) => format!("sent to {}", self.to),
        };
        format!("{said}\n{counts}\n{end}")
    }
}

/// A plain enum as its serialized word.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

impl Report for GroupOffsets {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let lineage = self.lineage.to_string();
        let rows = self.partitions.iter().map(|found| {
            let log = found.log_start.zip(found.log_end).map(|(start, end)| format!("{start}..{end}"));
            let start = found.start.as_ref();
            [
                text(format!("{}/{}", found.topic, found.partition)),
                text(or_dash(
                    found
                        .kafka
                        .as_ref()
                        .map(|kafka| format!("{} ({})", kafka.offset, whose(&kafka.metadata, &lineage))),
                )),
                text(or_dash(found.database.map(|row| format!("{} (epoch {})", row.next_offset, row.epoch)))),
                text(or_dash(found.database.map(|row| row.updated_at))),
                text(or_dash(log)),
                number(or_dash(found.lag)),
                text(or_dash(start.map(|start| format!("{}: {}", or_dash(start.offset), start.explanation)))),
            ]
        });
        let head = ["topic/partition", "Kafka", "database", "updated", "log", "lag", "would start at"];
        format!("{}\nlag {}; this database's lineage is {}", table(head, rows), self.lag, self.lineage)
    }
}

/// Whose commit it was, in short.
fn whose<'a>(metadata: &'a str, lineage: &str) -> &'a str {
    match metadata {
        "" => "no metadata",
        ours if ours.ends_with(lineage) => "this database",
        other => other,
    }
}

/// The groups that the database knows.
#[derive(Serialize)]
pub struct Groups {
    pub groups: Vec<Group>,
}

impl Report for Groups {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let rows = self.groups.iter().map(|group| {
            [
                text(&group.group),
                text(group.topics.join("\n")),
                number(group.partitions),
                text(group.updated_at),
                text(or_dash(group.reads_from)),
                text(or_dash(group.horizon)),
                number(group.parked),
            ]
        });
        table(["group", "topics", "partitions", "updated", "reads from", "may have forgotten before", "parked"], rows)
    }
}

impl Report for Forgotten {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let counts = facts([
            ("positions", self.positions.to_string()),
            ("parked events", self.parked.to_string()),
            ("brakes", self.brakes.to_string()),
            ("names of money calls", self.money_names.to_string()),
        ]);
        format!("{counts}\ngroup {} is forgotten", self.group)
    }
}

impl Report for Partitions {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let rows = self.partitions.iter().map(|part| {
            let rows = if part.rows_are_exact { part.rows.to_string() } else { format!("~{}", part.rows) };
            [
                text(&part.name),
                text(or_dash(part.from)),
                text(or_dash(part.to)),
                number(rows),
                number(part.bytes),
                text(or_dash(part.droppable_from)),
                text(part.held_by.join("\n")),
            ]
        });
        let head = ["partition", "from", "to", "rows", "bytes", "emptied from", "kept for"];
        let window = humantime::format_duration(Duration::from_millis(self.window_ms));
        format!("{}\nthe window is {window}; now it is {}", table(head, rows), self.now)
    }
}

impl Report for Accepted {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        if self.partitions.is_empty() {
            return format!("no offset of group {} names another database: nothing to accept", self.group);
        }
        let rows = self.partitions.iter().map(|accepted| {
            [text(format!("{}/{}", accepted.topic, accepted.partition)), number(accepted.offset), text(accepted.theirs)]
        });
        let rows = table(["topic/partition", "offset", "named lineage"], rows);
        format!("{rows}\ngroup {} goes on with the database of lineage {}", self.group, self.lineage)
    }
}

impl Report for Status {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let days = self.dedup.first_day.as_ref().zip(self.dedup.last_day.as_ref());
        let dedup = facts([
            ("dedup partitions", self.dedup.partitions.to_string()),
            ("days", or_dash(days.map(|(first, last)| format!("{} ({first} to {last})", self.dedup.days)))),
            ("rows, estimated", self.dedup.estimated_rows.to_string()),
            ("bytes", self.dedup.bytes.to_string()),
            ("window", humantime::format_duration(Duration::from_millis(self.dedup.window_ms)).to_string()),
            ("oldest event", or_dash(self.dedup.oldest_event)),
        ]);
        let rows = self.groups.iter().map(|found| {
            let group = &found.group;
            let lags = found.lags.iter().map(|at| format!("{}/{}: {}", at.topic, at.partition, at.lag));
            [
                text(&group.group),
                number(group.partitions),
                number(or_dash(found.lag)),
                text(lags.collect::<Vec<_>>().join("\n")),
                number(group.parked),
                text(or_dash(group.horizon)),
                text(group.updated_at),
            ]
        });
        let head = ["group", "partitions", "lag", "of it", "parked", "may have forgotten before", "updated"];
        let groups = table(head, rows);
        let kafka = self.kafka_error.as_ref().map(|error| format!("\nno lags: {error}")).unwrap_or_default();
        format!("{}\n{dedup}\n{groups}{kafka}", self.schema.text())
    }

    fn is_complete(&self) -> bool {
        self.kafka_error.is_none()
    }
}

impl Report for Schema {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let rows = self
            .applied
            .iter()
            .map(|migration| [text(format!("{:04} {}", migration.version, migration.name)), text(migration.applied_at)])
            .chain(self.pending.iter().map(|name| [text(name), text("pending: run `idem migrate`")]));
        format!("{}\nlineage {}", table(["migration", "applied"], rows), self.lineage)
    }
}

/// The settings in effect, or what is wrong with them.
#[derive(Serialize)]
pub struct Settings {
    ok: bool,
    settings: Vec<Setting>,
    problems: Vec<Problem>,
}

#[derive(Serialize)]
struct Problem {
    variable: String,
    problem: String,
}

impl Settings {
    pub fn right(settings: Vec<Setting>) -> Self {
        Self { ok: true, settings, problems: Vec::new() }
    }

    pub fn wrong(errors: ConfigErrors) -> Self {
        let problems = errors.0.into_iter().map(|error| Problem { variable: error.variable, problem: error.problem });
        Self { ok: false, settings: Vec::new(), problems: problems.collect() }
    }
}

impl Report for Settings {
    fn json(&self) -> String {
        json(self)
    }

    fn text(&self) -> String {
        let rows =
            self.settings.iter().map(|setting| [text(&setting.variable), text(&setting.value), text(&setting.source)]);
        table(["variable", "value", "source"], rows)
    }
}
