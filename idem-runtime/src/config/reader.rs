//! From texts to settings.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::Duration;

use super::error::ConfigError;
use super::layers::Given;
use crate::decide::money::LONGEST_CALL;
use crate::decide::retry;

/// The dedup table needs a partition for each day that an id may lie ahead.
const LONGEST_SKEW: Duration = Duration::from_secs(364 * 86_400);

const LEAST_MEMORY: usize = 1024 * 1024;

/// Reads settings, and notes all that is wrong with them.
pub(super) struct Reader {
    pub(super) vars: BTreeMap<String, Given>,
    pub(super) errors: Vec<ConfigError>,
    /// Every variable that a setting was looked for in.
    pub(super) known: BTreeSet<String>,
}

impl Reader {
    pub(super) fn error(&mut self, variable: &str, problem: impl Into<String>) {
        let file = self.vars.get(variable).and_then(|given| given.source.file());
        let place = file.map(|path| format!(" (in {})", path.display())).unwrap_or_default();
        self.errors.push(ConfigError { variable: variable.to_owned(), problem: format!("{}{place}", problem.into()) });
    }

    /// A value that was given, also an empty one.
    fn given(&mut self, variable: &str) -> Option<String> {
        self.known.insert(variable.to_owned());
        self.vars.get(variable).map(|given| given.text.clone())
    }

    pub(super) fn text(&mut self, variable: &str) -> Option<String> {
        self.given(variable).filter(|text| !text.is_empty())
    }

    /// A list with commas.
    pub(super) fn list(&mut self, variable: &str) -> Vec<String> {
        let text = self.text(variable).unwrap_or_default();
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    /// Names that no setting was looked for in: a typing error would else be a default in silence.
    pub(super) fn refuse_unknown(&mut self) {
        let is_setting = |name: &str| name.starts_with("IDEM_") && !name.starts_with("IDEM_TEST_");
        let of_kafka = |name: &str| name.starts_with("IDEM_KAFKA_");
        let unknown: Vec<String> = self
            .vars
            .iter()
            .filter(|(name, _)| is_setting(name) && !of_kafka(name) && !self.known.contains(*name))
            .filter(|(name, given)| !is_of_kubernetes(name, &given.text))
            .map(|(name, _)| name.clone())
            .collect();
        for name in unknown {
            let meant = nearest(&name, self.known.iter().map(String::as_str));
            let hint = meant.map_or_else(
                || "`idem config check` lists all of them".to_owned(),
                |meant| format!("did you mean {meant}?"),
            );
            self.error(&name, format!("is no setting: {hint}"));
        }
    }

    pub(super) fn parsed<T: FromStr>(&mut self, variable: &str, wanted: &str) -> Option<T> {
        let parsed = self.text(variable)?.parse().ok();
        if parsed.is_none() {
            self.error(variable, format!("is not {wanted}"));
        }
        parsed
    }

    pub(super) fn number(&mut self, variable: &str, default: u32, range: std::ops::RangeInclusive<u32>) -> u32 {
        let Some(text) = self.text(variable) else { return default };
        match text.parse() {
            Ok(number) if range.contains(&number) => number,
            _ => {
                self.error(variable, format!("is not a number from {} to {}", range.start(), range.end()));
                default
            }
        }
    }

    pub(super) fn flag(&mut self, variable: &str, default: bool) -> bool {
        match self.text(variable).as_deref() {
            None => default,
            Some("true") => true,
            Some("false") => false,
            Some(_) => {
                self.error(variable, "is neither true nor false");
                default
            }
        }
    }

    /// The value's meaning; the first of the list is the default.
    pub(super) fn one_of<T: Copy>(&mut self, variable: &str, values: &[(&str, T)]) -> T {
        let default = values[0].1;
        let Some(text) = self.text(variable) else { return default };
        match values.iter().find(|(name, _)| *name == text) {
            Some((_, value)) => *value,
            None => {
                let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
                self.error(variable, format!("is not one of {}", names.join(", ")));
                default
            }
        }
    }

    pub(super) fn duration(&mut self, variable: &str, default: &str) -> Duration {
        let text = self.text(variable).unwrap_or_else(|| default.to_owned());
        humantime::parse_duration(&text).unwrap_or_else(|_| {
            self.error(variable, "is no duration such as 500ms, 20s, 10m or 7d");
            Duration::ZERO
        })
    }

    pub(super) fn bytes(&mut self, variable: &str, default: &str) -> usize {
        let text = self.text(variable).unwrap_or_else(|| default.to_owned());
        match parse_bytes(&text) {
            Some(bytes) if bytes >= LEAST_MEMORY => bytes,
            Some(_) => {
                self.error(variable, "is less than 1MiB");
                LEAST_MEMORY
            }
            None => {
                self.error(variable, "is no size such as 64MiB, 500MB, 1GiB or a number of bytes");
                LEAST_MEMORY
            }
        }
    }

    pub(super) fn positive(&mut self, variable: &str, default: &str) -> Duration {
        let duration = self.duration(variable, default);
        if duration.is_zero() && self.errors.last().is_none_or(|error| error.variable != variable) {
            self.error(variable, "is zero");
        }
        duration
    }

    pub(super) fn money_timeout(&mut self) -> Duration {
        let timeout = self.positive("IDEM_MONEY_TIMEOUT", "10s");
        if timeout > LONGEST_CALL {
            self.error("IDEM_MONEY_TIMEOUT", "is not shorter than a minute, after which a request counts as ended");
        }
        timeout
    }

    /// A provider's address. Credentials belong into a header, which nobody prints.
    pub(super) fn base_url(&mut self, variable: &str) -> Option<String> {
        let url = self.text(variable)?;
        let rest = ["https://", "http://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let Some(rest) = rest.filter(|rest| !rest.is_empty() && !url.contains(char::is_whitespace)) else {
            self.error(variable, "is no URL such as https://api.provider.example/v1");
            return None;
        };
        if rest.contains(['@', '?', '#']) {
            self.error(variable, "holds more than host and path: credentials belong into a header of the request");
            return None;
        }
        Some(url)
    }

    /// Shorter than a second, a busy machine alone would end it.
    pub(super) fn relay_timeout(&mut self) -> Duration {
        let timeout = self.duration("IDEM_RELAY_TIMEOUT", "10s");
        if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&timeout) {
            self.error("IDEM_RELAY_TIMEOUT", "is not from 1s to 5m");
        }
        timeout
    }

    pub(super) fn clock_skew(&mut self) -> Duration {
        let skew = self.duration("IDEM_DEDUP_CLOCK_SKEW", "1d");
        if skew > LONGEST_SKEW {
            self.error("IDEM_DEDUP_CLOCK_SKEW", "is longer than a year: the dedup table has a partition for each day");
        }
        skew
    }

    pub(super) fn tiers(&mut self, variable: &str, default: &str) -> Vec<Duration> {
        let text = self.given(variable).unwrap_or_else(|| default.to_owned());
        let tiers: Result<Vec<_>, _> =
            text.split(',').map(str::trim).filter(|tier| !tier.is_empty()).map(humantime::parse_duration).collect();
        match tiers.map_err(|_| "is no list of durations such as 1s,10s,1m".to_owned()).and_then(|tiers| {
            retry::check_tiers(&tiers)?;
            Ok(tiers)
        }) {
            Ok(tiers) => tiers,
            Err(problem) => {
                self.error(variable, problem);
                Vec::new()
            }
        }
    }
}

/// Kubernetes tells every pod of the services beside it: of one named `idem-admin` by `IDEM_ADMIN_SERVICE_HOST`,
/// `IDEM_ADMIN_SERVICE_PORT`, `IDEM_ADMIN_PORT` (`tcp://..`), `IDEM_ADMIN_PORT_9464_TCP` and so on.
pub(super) fn is_of_kubernetes(variable: &str, value: &str) -> bool {
    let of_a_port =
        variable.split_once("_PORT_").is_some_and(|(_, rest)| rest.contains("_TCP") || rest.contains("_UDP"));
    let is_address = variable.ends_with("_PORT") && value.contains("://");
    variable.ends_with("_SERVICE_HOST") || variable.contains("_SERVICE_PORT") || of_a_port || is_address
}

/// A whole number of bytes, or of a unit of them: 1 KiB has 1,024, 1 kB has 1,000.
pub(super) fn parse_bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: usize = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

/// The word that was probably meant, when one is near enough.
pub(super) fn nearest<'a>(typed: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distances = words.into_iter().map(|word| (strsim::osa_distance(typed, word), word));
    distances.filter(|(distance, _)| *distance <= 3).min().map(|(_, word)| word)
}
