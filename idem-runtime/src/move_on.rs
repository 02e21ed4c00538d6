//! Where an event goes that is not done here: to a retry topic, or to the dead letter queue.

use crate::clock;
use crate::decide::outcome::{Outcome, Reason};
use crate::decide::retry;
use crate::decide::step::Step;
use crate::group::GroupContext;
use crate::kafka::forward::{self, Report};
use crate::kafka::names;
use crate::kafka::producer::PublishError;
use crate::kafka::record::{Origin, Record};
use crate::run::RunError;
use crate::telemetry::spans;

/// Publishes the event to where it goes next. Returns after the broker's acknowledgement.
pub(crate) async fn move_on(
    group: &GroupContext,
    record: &Record,
    origin: &Origin,
    handler: &str,
    outcome: &Outcome,
    step: &Step,
) -> Result<(), String> {
    let now = clock::unix_millis();
    let error = match outcome.failure() {
        Some(failure) if group.config.error_text => failure.summary_with_text(),
        Some(failure) => failure.summary(),
        None => String::new(),
    };
    let mut report = Report {
        origin,
        attempt: origin.attempt.saturating_add(1),
        first_failed_at_millis: origin.first_failed_at_millis.unwrap_or(now),
        handler,
        error: &error,
        due_at_millis: None,
        reason: None,
        trace: spans::begun_here(record),
    };
    let dlq = names::dlq_topic(&group.name);
    let topic = match step {
        Step::Retry { delay } => names::retry_topic(&group.name, *delay),
        _ => dlq.clone(),
    };
    let published = match step {
        Step::Retry { delay } => {
            report.due_at_millis = Some(retry::due_at_millis(now, *delay, fastrand::f64()));
            match forward::publish(&group.producer, &topic, record, &report).await {
                // It will not fit the next tier either.
                Err(PublishError::TooLarge) => {
                    report = Report { due_at_millis: None, reason: Some(Reason::Exhausted), ..report };
                    forward::dead_letter(&group.producer, &dlq, record, &report).await
                }
                published => published,
            }
        }
        Step::DeadLetter { reason } => {
            report.reason = Some(*reason);
            forward::dead_letter(&group.producer, &dlq, record, &report).await
        }
        Step::Advance | Step::WaitInPlace | Step::StopRun => Ok(()),
    };
    published.map_err(|error| {
        let text = format!("it can't be moved on to `{topic}`: {error}");
        if let PublishError::Fatal(error) = error {
            group.fail(RunError::Producer(error));
        } else {
            tracing::warn!(group = &*group.name, topic, %error, "can't move an event on; waiting");
        }
        text
    })
}
