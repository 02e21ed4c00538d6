//! How far the groups have read, as the database knows it.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use crate::decide::retention::{Floor, Position, Topic, floor_of};
use crate::kafka::names;

/// The floor of every group that has positions or parked events, in the order of their names.
pub(crate) async fn floors(connection: &mut PgConnection) -> Result<Vec<Floor>, sqlx::Error> {
    type Row = (String, String, Option<i64>, Option<i64>);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT consumer_group, topic, (extract(epoch FROM event_time) * 1000)::bigint, \
                (extract(epoch FROM caught_up_at) * 1000)::bigint \
           FROM consumer_progress",
    )
    .fetch_all(&mut *connection)
    .await?;
    // A producer may stamp anything; it was there when it was parked. `least` leaves out what is NULL.
    let parked: Vec<(String, i64)> = sqlx::query_as(
        "SELECT consumer_group, min(least(timestamp_millis, (extract(epoch FROM parked_at) * 1000)::bigint)) \
           FROM parked_event GROUP BY consumer_group",
    )
    .fetch_all(connection)
    .await?;
    let mut floors: BTreeMap<String, i64> = BTreeMap::new();
    let mut lower = |group: String, millis: i64| {
        floors.entry(group).and_modify(|floor| *floor = millis.min(*floor)).or_insert(millis);
    };
    for (group, topic, event, caught_up) in rows {
        let position = Position { topic: kind(&group, &topic), event, caught_up };
        if let Some(millis) = floor_of(&position) {
            lower(group, millis);
        }
    }
    parked.into_iter().for_each(|(group, millis)| lower(group, millis));
    Ok(floors.into_iter().map(|(group, millis)| Floor { group, millis }).collect())
}

pub(crate) fn kind(group: &str, topic: &str) -> Topic {
    if names::retry_delay(group, topic).is_some() {
        Topic::Retry
    } else if topic == names::replay_topic(group) {
        Topic::Replay
    } else {
        Topic::Main
    }
}
