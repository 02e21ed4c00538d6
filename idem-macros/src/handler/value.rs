//! One value of the attribute: its form, and the pair to write when it has another one.

use std::time::Duration;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::Lit;

use super::keys::{Form, Key};
use crate::diag::{Diag, Site, site};
use crate::names;
use crate::suggest;

/// A value of the right form, and where it stands.
#[derive(Clone, Debug)]
pub struct Value {
    pub site: Site,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Text(String),
    Bool(bool),
    Integer(u64),
    Duration(Duration),
    Tiers(Vec<Duration>),
}

/// Reads the tokens behind `key =`. They are never empty.
pub fn read(key: &Key, tokens: &[TokenTree], diag: &mut Diag) -> Option<Value> {
    let site = site(&tokens.iter().cloned().collect::<TokenStream>());
    let kind = match (key.form, literal(tokens)) {
        (Form::Kafka, Some(Lit::Str(text))) => kafka(key, site, text.value(), diag),
        (Form::Text, Some(Lit::Str(text))) => text_of(key, site, text.value(), diag),
        (Form::Line { max }, Some(Lit::Str(text))) => line(key, max, site, text.value(), diag),
        (Form::OneOf(words), Some(Lit::Str(text))) => one_of(key, words, site, text.value(), diag),
        (Form::Duration, Some(Lit::Str(text))) => {
            let help = || suggested(key, tokens);
            duration(key, site, &text.value(), help, diag).map(Kind::Duration)
        }
        (Form::Bool, Some(Lit::Bool(value))) => Some(Kind::Bool(value.value)),
        (Form::Integer { min, max }, Some(Lit::Int(number))) if number.suffix().is_empty() => {
            // A literal that is too large for u64 is out of range as well.
            let number = number.base10_parse().unwrap_or(u64::MAX);
            integer(key, min, max, site, number, diag)
        }
        (Form::Tiers, _) if is_list(tokens) => tiers(key, tokens, diag).map(Kind::Tiers),
        _ => {
            let Key { word, form, .. } = key;
            let report = diag.error(site, format!("`{word}` takes {}", form.describe()));
            if is_constant(tokens) {
                report.help("an attribute is read before constants are known: write the value itself");
            } else {
                report.help(format!("`{word} = {}`", suggested(key, tokens)));
            }
            None
        }
    };
    kind.map(|kind| Value { site, kind })
}

/// The only token, when it is a literal.
fn literal(tokens: &[TokenTree]) -> Option<Lit> {
    match tokens {
        [TokenTree::Literal(literal)] => Some(Lit::new(literal.clone())),
        [TokenTree::Ident(ident)] if ident == "true" || ident == "false" => {
            Some(Lit::Bool(syn::LitBool::new(ident == "true", ident.span())))
        }
        _ => None,
    }
}

/// `TOPIC` is no value that lost its quotes.
fn is_constant(tokens: &[TokenTree]) -> bool {
    let shouts = |ident: &str| ident.chars().any(char::is_uppercase) && !ident.chars().any(char::is_lowercase);
    matches!(tokens, [.., TokenTree::Ident(ident)] if shouts(&ident.to_string()))
}

fn is_list(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Group(group)] if group.delimiter() == Delimiter::Bracket)
}

fn kafka(key: &Key, site: Site, name: String, diag: &mut Diag) -> Option<Kind> {
    let Err(error) = names::check(&name) else {
        return Some(Kind::Text(name));
    };
    let Key { word, example, .. } = key;
    let report = diag.error(site, format!("the {word} {name:?} {error}"));
    match error {
        names::NameError::Character { .. } => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
            let name = name.replace(|c| !allowed(c), "-");
            report.help(format!("Kafka allows ASCII letters, digits, `.`, `_` and `-`: `{word} = \"{name}\"`"));
        }
        _ => {
            report.help(format!("`{word} = {example}`"));
        }
    }
    None
}

fn text_of(key: &Key, site: Site, text: String, diag: &mut Diag) -> Option<Kind> {
    if text.is_empty() {
        let Key { word, example, .. } = key;
        diag.error(site, format!("`{word}` is empty")).help(format!("`{word} = {example}`, or leave it out"));
        return None;
    }
    Some(Kind::Text(text))
}

/// Shown where there is room for one line.
fn line(key: &Key, max: usize, site: Site, text: String, diag: &mut Diag) -> Option<Kind> {
    // Spaces alone are nothing to read.
    if text.trim().is_empty() {
        return text_of(key, site, String::new(), diag);
    }
    let Key { word, example, .. } = key;
    let length = text.chars().count();
    let (message, cure) = if text.contains(LINE_BREAKS) {
        (format!("the {word} has a line break"), "write one line")
    } else if length > max {
        (format!("the {word} has {length} characters, and {max} are allowed"), "write fewer words")
    } else {
        return Some(Kind::Text(text));
    };
    diag.error(site, message).help(format!("{cure}: `{word} = {example}`"));
    None
}

/// Those of Unicode.
const LINE_BREAKS: [char; 7] = ['\n', '\u{b}', '\u{c}', '\r', '\u{85}', '\u{2028}', '\u{2029}'];

fn one_of(key: &Key, words: &[&str], site: Site, text: String, diag: &mut Diag) -> Option<Kind> {
    if words.contains(&text.as_str()) {
        return Some(Kind::Text(text));
    }
    let Key { word, form, example, .. } = key;
    let report = diag.error(site, format!("`{word}` takes {}", form.describe()));
    match suggest::nearest(&text, words.iter().copied()) {
        Some(near) => report.help(format!("did you mean `{word} = \"{near}\"`?")),
        None => report.help(format!("`{word} = {example}`")),
    };
    None
}

fn integer(key: &Key, min: u64, max: u64, site: Site, number: u64, diag: &mut Diag) -> Option<Kind> {
    if (min..=max).contains(&number) {
        return Some(Kind::Integer(number));
    }
    let Key { word, form, .. } = key;
    diag.error(site, format!("`{word}` takes {}", form.describe()))
        .help(format!("`{word} = {}`", number.clamp(min, max)));
    None
}

fn duration(
    key: &Key,
    site: Site,
    text: &str,
    suggested: impl FnOnce() -> String,
    diag: &mut Diag,
) -> Option<Duration> {
    match names::parse_duration(text) {
        Ok(duration) => Some(duration),
        Err(error) => {
            diag.error(site, format!("{text:?} {error}")).help(format!(
                "write a whole number with its unit, like {}: `{} = {}`",
                names::DURATIONS,
                key.word,
                suggested()
            ));
            None
        }
    }
}

fn tiers(key: &Key, tokens: &[TokenTree], diag: &mut Diag) -> Option<Vec<Duration>> {
    let [TokenTree::Group(list)] = tokens else {
        return None;
    };
    let list = flat(list.stream());
    let help = || suggested(key, tokens);
    let mut tiers: Vec<(Duration, Site)> = Vec::new();
    for element in list.split(is_comma).filter(|element| !element.is_empty()) {
        let site = site(&element.iter().cloned().collect::<TokenStream>());
        let Some(Lit::Str(text)) = literal(element) else {
            diag.error(site, "a delay is a string literal").help(format!("`{} = {}`", key.word, help()));
            return None;
        };
        tiers.push((duration(key, site, &text.value(), help, diag)?, site));
    }
    if let Some([(before, _), (tier, site)]) = tiers.array_windows().find(|[a, b]| a.0 >= b.0) {
        let (before, tier) = (names::render_duration(*before), names::render_duration(*tier));
        let mut sorted: Vec<Duration> = tiers.iter().map(|(tier, _)| *tier).collect();
        sorted.sort();
        sorted.dedup();
        let sorted: Vec<String> =
            sorted.into_iter().map(|tier| format!("{:?}", names::render_duration(tier))).collect();
        diag.error(*site, format!("the delay {tier} is not longer than {before} before it")).help(format!(
            "put the shortest first: `{} = [{}]`",
            key.word,
            sorted.join(", ")
        ));
        return None;
    }
    Some(tiers.into_iter().map(|(tier, _)| tier).collect())
}

/// Macro fragments (`topic = $topic`) come in invisible groups.
pub fn flat(tokens: TokenStream) -> Vec<TokenTree> {
    let mut flat_tokens = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
                flat_tokens.extend(flat(group.stream()));
            }
            token => flat_tokens.push(token),
        }
    }
    flat_tokens
}

pub fn is_comma(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')
}

/// A value to paste: the given one in the right form, else the example.
pub fn suggested(key: &Key, tokens: &[TokenTree]) -> String {
    corrected(key, tokens).unwrap_or_else(|| key.example.to_owned())
}

/// What was probably meant by a value of another form.
fn corrected(key: &Key, tokens: &[TokenTree]) -> Option<String> {
    match (key.form, literal(tokens)) {
        (Form::Bool, Some(Lit::Str(text))) => match text.value().to_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some("true".to_owned()),
            "false" | "no" | "off" | "0" => Some("false".to_owned()),
            _ => None,
        },
        (Form::Bool, Some(Lit::Int(number))) => {
            Some(if number.base10_digits() == "0" { "false" } else { "true" }.to_owned())
        }
        (Form::Integer { min, max }, Some(Lit::Str(text))) => {
            let number: u64 = text.value().trim().parse().ok()?;
            (min..=max).contains(&number).then(|| number.to_string())
        }
        (Form::Integer { min, max }, Some(Lit::Int(number))) => {
            let number: u64 = number.base10_parse().ok()?;
            (min..=max).contains(&number).then(|| number.to_string())
        }
        (Form::Duration, _) => quoted_duration(tokens),
        (Form::Tiers, _) => {
            let elements = match tokens {
                [TokenTree::Group(group)] => flat(group.stream()),
                _ => tokens.to_vec(),
            };
            let elements: Option<Vec<String>> =
                elements.split(is_comma).filter(|element| !element.is_empty()).map(quoted_duration).collect();
            elements.map(|elements| format!("[{}]", elements.join(", ")))
        }
        (Form::Kafka, _) => quoted(tokens).filter(|text| names::check(text.trim_matches('"')).is_ok()),
        (Form::OneOf(words), _) => {
            let text = quoted(tokens)?;
            let near = suggest::nearest(text.trim_matches('"'), words.iter().copied())?;
            Some(format!("{near:?}"))
        }
        (Form::Text, _) => quoted(tokens),
        // Words without their quotes have lost the spaces between them.
        (Form::Line { max }, _) if tokens.len() == 1 => {
            quoted(tokens).filter(|text| text.trim_matches('"').chars().count() <= max)
        }
        _ => None,
    }
}

/// `orders.created` as `"orders.created"`.
fn quoted(tokens: &[TokenTree]) -> Option<String> {
    let text = match literal(tokens) {
        Some(Lit::ByteStr(bytes)) => String::from_utf8(bytes.value()).ok()?,
        Some(Lit::CStr(text)) => text.value().into_string().ok()?,
        Some(Lit::Str(text)) => text.value(),
        _ => {
            // Groups are expressions, and a lifetime or a quote is no part of a name.
            let plain = |token: &TokenTree| match token {
                TokenTree::Ident(_) | TokenTree::Literal(_) => true,
                TokenTree::Punct(punct) => "-._:/".contains(punct.as_char()),
                TokenTree::Group(_) => false,
            };
            if !tokens.iter().all(plain) {
                return None;
            }
            tokens.iter().map(ToString::to_string).collect()
        }
    };
    let printable = !text.is_empty() && text.chars().all(|c| !c.is_control() && c != '"' && c != '\\');
    printable.then(|| format!("\"{text}\""))
}

/// `20s` and `20` as `"20s"`.
fn quoted_duration(tokens: &[TokenTree]) -> Option<String> {
    let text = quoted(tokens)?;
    let text = text.trim_matches('"').replace('_', "");
    let seconds = format!("{text}s");
    [text, seconds].into_iter().find(|text| names::parse_duration(text).is_ok()).map(|text| format!("{text:?}"))
}
