//! What the dedup table knows of a dead letter's event.

use std::collections::HashSet;
use std::panic::catch_unwind;

use uuid::Uuid;

use super::{Ops, OpsError};
pub use crate::decide::replay::DedupState;
use crate::handler::Handler;
use crate::kafka::record::Record;
use crate::registry;

/// Reads event ids out of dead letters' payloads.
pub(super) struct Ids {
    handlers: Vec<Handler>,
}

impl Ids {
    /// With the handlers that this program links for the group. A program without them, such as the
    /// `idem` command, knows only the field `event_id`.
    pub(super) fn of_group(group: &str) -> Self {
        Self { handlers: registry::handlers().into_iter().filter(|handler| handler.spec.group == group).collect() }
    }

    /// The id of the event that came from `topic`.
    pub(super) fn find(&self, topic: Option<&str>, payload: &[u8]) -> Option<Uuid> {
        let mut of_topic = self.handlers.iter().filter(|handler| Some(handler.spec.topic) == topic);
        of_topic
            // A decoder that panics may be why it is a dead letter.
            .find_map(|handler| {
                let decode = handler.decode.one;
                Some(catch_unwind(|| decode(payload)).ok()?.ok()?.id.uuid())
            })
            .or_else(|| plain_id(payload))
    }
}

/// The field `event_id` of a JSON object.
fn plain_id(payload: &[u8]) -> Option<Uuid> {
    #[derive(serde::Deserialize)]
    struct Plain {
        event_id: crate::EventId,
    }
    crate::event::decode_json::<Plain>(payload).ok().map(|plain| plain.event_id.uuid())
}

/// Which of the events the group has processed.
pub(super) async fn done(ops: &Ops, group: &str, ids: Vec<Uuid>) -> Result<HashSet<Uuid>, OpsError> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let group = group.to_owned();
    ops.database("tell what the group has processed", move |connection| {
        Box::pin(async move {
            let found: Vec<Uuid> = sqlx::query_scalar(
                "SELECT event_id FROM processed_event WHERE consumer_group = $1 AND event_id = ANY($2)",
            )
            .bind(group)
            .bind(ids)
            .fetch_all(connection)
            .await?;
            Ok(found.into_iter().collect())
        })
    })
    .await
}

/// The state of one event, by what is known to be done.
pub(super) fn state(id: Option<Uuid>, done: &HashSet<Uuid>) -> DedupState {
    match id {
        None => DedupState::NoId,
        Some(id) if done.contains(&id) => DedupState::Done,
        Some(_) => DedupState::InWindow,
    }
}

/// The id of a record's event.
pub(super) fn id_of(ids: &Ids, record: &Record, origin_topic: Option<&str>) -> Option<Uuid> {
    ids.find(origin_topic, record.payload.as_deref()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_in_any_json_object_that_has_one() {
        const V7: &str = "0198c5f4-7a00-7000-8000-000000000001";
        let ids = Ids { handlers: Vec::new() };
        let find = |payload: &str| ids.find(Some("orders"), payload.as_bytes());
        assert_eq!(find(&format!(r#"{{"a":[1,{{}}],"event_id":"{V7}"}}"#)), Some(V7.parse().unwrap()));
        for none in ["", "{", "[]", "7", r#"{"event_id":7}"#, r#"{"id":"0198c5f4-7a00-7000-8000-000000000001"}"#] {
            assert_eq!(find(none), None, "{none}");
        }
    }

    #[test]
    fn a_state_follows_from_the_row() {
        let (done, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let rows = HashSet::from([done]);
        assert_eq!(state(Some(done), &rows), DedupState::Done);
        assert_eq!(state(Some(other), &rows), DedupState::InWindow);
        assert_eq!(state(None, &rows), DedupState::NoId);
    }
}
