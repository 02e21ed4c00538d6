//! What the dedup table knows of a dead letter's event.

use std::collections::HashSet;
use std::panic::catch_unwind;

use uuid::Uuid;

use super::{Ops, OpsError, Timestamp};
pub use crate::decide::replay::DedupState;
use crate::decide::window;
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

/// What the group remembers of some events.
#[derive(Debug, Default)]
pub(super) struct Memory {
    done: HashSet<Uuid>,
    /// The time below which it may have forgotten ids with a time, and natural keys.
    horizon: Option<i64>,
    natural_horizon: Option<i64>,
}

/// Asks what the group remembers of these events.
pub(super) async fn memory(ops: &Ops, group: &str, ids: Vec<Uuid>) -> Result<Memory, OpsError> {
    if ids.is_empty() {
        return Ok(Memory::default());
    }
    let group = group.to_owned();
    ops.database("tell what the group has processed", move |connection| {
        Box::pin(async move {
            let found: Vec<Uuid> = sqlx::query_scalar(
                "SELECT event_id FROM processed_event WHERE consumer_group = $1 AND event_id = ANY($2)",
            )
            .bind(&group)
            .bind(ids)
            .fetch_all(&mut *connection)
            .await?;
            // After the rows: what went meanwhile has raised it.
            let horizons: Option<(Option<i64>, Option<i64>)> = sqlx::query_as(
                "SELECT (extract(epoch FROM ids_before) * 1000)::bigint, \
                        (extract(epoch FROM natural_before) * 1000)::bigint \
                   FROM group_horizon WHERE consumer_group = $1",
            )
            .bind(&group)
            .fetch_optional(connection)
            .await?;
            let (horizon, natural_horizon) = horizons.unwrap_or_default();
            Ok(Memory { done: found.into_iter().collect(), horizon, natural_horizon })
        })
    })
    .await
}

impl Memory {
    /// The state of one event, whose record was stamped at `record_millis`.
    pub(super) fn state(&self, id: Option<Uuid>, record_millis: Option<Timestamp>) -> DedupState {
        let Some(id) = id else { return DedupState::NoId };
        if self.done.contains(&id) {
            return DedupState::Done;
        }
        let id_millis = crate::EventId::try_from(id).ok().and_then(crate::EventId::unix_millis);
        let horizon = if id_millis.is_some() { self.horizon } else { self.natural_horizon };
        let record_millis = record_millis.and_then(|at| i64::try_from(at.0).ok());
        match window::may_be_forgotten(id_millis, record_millis, horizon) {
            true => DedupState::Expired,
            false => DedupState::InWindow,
        }
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
    fn a_state_follows_from_the_row_and_then_from_the_horizon() {
        let id = |millis: u128| Some(Uuid::from_u128(millis << 80 | 0x7000_8000_0000_0000_0001));
        let natural = Some(Uuid::from_u128(0xff00_0000_0000_8000_8000_0000_0000_0001));
        let memory = Memory { done: HashSet::from_iter(id(5)), horizon: Some(100), natural_horizon: Some(200) };
        let cases = [
            (id(5), None, DedupState::Done),
            (id(6), None, DedupState::Expired),
            (id(100), Some(Timestamp(1)), DedupState::InWindow),
            (natural, Some(Timestamp(199)), DedupState::Expired),
            (natural, Some(Timestamp(200)), DedupState::InWindow),
            (None, Some(Timestamp(1)), DedupState::NoId),
        ];
        for (id, at, expected) in cases {
            assert_eq!(memory.state(id, at), expected, "{id:?} {at:?}");
        }
        assert_eq!(Memory::default().state(id(6), None), DedupState::InWindow);
    }
}
