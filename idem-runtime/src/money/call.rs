//! One call: its intent is committed, the request leaves, the answer is settled.

use std::time::Duration;

use tokio::time::Instant;

use super::attempt::Attempt;
use super::error::RequestError;
use super::transport::{Outgoing, Prepared};
use super::{Charge, ChargeResponse, MoneyError, MoneyRequest};
use crate::clock;
use crate::decide::money::{self, Answer, Before, Doubt, Meaning, State, Verdict};
use crate::decide::{money_key, retry};
use crate::pg::money::{self as rows, Begun, CallId, Settlement};
use crate::probe::{self, CrashPoint};

/// How often an intent is begun when somebody else writes at the same moment.
const RACES: u32 = 5;

pub(super) async fn send(attempt: &Attempt, request: MoneyRequest) -> Result<Charge, MoneyError> {
    let result = match attempt.take_name(request.operation.clone()) {
        Ok(name) => {
            let (result, settled) = match recorded(attempt, &name, request).await {
                Ok((result, settled)) => (result, settled),
                Err(error) => (Err(error), None),
            };
            attempt.ended(name, &result, settled);
            result
        }
        Err(error) => Err(error),
    };
    let outcome = match &result {
        Ok(Charge::Applied(_)) => "applied",
        Ok(Charge::AlreadyProcessed) => "already_processed",
        Err(error) => error.label(),
    };
    metrics::counter!("idem_money_calls_total", "outcome" => outcome).increment(1);
    result
}

/// What may leave: one request of one generation.
struct Intent {
    key: String,
    generation: u32,
    attempt: u32,
    /// The earlier requests of this key that may have been carried out: how long ago, and when.
    unsure: Option<(money::Unsure, (f64, Option<f64>))>,
}

/// What the call gives the handler, and the state that is recorded for good, if one is.
type Told = (Result<Charge, MoneyError>, Option<State>);

async fn recorded(attempt: &Attempt, name: &str, request: MoneyRequest) -> Result<Told, MoneyError> {
    let provider = &attempt.provider;
    let event = &attempt.event;
    let timeout = time_left(request.timeout.unwrap_or(provider.timeout), event.deadline);
    let outgoing = outgoing(attempt, request)?;
    let prepared = provider.transport.prepare(outgoing).map_err(MoneyError::Request)?;
    let hash = money_key::body_hash(event.id.uuid(), prepared.method(), &prepared.path(), prepared.body());
    let id = CallId { event_id: event.id.uuid(), group: &event.group, operation: name };

    let Some(intent) = intend(attempt, &id, &hash).await? else {
        return Ok((Ok(Charge::AlreadyProcessed), Some(State::Applied)));
    };
    let answered = answered(attempt, prepared, &intent, timeout).await;
    probe::at(CrashPoint::AfterMoneyCall).await;
    let answer = match &answered {
        Ok(response) => Answer::Status(response.status),
        Err((answer, _)) => *answer,
    };
    let verdict = money::after(answer, event.spec.conflict, intent.unsure.map(|(unsure, _)| unsure));
    let is_settled = settle(attempt, &id, &intent, answer, verdict).await?;

    let told = match (verdict.meaning, answered) {
        (Meaning::Applied, Ok(response)) => Ok(Charge::Applied(response)),
        (Meaning::AlreadyProcessed, _) => Ok(Charge::AlreadyProcessed),
        (Meaning::Conflict, _) => Err(MoneyError::Conflict),
        (Meaning::Refused, Ok(response)) => Err(MoneyError::Refused { status: response.status, body: response.body }),
        (Meaning::Unavailable, Ok(response)) => Err(MoneyError::Unavailable { status: response.status }),
        (_, Ok(response)) => Err(MoneyError::NotNow { status: response.status, retry_after: retry_after(&response) }),
        (_, Err((_, what))) => Err(MoneyError::Unanswered(what)),
    };
    let settled = match verdict.state {
        // Also where the record says otherwise: the event's transaction finds that out.
        State::Applied => Some(State::Applied),
        State::Refused if is_settled => Some(State::Refused),
        _ => None,
    };
    Ok((told, settled))
}

fn outgoing(attempt: &Attempt, request: MoneyRequest) -> Result<Outgoing, MoneyError> {
    let MoneyRequest { method, url, mut headers, body, .. } = request;
    let url = address(attempt.provider.base_url.as_deref(), url)?;
    if let Some(traceparent) = &attempt.event.delivery.traceparent
        && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("traceparent"))
    {
        headers.push(("traceparent".to_owned(), traceparent.as_bytes().to_vec()));
    }
    Ok(Outgoing { method, url, headers, body: body? })
}

/// A path goes below the base URL, whatever it looks like; one that a URL parser would take apart
/// otherwise is refused.
fn address(base: Option<&str>, url: String) -> Result<String, RequestError> {
    if ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Ok(url);
    }
    let base = base.ok_or(RequestError::NoBaseUrl)?;
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let is_dots = |segment: &str| matches!(&*segment.to_ascii_lowercase().replace("%2e", "."), "." | "..");
    if path.split('/').any(is_dots) || url.contains(|letter: char| letter == '\\' || letter.is_ascii_control()) {
        return Err(RequestError::Outside);
    }
    Ok(format!("{}/{}", base.trim_end_matches('/'), url.trim_start_matches('/')))
}

/// Writes the intent. `None`: it was carried out before, and nothing leaves.
async fn intend(attempt: &Attempt, id: &CallId<'_>, hash: &[u8]) -> Result<Option<Intent>, MoneyError> {
    let provider = &attempt.provider;
    let key = |generation| money_key::key(id.event_id, id.group, id.operation, generation);
    let first = |generation| Intent { key: key(generation), generation, attempt: 1, unsure: None };
    let places = attempt.event.places();
    let lost = async |generation: u32| {
        let noted = rows::note_lost(&provider.pool, id, generation, &key(generation), hash, &places).await;
        noted.map_or_else(MoneyError::Record, |()| MoneyError::KeyExpired)
    };
    for _ in 0..RACES {
        let begun = rows::begin(&provider.pool, id, &key(0), hash, &places, provider.key_ttl).await;
        let found = match begun.map_err(MoneyError::Record)? {
            Begun::First => return Ok(Some(first(0))),
            Begun::Lost => return Err(lost(0).await),
            Begun::Raced => continue,
            Begun::Found(found) => found,
        };
        let known = &found.known;
        match money::before(known, provider.key_ttl) {
            Before::AlreadyProcessed => return Ok(None),
            Before::BodyChanged => return Err(MoneyError::BodyChanged),
            Before::KeyExpired => return Err(MoneyError::KeyExpired),
            Before::Lost(generation) => return Err(lost(generation).await),
            Before::NextGeneration(next) => {
                let begun = rows::next_generation(&provider.pool, id, next, &key(next), hash).await;
                if begun.map_err(MoneyError::Record)? {
                    return Ok(Some(first(next)));
                }
            }
            Before::Again => {
                if rows::again(&provider.pool, id, known).await.map_err(MoneyError::Record)? {
                    return Ok(Some(Intent {
                        key: key(known.generation),
                        generation: known.generation,
                        attempt: known.attempt.saturating_add(1),
                        unsure: known.unsure.zip(found.unsure),
                    }));
                }
            }
        }
    }
    // Only a member that was replaced and its successor can meet here, and one of them is stopped.
    Err(MoneyError::Record(sqlx::Error::Protocol("somebody else makes the same call at this moment".to_owned())))
}

/// Lets the request leave, and reads the whole answer.
async fn answered(
    attempt: &Attempt,
    prepared: Prepared,
    intent: &Intent,
    timeout: Duration,
) -> Result<ChargeResponse, (Answer, &'static str)> {
    let key = money_key::header(&intent.key, attempt.provider.key_format);
    match tokio::time::timeout(timeout, attempt.provider.transport.send(prepared, &key)).await {
        Ok(answered) => answered,
        Err(_elapsed) => Err((Answer::Nothing, "it took longer than the call's timeout")),
    }
}

/// Records what the answer says. What is certain must be recorded before the handler goes on with it;
/// where it can't be, the next attempt asks again, with the same key. `false`: the record says otherwise.
async fn settle(
    attempt: &Attempt,
    id: &CallId<'_>,
    intent: &Intent,
    answer: Answer,
    verdict: Verdict,
) -> Result<bool, MoneyError> {
    let status = if let Answer::Status(status) = answer { Some(status) } else { None };
    if verdict.doubt == Doubt::Request && status.is_none() {
        // As the intent says.
        return Ok(true);
    }
    let settlement = Settlement {
        generation: intent.generation,
        attempt: intent.attempt,
        state: verdict.state,
        status,
        doubt: verdict.doubt,
        unsure_before: intent.unsure.map(|(_, when)| when),
    };
    match rows::settle(&attempt.provider.pool, id, &settlement).await {
        Ok(true) => Ok(true),
        Ok(false) if verdict.state == State::Applied => {
            tracing::error!(
                key = intent.key,
                "a money call was carried out after it had been resolved otherwise: look at it at the provider"
            );
            Ok(false)
        }
        // A later request is under way, which tells what this one does not.
        Ok(false) => Ok(false),
        Err(error) => {
            tracing::warn!(%error, "the answer to a money call could not be recorded; it will be asked for again");
            Err(MoneyError::Record(error))
        }
    }
}

fn time_left(timeout: Duration, deadline: Instant) -> Duration {
    timeout.min(money::LONGEST_CALL).min(deadline.saturating_duration_since(Instant::now()))
}

fn retry_after(response: &ChargeResponse) -> Option<Duration> {
    let text = std::str::from_utf8(response.header("retry-after")?).ok()?;
    retry::parse_retry_after(text, clock::unix_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_below_the_base_url() {
        let base = Some("https://pay.example/v1/");
        let cases = [
            ("/charges", "https://pay.example/v1/charges"),
            ("charges?x=1", "https://pay.example/v1/charges?x=1"),
            ("//evil.example/charges", "https://pay.example/v1/evil.example/charges"),
            ("@evil.example", "https://pay.example/v1/@evil.example"),
            ("https://other.example/charges", "https://other.example/charges"),
        ];
        for (url, expected) in cases {
            assert_eq!(address(base, url.to_owned()).unwrap(), expected);
        }
        assert!(address(None, "/charges".to_owned()).is_err());
        for url in
            ["/../admin", "..", "/a/../b", "/%2e%2E/admin", "/.%2e?x", "/a/./b", "/..\\admin", "/.\t./admin", "/..#x"]
        {
            assert!(matches!(address(base, url.to_owned()), Err(RequestError::Outside)), "{url:?}");
        }
        assert!(address(base, "/charges/a..b?at=../x".to_owned()).is_ok());
    }
}
