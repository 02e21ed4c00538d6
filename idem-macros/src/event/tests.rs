use super::*;

fn expanded(item: &str) -> String {
    prettyplease::unparse(&syn::parse2(expand(item.parse().unwrap())).unwrap())
}

/// The field that is the id, or the only error.
fn id_of(item: &str) -> Result<String, String> {
    let mut diag = Diag::new();
    let input = syn::parse_str(item).unwrap();
    let id = read::read(&input, &mut diag).map(|event| event.id.0.to_string());
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
        ("#[event(key(a, b))] struct E { a: i64, b: i64 }", "`#[event(key)]` is not available yet"),
        ("struct E { event_id: EventId, #[event(version)] v: i64 }", "not available yet"),
        ("struct E { event_id: EventId, #[event(aggregate)] v: i64 }", "not available yet"),
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
