//! One call: its intent is committed, the request leaves, the answer is settled.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::attempt::Attempt;
use super::error::RequestError;
use super::transport::{Outgoing, Prepared};
use super::{Charge, ChargeResponse, MoneyError, MoneyRequest};
use crate::clock;
use crate::decide::money::{self, Answer, Before, Doubt, Meaning, State, Verdict};
use crate::decide::{money_key, retry};
use crate::pg::money::begin::{Asked, Begun};
use crate::pg::money::record::Certain;
use crate::pg::money::{self as rows, CallId, Settlement};
use crate::probe::{self, CrashPoint};
use crate::telemetry::{spans, trace_context};

/// How often an intent is begun when somebody else writes at the same moment.
const RACES: u32 = 5;

pub(super) async fn send(attempt: &Arc<Attempt>, request: MoneyRequest) -> Result<Charge, MoneyError> {
    let span = spans::money_call(request.method);
    let result = match attempt.take_name(request.operation.clone()) {
        Ok(name) => {
            let (result, certain) = match recorded(attempt, &name, request).instrument(span.clone()).await {
                Ok((result, certain)) => (result, certain),
                Err(error) => (Err(error), None),
            };
            attempt.ended(name, &result, certain);
            result
        }
        Err(error) => Err(error),
    };
    let outcome = match &result {
        Ok(Charge::Applied(_)) => "applied",
        Ok(Charge::AlreadyProcessed) => "already_processed",
        Err(error) => error.label(),
    };
    spans::called(&span, outcome, result.is_ok());
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

/// What the call gives the handler, and what became of it for good, if that is certain.
type Told = (Result<Charge, MoneyError>, Option<Certain>);

async fn recorded(attempt: &Attempt, name: &str, request: MoneyRequest) -> Result<Told, MoneyError> {
    let provider = &attempt.provider;
    let event = &attempt.event;
    let timeout = time_left(request.timeout.unwrap_or(provider.timeout), event.deadline);
    let outgoing = outgoing(attempt, request)?;
    let prepared = provider.transport.prepare(outgoing).map_err(MoneyError::Request)?;
    spans::calls(&Span::current(), prepared.server());
    let hash = money_key::body_hash(event.id.uuid(), prepared.method(), &prepared.path(), prepared.body());
    let id = CallId { event_id: event.id.uuid(), group: &event.group, operation: name };

    let intent = match intend(attempt, &id, &hash).await? {
        Intended::May(intent) => intent,
        Intended::Done { generation } => {
            let certain = Certain { generation, state: State::Applied, settlement: None };
            return Ok((Ok(Charge::AlreadyProcessed), Some(certain)));
        }
    };
    let answered = answered(attempt, prepared, &intent, timeout).await;
    probe::at(CrashPoint::AfterMoneyCall).await;
    let answer = match &answered {
        Ok(response) => {
            spans::answered(&Span::current(), response.status);
            Answer::Status(response.status)
        }
        Err((answer, _)) => *answer,
    };
    let verdict = money::after(answer, event.spec.conflict, intent.unsure.map(|(unsure, _)| unsure));
    let certain = settle(attempt, &id, &intent, answer, verdict).await?;

    let told = match (verdict.meaning, answered) {
        (Meaning::Applied, Ok(response)) => Ok(Charge::Applied(response)),
        (Meaning::AlreadyProcessed, _) => Ok(Charge::AlreadyProcessed),
        (Meaning::Conflict, _) => Err(MoneyError::Conflict),
        (Meaning::Refused, Ok(response)) => Err(MoneyError::Refused { status: response.status, body: response.body }),
        (Meaning::Unavailable, Ok(response)) => Err(MoneyError::Unavailable { status: response.status }),
        (_, Ok(response)) => Err(MoneyError::NotNow { status: response.status, retry_after: retry_after(&response) }),
        (_, Err((_, what))) => Err(MoneyError::Unanswered(what)),
    };
    Ok((told, certain))
}

fn outgoing(attempt: &Attempt, request: MoneyRequest) -> Result<Outgoing, MoneyError> {
    let MoneyRequest { method, url, mut headers, body, .. } = request;
    let url = address(attempt.provider.base_url.as_deref(), url)?;
    if !trace_context::is_traced(headers.iter().map(|(name, _)| name))
        && let Some(trace) = spans::current().or_else(|| attempt.event.delivery.trace())
    {
        headers.extend(trace.headers().map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())));
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

/// Whether a request may leave.
enum Intended {
    May(Intent),
    /// The call was carried out before.
    Done {
        generation: u32,
    },
}

/// Writes the intent.
async fn intend(attempt: &Attempt, id: &CallId<'_>, hash: &[u8]) -> Result<Intended, MoneyError> {
    let provider = &attempt.provider;
    let key = |generation| money_key::key(id.event_id, id.group, id.operation, generation);
    let first = |generation| Intended::May(Intent { key: key(generation), generation, attempt: 1, unsure: None });
    let places = attempt.event.places();
    let lost = async |generation: u32| {
        let noted = rows::note_lost(&provider.pool, id, generation, &key(generation), hash, &places).await;
        noted.map_or_else(MoneyError::Record, |()| MoneyError::KeyExpired)
    };
    for _ in 0..RACES {
        let asked = Asked {
            event_id: id.event_id,
            group: Arc::clone(&attempt.event.group),
            operation: id.operation.to_owned(),
            key: key(0),
            body_hash: hash.to_owned(),
            places: places.clone(),
        };
        let found = match provider.intents.begin(asked).await.map_err(MoneyError::Record)? {
            Begun::First => return Ok(first(0)),
            Begun::Lost => return Err(lost(0).await),
            Begun::Raced => continue,
            Begun::Found(found) => found,
        };
        let known = &found.known;
        match money::before(known, provider.key_ttl) {
            Before::AlreadyProcessed => return Ok(Intended::Done { generation: known.generation }),
            Before::BodyChanged => return Err(MoneyError::BodyChanged),
            Before::KeyExpired => return Err(MoneyError::KeyExpired),
            Before::Lost(generation) => return Err(lost(generation).await),
            Before::NextGeneration(next) => {
                let begun = rows::next_generation(&provider.pool, id, next, &key(next), hash).await;
                if begun.map_err(MoneyError::Record)? {
                    return Ok(first(next));
                }
            }
            Before::Again => {
                if rows::again(&provider.pool, id, known).await.map_err(MoneyError::Record)? {
                    return Ok(Intended::May(Intent {
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

/// Settles what the answer says; what is certain, the event's own transaction does, and the attempt if that fails.
/// Where it can't be recorded, the next attempt asks again, with the same key.
async fn settle(
    attempt: &Attempt,
    id: &CallId<'_>,
    intent: &Intent,
    answer: Answer,
    verdict: Verdict,
) -> Result<Option<Certain>, MoneyError> {
    let status = if let Answer::Status(status) = answer { Some(status) } else { None };
    if verdict.doubt == Doubt::Request && status.is_none() {
        // As the intent says.
        return Ok(None);
    }
    let Verdict { state, doubt, .. } = verdict;
    let Intent { generation, attempt: number, .. } = *intent;
    let unsure_before = intent.unsure.map(|(_, when)| when);
    let settlement = Settlement { generation, attempt: number, state, status, doubt, unsure_before };
    if matches!(state, State::Applied | State::Refused) {
        return Ok(Some(Certain { generation, state, settlement: Some(settlement) }));
    }
    // `false`: a later request is under way, which tells what this one does not.
    attempt.settle_call(id, &settlement).await.map(|_is_settled| None).map_err(MoneyError::Record)
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
