//! The result, for people and for programs.

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use serde::Serialize;

/// What was sent, what came of it, and what went wrong.
#[derive(Debug, Default, Serialize)]
pub struct Figures {
    /// Records that the broker acknowledged.
    pub published: u64,
    /// Different events among them.
    pub unique: u64,
    /// Events with an effect, by group.
    pub applied: BTreeMap<String, u64>,
    /// Redeliveries that were recognised.
    pub duplicates_skipped: u64,
    /// Records on retry topics.
    pub retried: u64,
    /// Records that were set aside, by reason, over all groups.
    pub dead_lettered: BTreeMap<String, u64>,
    /// How often the consumer was killed.
    pub crashes: u64,
    /// Events without an effect and bad records without a dead letter, over all groups.
    pub lost: u64,
    /// Effects beyond the first of an event, over all groups.
    pub double_effects: u64,
}

impl Figures {
    /// Whether every effect happened once.
    pub fn is_right(&self) -> bool {
        self.lost == 0 && self.double_effects == 0
    }

    pub fn json(&self) -> String {
        // Only maps with text for keys, and numbers: always valid JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn table(&self) -> Table {
        let mut rows = vec![
            ("published".to_owned(), self.published, "records sent"),
            ("unique".to_owned(), self.unique, "different events among them"),
        ];
        for (group, applied) in &self.applied {
            rows.push((format!("applied by {group}"), *applied, "events with an effect"));
        }
        rows.push(("duplicates skipped".to_owned(), self.duplicates_skipped, "second deliveries recognised"));
        rows.push(("retried".to_owned(), self.retried, "failed for a moment, tried again later"));
        for (reason, count) in &self.dead_lettered {
            rows.push((format!("dead-lettered: {reason}"), *count, "set aside, in both groups"));
        }
        rows.push(("crashes".to_owned(), self.crashes, "consumer killed while it worked"));
        rows.push(("lost".to_owned(), self.lost, "must be 0"));
        rows.push(("double effects".to_owned(), self.double_effects, "must be 0"));

        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header(["", "count", ""]);
        for (what, count, meaning) in rows {
            table.add_row([Cell::new(what), Cell::new(count).set_alignment(CellAlignment::Right), Cell::new(meaning)]);
        }
        table
    }
}
