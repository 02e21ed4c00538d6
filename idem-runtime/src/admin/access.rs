//! Who may see and change what.
//!
//! On a loopback address reading is free; elsewhere it needs the token, as does every change anywhere. Programs
//! send `Authorization: Bearer <token>`. A browser logs in with the token once and gets a session; its forms
//! carry the session's own secret, and come from this site, or they are refused.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use subtle::ConstantTimeEq;

use super::Site;
use super::changes::Plan;
use crate::config::Secret;

/// A shift.
const SESSION: Duration = Duration::from_secs(12 * 3_600);
/// The oldest one makes room.
const MOST_SESSIONS: usize = 64;
/// Makes guessing slow; nobody else waits.
const WRONG_TOKEN_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct Access {
    token: Option<Secret>,
    /// Only this machine reaches it.
    is_local: bool,
    /// A browser sends the cookies of a host to all of its ports: those of several programs must not be mixed up.
    cookie: String,
    sessions: Mutex<HashMap<String, Session>>,
}

struct Session {
    name: String,
    form_secret: String,
    since: Instant,
    /// What was tried and may be done.
    plans: HashMap<String, Plan>,
}

/// Who sends a request, as far as is known.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub peer: IpAddr,
    pub is_local: bool,
    /// Whether anything can be changed at all.
    pub has_token: bool,
    identity: Identity,
}

#[derive(Debug, Clone)]
enum Identity {
    Nobody,
    /// A program that has the token.
    Bearer,
    Session {
        id: String,
        name: String,
        form_secret: String,
    },
}

/// Who changes something, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operator {
    pub name: String,
    pub peer: IpAddr,
    session: Option<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused(pub StatusCode, pub &'static str);

const NO_TOKEN: Refused =
    Refused(StatusCode::FORBIDDEN, "nothing can be changed over HTTP: IDEM_ADMIN_TOKEN is not set");
const LOG_IN: Refused = Refused(StatusCode::UNAUTHORIZED, "this needs the token of IDEM_ADMIN_TOKEN: log in");
const FOREIGN: Refused = Refused(StatusCode::FORBIDDEN, "the request does not come from a form of this site");
const WRONG_HOST: Refused =
    Refused(StatusCode::MISDIRECTED_REQUEST, "this server answers only to a loopback name, such as localhost");

impl Access {
    pub(super) fn new(addr: SocketAddr, token: Option<Secret>) -> Self {
        let cookie = format!("idem_session_{}", addr.port());
        Self { token, is_local: addr.ip().is_loopback(), cookie, sessions: Mutex::default() }
    }

    fn is_token(&self, given: &str) -> bool {
        self.token.as_ref().is_some_and(|token| same(token.as_bytes(), given.as_bytes()))
    }

    pub(super) fn visitor(&self, headers: &HeaderMap, peer: IpAddr) -> Visitor {
        let identity = if bearer(headers).is_some_and(|given| self.is_token(given)) {
            Identity::Bearer
        } else {
            let cookies = headers.get(header::COOKIE).and_then(|cookies| cookies.to_str().ok());
            cookies.and_then(|cookies| self.session(cookies)).unwrap_or(Identity::Nobody)
        };
        Visitor { peer, is_local: self.is_local, has_token: self.token.is_some(), identity }
    }

    /// Whether a probe is told what is in the way.
    pub(super) fn tells_why(&self, headers: &HeaderMap) -> bool {
        let nowhere = std::net::Ipv4Addr::UNSPECIFIED.into();
        same_origin(headers, &Method::GET, self.is_local).is_ok() && self.visitor(headers, nowhere).may_read()
    }

    fn session(&self, cookies: &str) -> Option<Identity> {
        let id = cookies.split(';').find_map(|one| one.trim().strip_prefix(&*self.cookie)?.strip_prefix('='))?;
        let mut sessions = self.lock();
        sessions.retain(|_, session| session.since.elapsed() < SESSION);
        let session = sessions.get(id)?;
        let (name, form_secret) = (session.name.clone(), session.form_secret.clone());
        Some(Identity::Session { id: id.to_owned(), name, form_secret })
    }

    /// Begins a session. Returns the header that the browser keeps it by.
    pub(super) async fn log_in(&self, token: &str, name: &str) -> Option<String> {
        if !self.is_token(token) {
            tokio::time::sleep(WRONG_TOKEN_PAUSE).await;
            return None;
        }
        let id = random()?;
        let session =
            Session { name: name.to_owned(), form_secret: random()?, since: Instant::now(), plans: HashMap::new() };
        let mut sessions = self.lock();
        if sessions.len() >= MOST_SESSIONS {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.since).map(|(id, _)| id.clone());
            oldest.and_then(|id| sessions.remove(&id));
        }
        sessions.insert(id.clone(), session);
        let cookie = &self.cookie;
        Some(format!("{cookie}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={}", SESSION.as_secs()))
    }

    pub(super) fn log_out(&self, visitor: &Visitor) -> String {
        if let Identity::Session { id, .. } = &visitor.identity {
            self.lock().remove(id);
        }
        format!("{}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0", self.cookie)
    }

    /// Keeps what was tried, for the session that tried it. One at a time: the last one.
    pub(super) fn keep_plan(&self, operator: &Operator, plan: Plan) -> Option<String> {
        let id = random()?;
        let mut sessions = self.lock();
        sessions.get_mut(operator.session.as_ref()?)?.plans = HashMap::from([(id.clone(), plan)]);
        Some(id)
    }

    /// Gives out what was tried, once.
    pub(super) fn take_plan(&self, operator: &Operator, id: &str) -> Option<Plan> {
        self.lock().get_mut(operator.session.as_ref()?)?.plans.remove(id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Visitor {
    pub(super) fn may_read(&self) -> bool {
        self.is_local || !matches!(self.identity, Identity::Nobody)
    }

    /// The name that somebody logged in with.
    pub(super) fn name(&self) -> Option<&str> {
        if let Identity::Session { name, .. } = &self.identity { Some(name) } else { None }
    }

    /// What forms must carry.
    pub(super) fn form_secret(&self) -> Option<&str> {
        if let Identity::Session { form_secret, .. } = &self.identity { Some(form_secret) } else { None }
    }

    /// Who may change something, by a form with this secret in it, or as a program.
    pub(super) fn may_change(&self, form_secret: Option<&str>) -> Result<Operator, Refused> {
        let peer = self.peer;
        match &self.identity {
            _ if !self.has_token => Err(NO_TOKEN),
            Identity::Nobody => Err(LOG_IN),
            Identity::Bearer => Ok(Operator { name: "a program with the token".to_owned(), peer, session: None }),
            Identity::Session { id, name, form_secret: expected } => match form_secret {
                Some(given) if same(expected.as_bytes(), given.as_bytes()) => {
                    Ok(Operator { name: name.clone(), peer, session: Some(id.clone()) })
                }
                _ => Err(FOREIGN),
            },
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::trim)
}

/// Compares in a time that says nothing of where they differ.
fn same(expected: &[u8], given: &[u8]) -> bool {
    expected.ct_eq(given).into()
}

/// 256 bits that nobody can guess.
fn random() -> Option<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).inspect_err(|error| tracing::error!(%error, "no random numbers")).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Looks at every request but those of probes.
pub(super) async fn guard(
    State(site): State<Arc<Site>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let visitor = site.access.visitor(request.headers(), peer.ip());
    if let Err(refused) = same_origin(request.headers(), request.method(), visitor.is_local) {
        return refused.into_response();
    }
    if site.access.token.is_some()
        && bearer(request.headers()).is_some()
        && !matches!(visitor.identity, Identity::Bearer)
    {
        tracing::warn!(%peer, "a request with a wrong token");
        tokio::time::sleep(WRONG_TOKEN_PAUSE).await;
        return LOG_IN.into_response();
    }
    let path = request.uri().path();
    let is_open = matches!(path, "/login" | "/style.css");
    if !visitor.may_read() && !is_open {
        let is_for_programs = path.starts_with("/api/") || path == "/metrics";
        return if is_for_programs { LOG_IN.into_response() } else { Redirect::to("/login").into_response() };
    }
    request.extensions_mut().insert(visitor);
    next.run(request).await
}

/// A name of somebody else's that leads to this machine must not make a browser read here, and a page of
/// somebody else's must not make it send a form.
fn same_origin(headers: &HeaderMap, method: &Method, is_local: bool) -> Result<(), Refused> {
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or_default();
    if is_local && !is_loopback_name(host) {
        return Err(WRONG_HOST);
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let is_foreign_origin = text(header::ORIGIN)
        .is_some_and(|origin| origin.split_once("://").is_none_or(|(_, from)| !from.eq_ignore_ascii_case(host)));
    let is_foreign_site = text(header::HeaderName::from_static("sec-fetch-site"))
        .is_some_and(|site| !matches!(site, "same-origin" | "none"));
    if is_foreign_origin || is_foreign_site { Err(FOREIGN) } else { Ok(()) }
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, _)) => v6,
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(status, why) = self;
        let mut response = (status, format!("{why}\n")).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let scheme = axum::http::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const TOKEN: &str = "a-token-of-sixteen-bytes";

    fn access(addr: &str, token: Option<&str>) -> Access {
        let mut vars = vec![("IDEM_DATABASE_URL", "postgres://h/d"), ("IDEM_KAFKA_BROKERS", "b:1")];
        vars.extend(token.map(|token| ("IDEM_ADMIN_TOKEN", token)));
        let token = Config::from_vars(vars).unwrap().admin.unwrap().token;
        Access::new(addr.parse().unwrap(), token)
    }

    fn visitor(access: &Access, headers: &[(header::HeaderName, &str)]) -> Visitor {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        access.visitor(&headers, [127, 0, 0, 1].into())
    }

    #[tokio::test]
    async fn reading_is_free_on_loopback_only_and_changing_needs_the_token_everywhere() {
        for (addr, token, reads, changes) in [
            ("127.0.0.1:1", None, true, NO_TOKEN),
            ("127.0.0.1:1", Some(TOKEN), true, LOG_IN),
            ("[::1]:1", Some(TOKEN), true, LOG_IN),
            ("0.0.0.0:1", Some(TOKEN), false, LOG_IN),
        ] {
            let access = access(addr, token);
            let nobody = visitor(&access, &[(header::AUTHORIZATION, "Bearer something-else-entirely")]);
            assert_eq!((nobody.may_read(), nobody.may_change(None)), (reads, Err(changes)), "{addr} {token:?}");
            let bearer = visitor(&access, &[(header::AUTHORIZATION, &format!("Bearer {TOKEN}"))]);
            assert_eq!(bearer.may_change(None).is_ok(), token.is_some(), "{addr} {token:?}");
        }
    }

    #[tokio::test]
    async fn a_session_changes_only_by_its_own_forms_and_ends() {
        let access = access("0.0.0.0:1", Some(TOKEN));
        assert_eq!(access.log_in("a-token-of-sixteen-bytez", "x").await, None);
        let cookie = access.log_in(TOKEN, "ada").await.unwrap();
        assert!(cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap();
        let session = visitor(&access, &[(header::COOKIE, &format!("a=b; {cookie}"))]);
        assert!(session.may_read());
        assert_eq!(session.may_change(None), Err(FOREIGN));
        assert_eq!(session.may_change(Some("guessed")), Err(FOREIGN));
        let operator = session.may_change(session.form_secret()).unwrap();
        assert_eq!(operator.name, "ada");
        let _ = access.log_out(&session);
        assert!(!visitor(&access, &[(header::COOKIE, cookie)]).may_read());
    }

    #[test]
    fn other_sites_neither_read_nor_send() {
        let check = |method: Method, is_local, headers: &[(&'static str, &str)]| {
            let name = header::HeaderName::from_static;
            let headers = headers.iter().map(|(key, value)| (name(key), value.parse().unwrap())).collect();
            same_origin(&headers, &method, is_local)
        };
        let get = |host| check(Method::GET, true, &[("host", host)]);
        for host in ["localhost:9464", "127.0.0.1:9464", "127.8.0.1", "[::1]:9464", "LOCALHOST"] {
            assert_eq!(get(host), Ok(()), "{host}");
        }
        for host in ["evil.example:9464", "localhost.evil.example", "10.0.0.1:9464", ""] {
            assert_eq!(get(host), Err(WRONG_HOST), "{host}");
        }
        assert_eq!(check(Method::GET, false, &[("host", "idem.internal")]), Ok(()));
        let post = |headers: &[(&'static str, &str)]| {
            check(Method::POST, false, &[&[("host", "idem.internal")], headers].concat())
        };
        assert_eq!(post(&[]), Ok(()));
        assert_eq!(post(&[("origin", "https://idem.internal"), ("sec-fetch-site", "same-origin")]), Ok(()));
        for foreign in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(post(&[foreign]), Err(FOREIGN), "{foreign:?}");
        }
    }
}
