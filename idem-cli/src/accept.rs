//! A question before what can't be undone by running the command again.

use std::io::{IsTerminal, Write};

use crate::Failure;

/// Whether this database is to be the group's from now on.
pub fn accepting(group: &str) -> String {
    format!(
        "Group {group} will go on with the database of IDEM_DATABASE_URL. Events that it processed with another one \
         are not known there.\nIs it the right database?"
    )
}

/// Whether the group is gone for good.
pub fn forgetting(group: &str) -> String {
    format!(
        "Group {group} loses its positions, and its parked events are not handled any more.\nIs it not coming back?"
    )
}

/// Asks, unless told not to.
pub fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::NobodyToAsk);
    }
    let mut terminal = std::io::stderr();
    write!(terminal, "{question} [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") { Ok(()) } else { Err(Failure::Declined) }
}
