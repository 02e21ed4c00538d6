use proptest::prelude::*;
use quote::quote;

use super::*;
use crate::any_tokens::token_tree;

fn expanded(item: &str) -> String {
    prettyplease::unparse(&syn::parse2(expand(item.parse().unwrap())).unwrap())
}

/// The field that is the id, or the only error.
fn id_of(item: &str) -> Result<String, String> {
    let mut diag = Diag::new();
    let input = syn::parse_str(item).unwrap();
    let id = read::read(&input, &mut diag).map(|event| match event.identity {
        read::Identity::Id((field, _)) => field.to_string(),
        read::Identity::NaturalKey(fields) => {
            fields.iter().map(|(field, _)| field.to_string()).collect::<Vec<_>>().join("+")
        }
    });
    let mut errors = diag.messages();
    id.ok_or_else(|| {
        assert_eq!(errors.len(), 1, "{item}: {errors:#?}");
        errors.remove(0)
    })
}

#[test]
fn an_event() {
    insta::assert_snapshot!(expanded("struct Paid { #[event(id)] r#type: EventId, amount: i64 }"));
}

#[test]
fn an_event_with_a_natural_key_and_a_version() {
    insta::assert_snapshot!(expanded(
        "#[event(key(order, kind))] struct Paid {
            #[event(aggregate)] order: i64, kind: String, #[event(version)] revision: i64,
        }"
    ));
}

#[test]
fn an_event_of_another_envelope_differs_in_where_its_type_stands() {
    let own = expanded("struct Paid { #[event(id)] id: EventId }");
    let cloud = expanded("#[event(cloudevents)] struct Paid { id: EventId }");
    let differs: Vec<&str> = cloud.lines().filter(|line| !own.contains(line)).map(str::trim).collect();
    assert_eq!(differs, ["const TYPE_FIELD: __idem::TypeField = __idem::TypeField::CloudEvents;"]);
}

#[test]
fn a_generic_event() {
    insta::assert_snapshot!(expanded(
        "struct Envelope<T: Clone, const N: usize> where T: Eq { event_id: EventId, data: [T; N] }"
    ));
}

#[test]
fn a_broken_event() {
    insta::assert_snapshot!(expanded("struct Paid<'a> { event_id: EventId, name: &'a str }"));
}

#[test]
fn which_field_is_the_id() {
    let good = [
        ("struct E { event_id: EventId }", "event_id"),
        ("struct E { #[event(id)] message: EventId }", "message"),
        ("struct E { event_id: String, #[event(id)] message: EventId }", "message"),
        ("#[event(key(a, r#type,))] struct E { r#type: i64, a: i64, event_id: EventId }", "a+r#type"),
        ("struct E { event_id: EventId, #[event(version)] v: i64, #[event(aggregate)] a: i64 }", "event_id"),
        ("#[event(cloudevents)] struct E { id: EventId, event_id: EventId }", "id"),
        ("#[event(cloudevents)] struct E { #[event(id)] message: EventId, id: String }", "message"),
        ("#[event(cloudevents, key(a))] struct E { a: i64 }", "a"),
    ];
    for (item, expected) in good {
        assert_eq!(id_of(item).as_deref(), Ok(expected), "{item}");
    }
    let bad = [
        ("struct E { id: i64 }", "the event `E` has no id"),
        ("struct E {}", "the event `E` has no id"),
        ("struct E { message: EventId }", "`#[event(id)] message: EventId`"),
        ("struct E { #[event(id)] a: EventId, #[event(id)] b: EventId }", "two ids"),
        ("struct E { #[event(id)] #[event(id)] a: EventId }", "two ids"),
        ("struct E { #[event(id = 1)] a: EventId }", "takes no value"),
        ("struct E { #[event(\"id\")] a: EventId }", "expected"),
        ("struct E { #[event] a: EventId }", "expected"),
        ("struct E { #[event(idd)] a: EventId }", "did you mean `#[event(id)]`"),
        ("#[event(id)] struct E { event_id: EventId }", "marks a field"),
        ("#[event(version)] struct E { event_id: EventId }", "marks a field"),
        ("#[event(key(a, c))] struct E { a: i64, b: i64 }", "has no field `c`"),
        ("#[event(key(order_it))] struct E { order_id: i64 }", "did you mean `order_id`?"),
        ("#[event(key(a, a))] struct E { a: i64, b: i64 }", "`a` stands twice"),
        ("#[event(key())] struct E { a: i64 }", "needs a field"),
        ("#[event(key)] struct E { a: i64 }", "in parentheses"),
        ("#[event(key = \"a\")] struct E { a: i64 }", "in parentheses"),
        ("#[event(key(\"a\"))] struct E { a: i64 }", "a list of field names"),
        ("#[event(key(a), key(b))] struct E { a: i64, b: i64 }", "two natural keys"),
        ("#[event(key(a))] struct E { a: i64, #[event(id)] b: EventId }", "an id and a natural key"),
        ("struct E { #[event(key)] a: i64 }", "stands on the struct"),
        ("struct E { #[event(cloudevents)] event_id: EventId }", "stands on the struct"),
        ("#[event(cloudevents)] struct E { event: String }", "the event `E` has no id"),
        ("#[event(cloudevents = true)] struct E { id: EventId }", "takes no value"),
        ("#[event(cloudevent)] struct E { id: EventId }", "did you mean `#[event(cloudevents)]`"),
        ("struct E { event_id: EventId, #[event(version)] v: i64 }", "belongs to no aggregate"),
        ("struct E { event_id: EventId, #[event(aggregate)] v: i64 }", "has no version"),
        ("struct E { event_id: EventId, #[event(version = 1)] v: i64 }", "takes no value"),
        (
            "struct E { event_id: EventId, #[event(version)] v: i64, #[event(version)] w: i64, #[event(aggregate)] a: i64 }",
            "two versions",
        ),
        ("struct E<'a> { event_id: EventId, t: &'a str }", "can't borrow for `'a`"),
        ("enum E { A { event_id: EventId } }", "is an enum"),
        ("struct E(EventId);", "is a tuple struct"),
        ("struct E;", "is a struct without fields"),
        ("union E { event_id: EventId }", "is a union"),
    ];
    for (item, expected) in bad {
        let error = id_of(item).unwrap_err();
        assert!(error.contains(expected), "{item}: {error}");
    }
}

proptest! {
    /// The words of the struct and of a field are read or refused, whatever they are; there is no panic.
    #[test]
    fn any_words_are_read(
        whole in prop::collection::vec(token_tree(), 0..8),
        field in prop::collection::vec(token_tree(), 0..8),
    ) {
        let item = quote!(#[event(#(#whole)*)] struct E { #[event(#(#field)*)] a: i64, event_id: EventId });
        let mut diag = Diag::new();
        let event = syn::parse2(item).ok().map(|input| read::read(&input, &mut diag).is_some());
        prop_assert_eq!(event, Some(diag.messages().is_empty()));
    }
}
