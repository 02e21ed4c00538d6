//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use idem_runtime::ops::dlq::Filter;
use idem_runtime::ops::money::{Decision, Open};
use uuid::Uuid;

/// Looks after the groups of idem: dead letters and their replay, money calls, offsets, migrations.
///
/// Configured by the environment, as the programs it looks after: IDEM_DATABASE_URL,
/// IDEM_KAFKA_BROKERS and what else they have. Payloads and keys are never printed unless asked for.
///
/// Exit status: 0 done, 1 failed, 2 the command line is wrong.
#[derive(Debug, Parser)]
#[command(name = "idem", version)]
pub struct Cli {
    /// One JSON document on standard output, in place of tables.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring the schema up to date.
    Migrate {
        #[command(flatten)]
        how: Existing,
        /// Then give this database role what a service needs, but no right to change the schema.
        ///
        /// For services that run with IDEM_MIGRATE=false. This command needs the role that owns the tables.
        #[arg(long, value_name = "ROLE")]
        grant: Option<String>,
    },
    /// The partitions of the dedup table: what is in them, when they are emptied, who keeps them.
    Partitions,
    /// Schema, dedup table, and how far each group is behind.
    Status,
    /// Where a group is, as Kafka and the database know it, and where it would start.
    Offsets {
        #[command(flatten)]
        group: Group,
    },
    /// The groups that the database knows, and orders to one.
    #[command(subcommand)]
    Group(GroupCommand),
    /// Dead letters.
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Money calls that somebody has to look at.
    #[command(subcommand)]
    Money(MoneyCommand),
    /// The events that are to be published.
    #[command(subcommand)]
    Outbox(OutboxCommand),
    /// Send the events of the outbox until SIGTERM or SIGINT, whenever no other process does.
    Relay,
    /// The settings.
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List the groups.
    List,
    /// Let a stopped group go on with this database, though its offsets name another one.
    Accept {
        /// The group.
        group: String,
        /// Don't ask. Required where nobody can be asked.
        #[arg(long)]
        yes: bool,
    },
    /// Forget a group that is not coming back: its positions, parked events and brakes.
    ///
    /// The dedup table keeps rows as long as a known group may still have to read events of their time; a
    /// forgotten one keeps nothing. The group must have no members. What it may have processed and forgotten
    /// is remembered: should it run again, nothing takes effect a second time in silence.
    Forget {
        /// The group.
        group: String,
        /// Don't ask. Required where nobody can be asked.
        #[arg(long)]
        yes: bool,
    },
    /// Let stopped lanes of a group go on: those whose events all went to the dead letter queue.
    Resume {
        /// The group.
        group: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// Count dead letters by reason and handler.
    List {
        #[command(flatten)]
        group: Group,
        #[command(flatten)]
        letters: Letters,
    },
    /// Show one dead letter: its headers, and what is known of its event.
    Show {
        #[command(flatten)]
        group: Group,
        /// Its partition of the dead letter queue.
        #[arg(long)]
        partition: i32,
        /// Its offset in it.
        #[arg(long)]
        offset: i64,
        /// Key and value too.
        #[arg(long)]
        payload: bool,
    },
    /// Send dead letters through the group once more.
    ///
    /// Reads up to the end of the queue seen at the beginning. What the group has processed is skipped,
    /// so it can be repeated harmlessly.
    Replay {
        #[command(flatten)]
        group: Group,
        #[command(flatten)]
        letters: Letters,
        /// Only the one at this partition of the dead letter queue.
        #[arg(long, requires = "offset")]
        partition: Option<i32>,
        /// Only the one at this offset in it.
        #[arg(long, requires = "partition")]
        offset: Option<i64>,
        /// At most so many.
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
        /// Only tell what would be done.
        #[arg(long)]
        dry_run: bool,
        /// Send the event also if the group may have processed it and forgotten.
        ///
        /// The dedup table remembers an event for IDEM_DEDUP_WINDOW. The letter of an older one is refused
        /// (`expired`): if the event was processed by then, its effect would happen a second time. A dead
        /// letter that was never processed may be replayed at any age. Look at what it did or did not do
        /// first; then allow it, one event at a time.
        #[arg(long, requires = "event_id")]
        allow_expired: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum MoneyCommand {
    /// List the calls whose outcome is unknown, and those that were carried out without the event's
    /// effects being committed.
    List {
        /// Only these.
        #[arg(long, value_enum)]
        state: Option<CallState>,
    },
    /// Say what became of a call, as found out at the provider.
    ///
    /// The event itself stays as it is: replay it, if it is a dead letter.
    Resolve {
        /// The call's key.
        #[arg(long)]
        key: String,
        /// applied: the next attempt sends nothing. failed: the next attempt has another key.
        #[arg(long = "as", value_enum)]
        decision: CallDecision,
        /// Who found it out, and how. No card number and nothing personal: it is kept and shown.
        #[arg(long)]
        note: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// Count what waits, and list the events that can't be published.
    List,
    /// Let a parked event be sent again, and the later ones of its key after it.
    Release {
        /// Its number.
        #[arg(long)]
        seq: i64,
        /// Delete the event instead: nobody will hear of it. Those behind it are sent.
        #[arg(long)]
        drop: bool,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum CallState {
    Unknown,
    Unrecorded,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum CallDecision {
    Applied,
    Failed,
}

impl From<CallState> for Open {
    fn from(state: CallState) -> Self {
        match state {
            CallState::Unknown => Self::Unknown,
            CallState::Unrecorded => Self::Unrecorded,
        }
    }
}

impl From<CallDecision> for Decision {
    fn from(decision: CallDecision) -> Self {
        match decision {
            CallDecision::Applied => Self::Applied,
            CallDecision::Failed => Self::Failed,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the settings, and show those in effect without their secrets.
    Check,
}

/// How an existing `processed_event` becomes the partitioned one.
#[derive(Debug, Args)]
pub struct Existing {
    /// Turn the existing, unpartitioned `processed_event` into the partitioned one, while everything runs.
    ///
    /// Can be run again if it was interrupted.
    #[arg(long, conflicts_with = "rebuild")]
    pub partition: bool,
    /// Build the table anew from one whose unique key holds `processed_at`, which does not deduplicate.
    ///
    /// The ids are copied; the old table stays under another name. Writers wait meanwhile.
    #[arg(long)]
    pub rebuild: bool,
}

#[derive(Debug, Args)]
pub struct Group {
    /// The consumer group.
    #[arg(long)]
    pub group: String,
}

/// Which dead letters.
#[derive(Debug, Args)]
pub struct Letters {
    /// Only those with this reason, such as `permanent` or `exhausted`.
    #[arg(long)]
    reason: Option<String>,
    /// Only those of this handler.
    #[arg(long)]
    handler: Option<String>,
    /// Only those of this event.
    #[arg(long)]
    event_id: Option<Uuid>,
}

impl Letters {
    pub fn filter(self, at: Option<(i32, i64)>) -> Filter {
        Filter { reason: self.reason, handler: self.handler, event_id: self.event_id, at }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_place_is_a_partition_and_an_offset() {
        let replay = |rest: &[&str]| Cli::try_parse_from([&["idem", "dlq", "replay", "--group", "g"], rest].concat());
        assert!(replay(&["--partition", "1", "--offset", "2", "--dry-run", "--json"]).is_ok());
        for wrong in [
            &["--partition", "1"][..],
            &["--offset", "1"],
            &["--limit", "0"],
            &["--event-id", "x"],
            &["--allow-expired"],
        ] {
            assert_eq!(replay(wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
        }
    }
}
