//! Which field is the id.

use quote::ToTokens;
use syn::meta::ParseNestedMeta;
use syn::{Attribute, Data, DeriveInput, Field, Fields, GenericParam, Generics, Ident};

use crate::diag::{Diag, Site, site};
use crate::suggest;

/// A struct that can be an event.
pub struct Event<'a> {
    pub ident: &'a Ident,
    pub generics: &'a Generics,
    /// The field, and where its type stands.
    pub id: (&'a Ident, Site),
}

/// Every word of `#[event(..)]`.
const WORDS: [&str; 4] = ["id", "key", "version", "aggregate"];

/// Reads the struct; `None` after an error.
pub fn read<'a>(input: &'a DeriveInput, diag: &mut Diag) -> Option<Event<'a>> {
    let fields = named_fields(input, diag)?;
    lifetimes(input, diag);
    let whole = words(&input.attrs, diag);
    if let Some((_, at)) = whole.iter().find(|(word, _)| word == "id") {
        diag.error(*at, "`#[event(id)]` marks a field").help("put it on the field that holds the id");
    }
    let mut marked = Vec::new();
    for &field in &fields {
        let ids = words(&field.attrs, diag).into_iter().filter(|(word, _)| word == "id");
        marked.extend(ids.map(|(_, at)| (field, at)));
    }
    let id = id_field(input, &fields, &marked, diag)?;
    if diag.has_errors() {
        return None;
    }
    Some(Event { ident: &input.ident, generics: &input.generics, id: (id.ident.as_ref()?, site(&id.ty)) })
}

fn named_fields<'a>(input: &'a DeriveInput, diag: &mut Diag) -> Option<Vec<&'a Field>> {
    let name = &input.ident;
    let (at, what) = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => return Some(fields.named.iter().collect()),
            Fields::Unnamed(fields) => (site(fields), "a tuple struct"),
            Fields::Unit => (site(name), "a struct without fields"),
        },
        Data::Enum(data) => (site(&data.enum_token), "an enum"),
        Data::Union(data) => (site(&data.union_token), "a union"),
    };
    let report = diag.error(at, format!("`{name}` is {what}, and an event is a struct with named fields"));
    if matches!(input.data, Data::Enum(_)) {
        report
            .help("write a struct and a handler for each kind, told apart by `event_type`")
            .help(format!("or put it into a field: `struct Envelope {{ event_id: EventId, kind: {name} }}`"));
    } else {
        report.help(format!("`struct {name} {{ event_id: EventId, .. }}`"));
    }
    None
}

/// The record's buffer is gone when the handler runs.
fn lifetimes(input: &DeriveInput, diag: &mut Diag) {
    let lifetime = input.generics.params.iter().find_map(|param| match param {
        GenericParam::Lifetime(param) => Some(&param.lifetime),
        _ => None,
    });
    if let Some(lifetime) = lifetime {
        let message = format!("the event `{}` can't borrow for `{lifetime}`: it outlives the record", input.ident);
        diag.error(site(lifetime), message).help("own the data: `String` instead of `&str`");
    }
}

/// The marked field, else the one named `event_id`.
fn id_field<'a>(
    input: &DeriveInput,
    fields: &[&'a Field],
    marked: &[(&'a Field, Site)],
    diag: &mut Diag,
) -> Option<&'a Field> {
    match marked {
        [(field, _)] => return Some(*field),
        [(first, _), (_, second), ..] => {
            let first = first.ident.as_ref().map(ToString::to_string).unwrap_or_default();
            diag.error(*second, format!("the event `{}` has two ids", input.ident))
                .help(format!("`{first}` is marked already: keep one `#[event(id)]`"));
            return None;
        }
        [] => {}
    }
    if let Some(field) = fields.iter().find(|field| is_named(field, "event_id")) {
        return Some(*field);
    }
    if diag.has_errors() {
        // A misspelt or unavailable `#[event(..)]` may have meant the id.
        return None;
    }
    let report = diag.error(site(&input.ident), format!("the event `{}` has no id", input.ident));
    let typed = fields.iter().find(|field| field.ty.to_token_stream().to_string().ends_with("EventId"));
    match typed.and_then(|field| field.ident.as_ref()) {
        Some(field) => report.help(format!("mark the field: `#[event(id)] {field}: EventId`")),
        None => report.help("add a field `event_id: EventId`, or mark another one with `#[event(id)]`"),
    };
    None
}

fn is_named(field: &Field, name: &str) -> bool {
    field.ident.as_ref().is_some_and(|ident| ident == name)
}

/// The words of all `#[event(..)]`; those that mean nothing today are reported.
fn words(attrs: &[Attribute], diag: &mut Diag) -> Vec<(String, Site)> {
    let mut words = Vec::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("event")) {
        let read = attr.parse_nested_meta(|meta| {
            if let Some(word) = word(&meta, diag)? {
                words.push((word, site(&meta.path)));
            }
            Ok(())
        });
        if let Err(error) = read {
            diag.syn_error(&error).help("`#[event(id)]`");
        }
    }
    words
}

/// One word that is available.
fn word(meta: &ParseNestedMeta, diag: &mut Diag) -> syn::Result<Option<String>> {
    let word = meta.path.to_token_stream().to_string();
    let takes_more = !meta.input.is_empty() && !meta.input.peek(syn::Token![,]);
    match word.as_str() {
        "id" if takes_more => Err(meta.error("`id` takes no value")),
        "id" => Ok(Some(word)),
        "key" | "version" | "aggregate" => {
            diag.error(site(&meta.path), format!("`#[event({word})]` is not available yet"))
                .help("an event is recognised by its id: a field `event_id: EventId`");
            skip_value(meta)?;
            Ok(None)
        }
        _ => {
            let near = suggest::nearest(&word, WORDS).unwrap_or("id");
            diag.error(site(&meta.path), format!("unknown word `{word}`"))
                .help(format!("did you mean `#[event({near})]`?"));
            skip_value(meta)?;
            Ok(None)
        }
    }
}

/// What belongs to a word that is refused anyway.
fn skip_value(meta: &ParseNestedMeta) -> syn::Result<()> {
    while !meta.input.is_empty() && !meta.input.peek(syn::Token![,]) {
        meta.input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}
