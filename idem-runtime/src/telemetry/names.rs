//! The metrics by name, with what they mean.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};

/// Upper bounds of a handler's time, seconds.
pub(crate) const DURATION_BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0];
/// Upper bounds of an event's age, seconds: up to a week.
pub(crate) const AGE_BUCKETS: [f64; 14] =
    [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0];

/// The metrics that each partition of this member has.
pub(crate) const OF_PARTITIONS: [&str; 2] = ["idem_consumer_lag", "idem_lane_stalled"];

/// What waits in the outbox, as the process says that relays it.
pub(crate) fn outbox(pending: i64, parked: i64, oldest_seconds: f64) {
    gauge!("idem_outbox_pending").set(pending as f64);
    gauge!("idem_outbox_parked").set(parked as f64);
    gauge!("idem_outbox_oldest_seconds").set(oldest_seconds);
}

/// Tells the recorder what the metrics mean. Those of the whole begin at zero.
pub(crate) fn describe() {
    describe_counter!("idem_events_total", "Events settled, by handler and outcome.");
    describe_histogram!("idem_handler_duration_seconds", Unit::Seconds, "Time that a call of the handler took.");
    describe_histogram!(
        "idem_event_age_seconds",
        Unit::Seconds,
        "Time from an event's publication until it was settled."
    );
    describe_gauge!("idem_consumer_lag", "Events of an owned partition that are not settled, from its high watermark.");
    describe_gauge!("idem_in_flight", "Events in progress.");
    describe_counter!("idem_rebalances_total", "Assignments by the group.");
    describe_counter!("idem_dlq_total", "Events published to the dead letter queue, by reason.");
    describe_counter!("idem_money_calls_total", "Money calls, by how they ended.");
    describe_gauge!("idem_money_open", "Money calls that somebody has to look at: unknown, or unrecorded.");
    describe_gauge!("idem_dedup_partitions", "Partitions of the dedup table.");
    describe_gauge!(
        "idem_dedup_horizon_seconds",
        Unit::Seconds,
        "Age below which the group may have forgotten an event."
    );
    describe_gauge!("idem_outbox_pending", "Events of the outbox that are not sent, counted up to 100,000.");
    describe_gauge!(
        "idem_outbox_oldest_seconds",
        Unit::Seconds,
        "Age of the oldest event of the outbox that is not sent."
    );
    describe_gauge!("idem_outbox_parked", "Events of the outbox that can't be published, and those behind them.");
    describe_counter!("idem_outbox_published_total", "Events of the outbox that the broker has acknowledged.");
    describe_gauge!("idem_parked_events", "Events that wait in rows behind one that failed.");
    describe_gauge!("idem_circuit_open", "Whether the circuit of a handler is open.");
    describe_gauge!("idem_lane_brake", "Lanes of a group that are stopped by their brake.");
    describe_gauge!("idem_lane_stalled", "Whether a partition has work and its position does not move.");
    describe_gauge!("idem_ready", "Whether nothing is in the way of this process.");
}
