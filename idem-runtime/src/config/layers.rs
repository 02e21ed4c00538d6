//! Where settings come from: a file, above it the environment, above that the program.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::error::ConfigError;

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    layer: Layer,
    /// It was read from the file that `<variable>_FILE` names.
    is_secret_file: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Layer {
    /// The file of `IDEM_CONFIG`.
    File(PathBuf),
    Environment,
    Builder,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.layer {
            Layer::File(path) => write!(f, "file {}", path.display())?,
            Layer::Environment => f.write_str("environment")?,
            Layer::Builder => f.write_str("builder")?,
        }
        if self.is_secret_file { f.write_str(" (_FILE)") } else { Ok(()) }
    }
}

impl Source {
    /// The file that it stands in, which an error has to name.
    pub(super) fn file(&self) -> Option<&PathBuf> {
        if let Layer::File(path) = &self.layer { Some(path) } else { None }
    }
}

/// A value, and where it comes from.
pub(super) struct Given {
    pub text: String,
    pub source: Source,
}

type Variables = BTreeMap<String, String>;

/// The variables of all layers; what stands higher wins.
pub(super) fn merge(environment: Variables, builder: Variables) -> (BTreeMap<String, Given>, Vec<ConfigError>) {
    let mut errors = Vec::new();
    let path = builder.get(FILE).or_else(|| environment.get(FILE)).filter(|path| !path.is_empty());
    let file = path.map(|path| {
        let found = read_file(path).unwrap_or_else(|problem| {
            errors.push(ConfigError { variable: FILE.to_owned(), problem });
            Variables::new()
        });
        (Layer::File(PathBuf::from(path)), found)
    });
    let in_file = file.as_ref().is_some_and(|(_, variables)| variables.contains_key(FILE));
    for (is_wrong, variable, problem) in [
        (in_file, FILE, "stands in the file itself: a file names no other one"),
        (
            environment.contains_key(FILE_FILE) || builder.contains_key(FILE_FILE),
            FILE_FILE,
            "is no setting: the file of settings is named by IDEM_CONFIG",
        ),
    ] {
        if is_wrong {
            errors.push(ConfigError { variable: variable.to_owned(), problem: problem.to_owned() });
        }
    }
    let mut merged = BTreeMap::new();
    for (layer, variables) in file.into_iter().chain([(Layer::Environment, environment), (Layer::Builder, builder)]) {
        for (name, text) in variables.iter().filter(|(name, _)| *name != FILE_FILE) {
            let source = |is_secret_file| Source { layer: layer.clone(), is_secret_file };
            match name.strip_suffix("_FILE").filter(|name| name.starts_with("IDEM_")) {
                None => drop(merged.insert(name.clone(), Given { text: text.clone(), source: source(false) })),
                Some(_) if text.is_empty() => {}
                Some(of) if variables.contains_key(of) => {
                    errors.push(ConfigError {
                        variable: name.clone(),
                        problem: format!("is set, and so is {of}: remove one"),
                    });
                }
                Some(of) => match std::fs::read_to_string(text) {
                    Ok(content) => {
                        let text = content.trim_end_matches(['\r', '\n']).to_owned();
                        merged.insert(of.to_owned(), Given { text, source: source(true) });
                    }
                    // Not the path: somebody may have written the secret itself there.
                    Err(error) => {
                        let problem = format!("names a file that can't be read ({})", error.kind());
                        errors.push(ConfigError { variable: name.clone(), problem });
                    }
                },
            }
        }
    }
    (merged, errors)
}

/// The variable that names the file.
pub(super) const FILE: &str = "IDEM_CONFIG";

/// Looks like a secret's file, and would be read too late.
const FILE_FILE: &str = "IDEM_CONFIG_FILE";

fn read_file(path: &str) -> Result<Variables, String> {
    let content =
        std::fs::read_to_string(path).map_err(|error| format!("names a file that can't be read ({})", error.kind()))?;
    let table: toml::Table = content.parse().map_err(|error: toml::de::Error| {
        // Not the error's own text, which quotes the line.
        let line = error.span().map(|span| content[..span.start.min(content.len())].lines().count().max(1));
        let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
        format!("names a file that is no TOML{line}: {}", error.message())
    })?;
    flatten(table)
}

/// `[kafka] brokers = ".."` is `IDEM_KAFKA_BROKERS`; a list is its elements with commas.
fn flatten(table: toml::Table) -> Result<Variables, String> {
    let mut variables = Variables::new();
    let mut open = vec![("IDEM".to_owned(), table)];
    while let Some((prefix, table)) = open.pop() {
        for (key, value) in table {
            let name = format!("{prefix}_{}", key.to_ascii_uppercase().replace(['.', '-'], "_"));
            match value {
                toml::Value::Table(table) => open.push((name, table)),
                value => {
                    let text = scalar(&value).ok_or_else(|| {
                        format!("names a file in which `{key}` is neither text, number, true, false nor a list of them")
                    })?;
                    if variables.insert(name.clone(), text).is_some() {
                        return Err(format!("names a file that says {name} twice"));
                    }
                }
            }
        }
    }
    Ok(variables)
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        toml::Value::Array(list) => Some(list.iter().map(scalar).collect::<Option<Vec<_>>>()?.join(",")),
        toml::Value::Table(_) | toml::Value::Datetime(_) => None,
    }
}
