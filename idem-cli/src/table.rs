//! Tables for people.

use std::fmt::Display;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};

/// A cell of text.
pub fn text(value: impl Display) -> Cell {
    Cell::new(value)
}

/// A cell with a number.
pub fn number(value: impl Display) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}

/// What may be absent.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A table with a head.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [Cell; N]>) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(head);
    for row in rows {
        table.add_row(row);
    }
    table.to_string()
}

/// A table of names and values, without a head.
pub fn facts(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    table.to_string()
}
