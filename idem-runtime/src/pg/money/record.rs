//! What is noted of money calls in the event's own transaction: that its effects belong to them.

use std::fmt::Write as _;

use uuid::Uuid;

use super::{Settlement, as_count};
use crate::decide::money::{Doubt, State};
use crate::pg::event_session::UNDO_NAMES;

/// A call whose fate is certain, as the handler saw it.
#[derive(Debug, Clone)]
pub(crate) struct Certain {
    pub generation: u32,
    pub state: State,
    /// What the answer leaves behind. `None`: it is in the record already.
    pub settlement: Option<Settlement>,
}

/// What a session prepares for [`statements`]. It settles the call too, where nobody did yet; and fails,
/// by a setting that there is not, where the call is not what the handler saw.
pub(in crate::pg) const PREPARE: &str = "PREPARE idem_record_call \
         (uuid, text, text, integer, integer, text, smallint, boolean, float8, boolean, float8) AS \
     WITH noted AS ( \
         UPDATE money_call SET recorded_at = coalesce(recorded_at, now()), state = $6, \
                status = CASE WHEN state = $6 THEN status ELSE $7 END, \
                unsure_since = CASE WHEN state <> $6 AND $8 THEN to_timestamp($9) ELSE unsure_since END, \
                unsure_at = CASE WHEN state <> $6 AND $10 THEN to_timestamp($11) ELSE unsure_at END \
          WHERE event_id = $1 AND consumer_group = $2 AND operation = $3 AND generation = $4 \
            AND (state = $6 OR (resolved_at IS NULL AND $5 > 0 \
                                AND ($6 = 'applied' OR (attempt = $5 AND state = 'unknown')))) \
         RETURNING 1) \
     SELECT CASE WHEN EXISTS (SELECT FROM noted) THEN true \
                 ELSE current_setting('idem.a_money_call_was_resolved_otherwise')::boolean END";

/// The statements that note these calls. What the handler set, a role or another `search_path`, is undone first: the
/// calls have to be found. `is_prepared`: the session still has what it prepared; else all of it is prepared again,
/// and then sqlx does not know what there is.
pub(crate) fn statements(event_id: Uuid, group: &str, calls: &[(String, Certain)], is_prepared: bool) -> String {
    let mut text = UNDO_NAMES.to_owned();
    if !is_prepared {
        text.push_str("DEALLOCATE ALL; ");
        text.push_str(PREPARE);
        text.push_str("; ");
    }
    for (operation, certain) in calls {
        let seconds = |at: Option<f64>| at.map_or("NULL".to_owned(), |at| format!("'{at}'"));
        let settled = certain.settlement.as_ref();
        let before = settled.and_then(|settled| settled.unsure_before);
        let status = settled.and_then(Settlement::status).map_or("NULL".to_owned(), |status| status.to_string());
        // A handler names operations by any text, and may have changed how the server reads quotes. Writing
        // to a String can't fail.
        let _ = write!(
            text,
            "EXECUTE idem_record_call ('{event_id}', '{group}', convert_from(decode('{}', 'hex'), 'UTF8'), {}, {}, '{}', \
             {status}, {}, {}, {}, {}); ",
            hex(operation),
            as_count(certain.generation),
            settled.map_or(0, |settled| as_count(settled.attempt)),
            certain.state.as_str(),
            settled.is_some_and(|settled| settled.doubt == Doubt::Before),
            seconds(before.map(|(since, _)| since)),
            settled.is_some_and(|settled| settled.doubt != Doubt::Request),
            seconds(before.and_then(|(_, at)| at)),
        );
    }
    text
}

fn hex(text: &str) -> String {
    text.bytes().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
