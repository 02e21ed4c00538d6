//! The grammar of `#[event(..)]`: which words stand where.

use proc_macro2::{Delimiter, Ident, TokenTree};
use quote::ToTokens;
use syn::Attribute;
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;

use crate::diag::{Diag, Site, site};
use crate::suggest;

/// One word, and where it stands.
pub struct Word {
    pub kind: Kind,
    pub at: Site,
}

pub enum Kind {
    /// `id`, on a field.
    Id,
    /// `version`, on a field.
    Version,
    /// `aggregate`, on a field.
    Aggregate,
    /// `key(field, ..)`, on the struct; `None` when its list is broken.
    Key(Option<Vec<Ident>>),
    /// `cloudevents`, on the struct.
    CloudEvents,
}

/// What the attribute stands on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Struct,
    Field,
}

const WORDS: [&str; 5] = ["id", "key", "version", "aggregate", "cloudevents"];

/// The words of all `#[event(..)]`; those that mean nothing here are reported.
pub fn read(attrs: &[Attribute], place: Place, diag: &mut Diag) -> Vec<Word> {
    let mut words = Vec::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("event")) {
        let read = attr.parse_nested_meta(|meta| {
            words.extend(word(&meta, place, diag)?);
            Ok(())
        });
        if let Err(error) = read {
            let example = if place == Place::Field { "`#[event(id)]`" } else { "`#[event(key(order_id, kind))]`" };
            diag.syn_error(&error).help(example);
        }
    }
    words
}

fn word(meta: &ParseNestedMeta, place: Place, diag: &mut Diag) -> syn::Result<Option<Word>> {
    let at = site(&meta.path);
    let word = meta.path.to_token_stream().to_string();
    let value = value(meta)?;
    let kind = match word.as_str() {
        "id" => Kind::Id,
        "version" => Kind::Version,
        "aggregate" => Kind::Aggregate,
        "key" if place == Place::Struct => return Ok(Some(Word { kind: Kind::Key(key(at, &value, diag)), at })),
        "cloudevents" if place == Place::Field => {
            diag.error(at, "`cloudevents` stands on the struct: it says what its fields are called")
                .help("`#[event(cloudevents)]` above `struct`");
            return Ok(None);
        }
        "cloudevents" => Kind::CloudEvents,
        "key" => {
            diag.error(at, "a natural key stands on the struct, and names its fields")
                .help("`#[event(key(order_id, kind))]` above `struct`");
            return Ok(None);
        }
        _ => {
            let near = suggest::nearest(&word, WORDS).unwrap_or(if place == Place::Field { "id" } else { "key" });
            let near = if near == "key" { "key(order_id, kind)" } else { near };
            diag.error(at, format!("unknown word `{word}`")).help(format!("did you mean `#[event({near})]`?"));
            return Ok(None);
        }
    };
    if place == Place::Struct && !matches!(kind, Kind::CloudEvents) {
        diag.error(at, format!("`#[event({word})]` marks a field"))
            .help(format!("put it on the field that holds the {word}"));
        return Ok(None);
    }
    if !value.is_empty() {
        diag.error(at, format!("`{word}` takes no value")).help(format!("`#[event({word})]`"));
        return Ok(None);
    }
    Ok(Some(Word { kind, at }))
}

/// Whatever follows the word.
fn value(meta: &ParseNestedMeta) -> syn::Result<Vec<TokenTree>> {
    let mut tokens = Vec::new();
    while !meta.input.is_empty() && !meta.input.peek(syn::Token![,]) {
        tokens.push(meta.input.parse()?);
    }
    Ok(tokens)
}

/// The fields of `key(..)`.
fn key(at: Site, value: &[TokenTree], diag: &mut Diag) -> Option<Vec<Ident>> {
    const EXAMPLE: &str = "`#[event(key(order_id, kind))]`";
    let list = match value {
        [TokenTree::Group(group)] if group.delimiter() == Delimiter::Parenthesis => group.stream(),
        _ => {
            diag.error(at, "`key` is followed by the names of fields in parentheses").help(EXAMPLE);
            return None;
        }
    };
    let fields = match syn::parse::Parser::parse2(Punctuated::<Ident, syn::Token![,]>::parse_terminated, list) {
        Ok(fields) => fields,
        Err(error) => {
            diag.error(error.span(), "a natural key is a list of field names").help(EXAMPLE);
            return None;
        }
    };
    if fields.is_empty() {
        diag.error(at, "a natural key needs a field: without one all events would be the same").help(EXAMPLE);
        return None;
    }
    Some(fields.into_iter().collect())
}
