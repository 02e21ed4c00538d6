//! Brakes that are engaged, as the database knows them: `lane_brake`.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use crate::kafka::consumer::Partition;

/// Records a brake. One that is engaged already keeps its first time.
pub(crate) async fn engage(
    connection: &mut PgConnection,
    group: &str,
    partition: &Partition,
    reason: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO lane_brake (consumer_group, topic, partition, reason) VALUES ($1, $2, $3, $4) \
         ON CONFLICT DO NOTHING",
    )
    .bind(group)
    .bind(&*partition.topic)
    .bind(partition.number)
    .bind(reason)
    .execute(connection)
    .await?;
    Ok(())
}

/// The engaged brakes of a group, with their reasons.
pub(crate) async fn engaged(
    connection: &mut PgConnection,
    group: &str,
) -> Result<BTreeMap<Partition, String>, sqlx::Error> {
    let rows: Vec<(String, i32, String)> =
        sqlx::query_as("SELECT topic, partition, reason FROM lane_brake WHERE consumer_group = $1")
            .bind(group)
            .fetch_all(connection)
            .await?;
    Ok(rows.into_iter().map(|(topic, number, reason)| (Partition { topic: topic.into(), number }, reason)).collect())
}

/// Releases the brakes of a group. Returns the lanes that go on.
pub(crate) async fn release(connection: &mut PgConnection, group: &str) -> Result<Vec<Partition>, sqlx::Error> {
    let rows: Vec<(String, i32)> =
        sqlx::query_as("DELETE FROM lane_brake WHERE consumer_group = $1 RETURNING topic, partition")
            .bind(group)
            .fetch_all(connection)
            .await?;
    Ok(rows.into_iter().map(|(topic, number)| Partition { topic: topic.into(), number }).collect())
}
