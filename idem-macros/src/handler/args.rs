//! The grammar of the attribute: `key = value, ..`.
//!
//! It is read token by token rather than by syn's parser, which stops at the first mistake.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};

use super::keys::{self, KEYS, Key, Meant, Name};
use super::value::{self, Kind, Value, flat, is_comma};
use crate::diag::Diag;

/// What was written, each value of the right form. The rules between keys are in `check.rs`.
#[derive(Debug, Default)]
pub struct RawArgs {
    given: Vec<Given>,
    /// Keys that were written wrongly or under another name: already an error, so their absence
    /// is not another one.
    presumed: Vec<Name>,
}

#[derive(Debug)]
struct Given {
    key: &'static Key,
    span: Span,
    value: Value,
}

impl RawArgs {
    pub fn get(&self, name: Name) -> Option<&Value> {
        self.given.iter().find(|given| given.key.name == name).map(|given| &given.value)
    }

    /// Where the key stands.
    pub fn span(&self, name: Name) -> Option<Span> {
        self.given.iter().find(|given| given.key.name == name).map(|given| given.span)
    }

    pub fn text(&self, name: Name) -> Option<&str> {
        match self.get(name) {
            Some(Value { kind: Kind::Text(text), .. }) => Some(text),
            _ => None,
        }
    }

    pub fn is_presumed(&self, name: Name) -> bool {
        self.presumed.contains(&name)
    }
}

/// Reads the tokens between the attribute's parentheses.
pub fn parse(tokens: TokenStream, diag: &mut Diag) -> RawArgs {
    let tokens = flat(tokens);
    let mut raw = RawArgs::default();
    let mut rest = tokens.as_slice();
    while let Some(token) = rest.first() {
        rest = match token {
            TokenTree::Ident(ident) => entry(&mut raw, ident, &rest[1..], diag),
            _ if is_comma(token) => {
                diag.error(token.span(), "a comma without a pair before it").help("remove it");
                &rest[1..]
            }
            _ => {
                diag.error(token.span(), "a pair begins with its key")
                    .help(format!("`{} = {}`", KEYS[0].word, KEYS[0].example));
                after(rest, next_comma(rest))
            }
        };
    }
    raw
}

/// Reads one entry, from behind its key; returns what follows it.
fn entry<'t>(raw: &mut RawArgs, ident: &Ident, rest: &'t [TokenTree], diag: &mut Diag) -> &'t [TokenTree] {
    let word = ident.to_string();
    let comma = next_comma(rest);
    let Some(key) = keys::find(word.strip_prefix("r#").unwrap_or(&word)) else {
        raw.presumed.extend(unknown(ident, &word, &rest[..comma], diag));
        return after(rest, comma);
    };
    if !is_equals(rest) {
        raw.presumed.push(key.name);
        let at = rest[..comma].first().map_or(ident.span(), TokenTree::span);
        let what = if comma == 0 { "has no value" } else { "is followed by `=` and its value" };
        diag.error(at, format!("`{word}` {what}")).help(format!("`{word} = {}`", key.example));
        return after(rest, comma);
    }
    let rest = &rest[1..];
    // `topic = "a" group = "b"`: the second key ends the first value.
    let next_key = (1..rest.len()).find(|&at| matches!(rest[at], TokenTree::Ident(_)) && is_equals(&rest[at + 1..]));
    let comma = next_comma(rest);
    let end = next_key.map_or(comma, |at| at.min(comma));
    if end == 0 {
        raw.presumed.push(key.name);
        diag.error(ident.span(), format!("`{word}` has no value")).help(format!("`{word} = {}`", key.example));
        return after(rest, comma);
    }
    given(raw, key, ident, &rest[..end], diag);
    if end < comma {
        diag.error(rest[end].span(), format!("a comma is missing before `{}`", rest[end]))
            .help(format!("`, {} = ..`", rest[end]));
        return &rest[end..];
    }
    after(rest, comma)
}

/// Takes in a pair.
fn given(raw: &mut RawArgs, key: &'static Key, ident: &Ident, tokens: &[TokenTree], diag: &mut Diag) {
    if let Some(first) = raw.span(key.name) {
        // Stable Rust has no second place in an error of a macro: the line must do.
        // `unwrap` gives the compiler's span; outside of a macro, in unit tests, there is none.
        let place = if proc_macro::is_available() {
            format!(" (first in line {})", first.unwrap().line())
        } else {
            String::new()
        };
        diag.error(ident.span(), format!("`{}` is given twice{place}", key.word)).help("remove one");
        return;
    }
    match value::read(key, tokens, diag) {
        Some(value) => raw.given.push(Given { key, span: ident.span(), value }),
        None => raw.presumed.push(key.name),
    }
}

/// Reports a word that is no key; returns the key that was meant.
fn unknown(ident: &Ident, word: &str, rest: &[TokenTree], diag: &mut Diag) -> Option<Name> {
    let meant = keys::meant(word);
    let key = match meant {
        Meant::Called(key) | Meant::Misspelt(key) => keys::find(key),
        Meant::Elsewhere(_) | Meant::Unknown => None,
    };
    let message = match meant {
        Meant::Called(key) => format!("`{word}` is called `{key}` here"),
        Meant::Elsewhere(_) => format!("`{word}` is no key of `idempotent_handler`"),
        Meant::Misspelt(_) | Meant::Unknown => format!("unknown key `{word}`"),
    };
    let help = match (meant, key) {
        (Meant::Elsewhere(place), _) => place.to_owned(),
        (_, Some(key)) => {
            let given = rest.get(1..).unwrap_or_default();
            let value = value::suggested(key, if is_equals(rest) { given } else { &[] });
            format!("did you mean `{} = {value}`?", key.word)
        }
        (_, None) => {
            let words: Vec<String> = KEYS.iter().map(|key| format!("`{}`", key.word)).collect();
            format!("the keys are {}", words.join(", "))
        }
    };
    diag.error(ident.span(), message).help(help);
    key.map(|key| key.name)
}

fn next_comma(tokens: &[TokenTree]) -> usize {
    tokens.iter().position(is_comma).unwrap_or(tokens.len())
}

/// What is behind the comma.
fn after(tokens: &[TokenTree], comma: usize) -> &[TokenTree] {
    tokens.get(comma + 1..).unwrap_or_default()
}

/// One `=`, not `==` or `=>`.
fn is_equals(tokens: &[TokenTree]) -> bool {
    let punct = |at: usize| match tokens.get(at) {
        Some(TokenTree::Punct(punct)) => Some(punct.as_char()),
        _ => None,
    };
    punct(0) == Some('=') && !matches!(punct(1), Some('=' | '>'))
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
