//! The [AsyncAPI](https://www.asyncapi.com/docs/reference/specification/v3.0.0) document of a program's handlers.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::config;
use crate::handler::Handler;
use crate::registry;

/// The AsyncAPI 3.0 document of every handler that the program links, as JSON: a channel for each topic, a message for
/// each event, and an operation for each handler.
///
/// The payload of an event that derives `schemars::JsonSchema` is described by its schema (cargo feature `schemars`, of the
/// crate's version 1); of others only that it is a JSON object. The title is the program's name, the version `0.0.0`: what else
/// it should say, such as `servers`, a program adds.
///
/// ```
/// use idem_runtime::prelude::*;
///
/// #[derive(serde::Deserialize, Event)]
/// struct OrderConfirmed { event_id: EventId, order_id: i64 }
///
/// #[idempotent_handler(topic = "order.confirmed", group = "billing")]
/// async fn on_confirmed(_tx: &mut Tx<'_>, _order: OrderConfirmed) -> HandlerResult { Ok(()) }
///
/// let mut document = idem_runtime::asyncapi();
/// document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
/// assert_eq!(document["channels"]["order.confirmed"]["address"], "order.confirmed");
/// ```
///
/// [`Builder::print_asyncapi`](crate::Builder::print_asyncapi) prints it from a program that otherwise runs.
#[must_use]
pub fn asyncapi() -> Value {
    document(&config::program_name(), &registry::handlers())
}

pub(crate) fn document(title: &str, handlers: &[Handler]) -> Value {
    let mut schemas = Schemas::new();
    let mut messages = Map::new();
    let mut channels: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut operations = Map::new();
    let names = names(handlers);
    for (handler, name) in handlers.iter().zip(&names) {
        let topic = handler.spec.topic;
        messages.entry(name.as_str()).or_insert_with(|| message(handler, &mut schemas));
        let of_topic = channels.entry(topic).or_default();
        of_topic.insert(name.clone(), json!({ "$ref": format!("#/components/messages/{name}") }));
        operations.insert(handler.spec.name.to_owned(), operation(handler, name));
    }
    let channel = |(topic, messages): (&str, _)| (topic.to_owned(), json!({ "address": topic, "messages": messages }));
    let mut components = Map::from_iter([("messages".to_owned(), messages.into())]);
    components.extend(schemas.all().map(|schemas| ("schemas".to_owned(), schemas)));
    json!({
        "asyncapi": "3.0.0",
        "info": { "title": title, "version": "0.0.0" },
        "defaultContentType": "application/json",
        "channels": channels.into_iter().map(channel).collect::<Map<_, _>>(),
        "operations": operations,
        "components": components,
    })
}

/// What a handler's messages are called: as the event's type, with the `event_type` it takes.
fn names(handlers: &[Handler]) -> Vec<String> {
    let mut taken: BTreeMap<String, (&str, Option<&str>)> = BTreeMap::new();
    let name = |handler: &Handler| {
        let what = (handler.decode.type_name, handler.spec.event_type);
        let mut plain = without_paths(what.0);
        if let Some(event_type) = what.1 {
            plain = format!("{plain}.{}", plain_text(event_type));
        }
        // Types of two modules may have one name.
        let numbered = (2..).map(|number| format!("{plain}-{number}"));
        let free = |name: &String| taken.get(name).is_none_or(|by| *by == what);
        let name = std::iter::once(plain.clone()).chain(numbered).find(free).unwrap_or(plain);
        taken.insert(name.clone(), what);
        name
    };
    handlers.iter().map(name).collect()
}

/// `shop::Envelope<billing::Paid>` as `Envelope_Paid`.
fn without_paths(type_name: &str) -> String {
    let parts = type_name.split(|letter: char| !letter.is_alphanumeric() && !matches!(letter, '_' | ':'));
    let last = parts.filter_map(|path| path.rsplit("::").next()).filter(|name| !name.is_empty());
    plain_text(&last.collect::<Vec<_>>().join("_"))
}

/// In the alphabet of names below `components`.
fn plain_text(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    text.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect()
}

fn message(handler: &Handler, schemas: &mut Schemas) -> Value {
    let payload = schemas.of(handler).unwrap_or_else(|| json!({ "type": "object" }));
    let name = handler.spec.event_type.map_or_else(|| without_paths(handler.decode.type_name), ToOwned::to_owned);
    json!({ "name": name, "contentType": "application/json", "payload": payload })
}

fn operation(handler: &Handler, message: &str) -> Value {
    let (topic, group) = (handler.spec.topic, handler.spec.group);
    let mut operation = json!({
        "action": "receive",
        "channel": { "$ref": format!("#/channels/{topic}") },
        "messages": [{ "$ref": format!("#/channels/{topic}/messages/{message}") }],
        "bindings": { "kafka": { "groupId": { "type": "string", "enum": [group] }, "bindingVersion": "0.5.0" } },
    });
    if let Some(summary) = handler.spec.summary {
        operation["summary"] = summary.into();
    }
    operation
}

/// The schemas of payloads, which refer to each other below `components`.
#[cfg(feature = "schemars")]
struct Schemas(schemars::SchemaGenerator);

#[cfg(feature = "schemars")]
impl Schemas {
    fn new() -> Self {
        // What AsyncAPI's own schema objects are a superset of.
        let settings = schemars::generate::SchemaSettings::draft07();
        Self(settings.with(|settings| settings.definitions_path = "/components/schemas".into()).into_generator())
    }

    fn of(&mut self, handler: &Handler) -> Option<Value> {
        handler.decode.schema.map(|schema| (schema.of)(&mut self.0).into())
    }

    fn all(mut self) -> Option<Value> {
        Some(self.0.take_definitions(true).into())
    }
}

#[cfg(not(feature = "schemars"))]
struct Schemas;

#[cfg(not(feature = "schemars"))]
impl Schemas {
    fn new() -> Self {
        Self
    }

    fn of(&mut self, _: &Handler) -> Option<Value> {
        None
    }

    fn all(self) -> Option<Value> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::handler;

    #[test]
    fn an_operation_has_the_summary_of_its_handler_if_there_is_one() {
        let mut told = handler("shop::told", "orders", "billing", None);
        told.spec.summary = Some("charges a confirmed order");
        let untold = handler("shop::untold", "orders", "shipping", None);
        let operations = &document("shop", &[told, untold])["operations"];
        assert_eq!(operations["shop::told"]["summary"], "charges a confirmed order");
        assert_eq!(operations["shop::untold"].get("summary"), None);
    }

    #[test]
    fn a_name_has_no_paths_and_no_foreign_letters() {
        for (of, name) in [
            ("shop::Paid", "Paid"),
            ("Paid", "Paid"),
            ("shop::Envelope<billing::v2::Paid, alloc::vec::Vec<u8>>", "Envelope_Paid_Vec_u8"),
            ("shop::Größe", "Gr__e"),
        ] {
            assert_eq!(without_paths(of), name);
        }
    }
}
