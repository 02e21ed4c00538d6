//! Which fields say what the event is.

use quote::ToTokens;
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Field, Fields, GenericParam, Generics, Ident};

use super::words::{self, Kind, Place};
use crate::diag::{Diag, Site, site};
use crate::suggest;

/// A struct that can be an event.
pub struct Event<'a> {
    pub ident: &'a Ident,
    pub generics: &'a Generics,
    pub identity: Identity<'a>,
    pub version: Option<Version<'a>>,
    /// Its fields have the names of CloudEvents.
    pub cloud: bool,
}

/// A field, and where its type stands.
pub type Part<'a> = (&'a Ident, Site);

/// What a redelivery is recognised by.
pub enum Identity<'a> {
    Id(Part<'a>),
    NaturalKey(Vec<Part<'a>>),
}

/// What a later state of the same thing is recognised by.
pub struct Version<'a> {
    pub version: Part<'a>,
    pub aggregate: Part<'a>,
}

/// The fields marked with one word.
type Marked<'a> = Vec<(&'a Field, Site)>;

/// Reads the struct; `None` after an error.
pub fn read<'a>(input: &'a DeriveInput, diag: &mut Diag) -> Option<Event<'a>> {
    let fields = named_fields(input, diag)?;
    lifetimes(input, diag);
    let (mut keys, mut cloud) = (Vec::new(), false);
    for word in words::read(&input.attrs, Place::Struct, diag) {
        match word.kind {
            Kind::Key(fields) => keys.push((fields, word.at)),
            Kind::CloudEvents => cloud = true,
            Kind::Id | Kind::Version | Kind::Aggregate => {}
        }
    }
    let (mut ids, mut versions, mut aggregates) = (Marked::new(), Marked::new(), Marked::new());
    for &field in &fields {
        for word in words::read(&field.attrs, Place::Field, diag) {
            match word.kind {
                Kind::Id => ids.push((field, word.at)),
                Kind::Version => versions.push((field, word.at)),
                Kind::Aggregate => aggregates.push((field, word.at)),
                Kind::Key(_) | Kind::CloudEvents => {}
            }
        }
    }
    let version = version(input, &versions, &aggregates, diag);
    let identity = match keys.as_slice() {
        [] => Identity::Id(part(id_field(input, &fields, &ids, cloud, diag)?)?),
        [(key, at), more @ ..] => {
            if let Some((_, second)) = more.first() {
                diag.error(*second, format!("the event `{}` has two natural keys", input.ident))
                    .help("put all fields into one: `#[event(key(order_id, kind))]`");
            } else if let Some((id, _)) = ids.first() {
                diag.error(*at, format!("the event `{}` has an id and a natural key", input.ident))
                    .help(format!("`{}` is marked as the id: remove one of them", show(id)));
            }
            Identity::NaturalKey(key_fields(input, &fields, key.as_deref()?, diag))
        }
    };
    if diag.has_errors() {
        return None;
    }
    Some(Event { ident: &input.ident, generics: &input.generics, identity, version, cloud })
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

/// The marked field, else the one named `event_id`, or with `cloudevents` the one named `id`.
fn id_field<'a>(
    input: &DeriveInput,
    fields: &[&'a Field],
    ids: &Marked<'a>,
    cloud: bool,
    diag: &mut Diag,
) -> Option<&'a Field> {
    let name = if cloud { "id" } else { "event_id" };
    if let Some(field) = only(input, ids, "id", diag) {
        return Some(field);
    }
    if let Some(field) = fields.iter().find(|field| is_named(field, name)) {
        return Some(*field);
    }
    if diag.has_errors() {
        // A misspelt `#[event(..)]` may have meant the id.
        return None;
    }
    let report = diag.error(site(&input.ident), format!("the event `{}` has no id", input.ident));
    let typed = fields.iter().find(|field| field.ty.to_token_stream().to_string().ends_with("EventId"));
    match typed.and_then(|field| field.ident.as_ref()) {
        Some(field) => report.help(format!("mark the field: `#[event(id)] {field}: EventId`")),
        None => report
            .help(format!("add a field `{name}: EventId`, or mark another one with `#[event(id)]`"))
            .help("or name the fields that tell events apart: `#[event(key(order_id, kind))]`"),
    };
    None
}

/// The fields of a natural key.
fn key_fields<'a>(input: &DeriveInput, fields: &[&'a Field], key: &[Ident], diag: &mut Diag) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::new();
    for name in key {
        let Some(&field) = fields.iter().find(|field| is_named(field, &name.unraw().to_string())) else {
            let names: Vec<String> = fields.iter().map(|field| show(field)).collect();
            let message = format!("the event `{}` has no field `{name}`", input.ident);
            let report = diag.error(site(name), message);
            match suggest::nearest(&name.to_string(), names.iter().map(String::as_str)) {
                Some(near) => report.help(format!("did you mean `{near}`?")),
                None => report.help(format!("its fields are `{}`", names.join("`, `"))),
            };
            continue;
        };
        let Some(part) = part(field) else { continue };
        if parts.iter().any(|(known, _)| *known == part.0) {
            diag.error(site(name), format!("`{name}` stands twice in the key")).help("remove one");
            continue;
        }
        parts.push(part);
    }
    parts
}

/// A version is compared within its aggregate, so there are both or none.
fn version<'a>(
    input: &DeriveInput,
    versions: &Marked<'a>,
    aggregates: &Marked<'a>,
    diag: &mut Diag,
) -> Option<Version<'a>> {
    let version = only(input, versions, "version", diag);
    let aggregate = only(input, aggregates, "aggregate", diag);
    match (version, aggregate) {
        (Some(version), Some(aggregate)) => Some(Version { version: part(version)?, aggregate: part(aggregate)? }),
        (Some(_), None) if aggregates.is_empty() => {
            diag.error(versions[0].1, format!("the version of `{}` belongs to no aggregate", input.ident))
                .help("mark the field that names what has the version: `#[event(aggregate)]`");
            None
        }
        (None, Some(_)) if versions.is_empty() => {
            diag.error(aggregates[0].1, format!("the aggregate of `{}` has no version", input.ident))
                .help("mark the field that grows with each change: `#[event(version)]`");
            None
        }
        _ => None,
    }
}

/// The one field marked with a word; a second one is an error.
fn only<'a>(input: &DeriveInput, marked: &Marked<'a>, word: &str, diag: &mut Diag) -> Option<&'a Field> {
    if let [(first, _), (_, second), ..] = marked.as_slice() {
        diag.error(*second, format!("the event `{}` has two {word}s", input.ident))
            .help(format!("`{}` is marked already: keep one `#[event({word})]`", show(first)));
    }
    marked.first().map(|(field, _)| *field)
}

fn part(field: &Field) -> Option<Part<'_>> {
    Some((field.ident.as_ref()?, site(&field.ty)))
}

fn is_named(field: &Field, name: &str) -> bool {
    field.ident.as_ref().is_some_and(|ident| ident.unraw() == name)
}

fn show(field: &Field) -> String {
    field.ident.as_ref().map(ToString::to_string).unwrap_or_default()
}
