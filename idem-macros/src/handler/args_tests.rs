use std::time::Duration;

use proc_macro2::{Ident, Punct, Spacing, Span, TokenStream, TokenTree};
use proptest::prelude::*;

use super::super::check::{HandlerArgs, check};
use super::*;
use crate::any_tokens::token_tree;

const BOTH: &str = r#"topic = "orders", group = "billing""#;

/// Both required keys and these.
fn with(more: &str) -> String {
    format!("{BOTH}, {more}")
}

fn read(text: &str) -> Result<HandlerArgs, Vec<String>> {
    let mut diag = Diag::new();
    let raw = parse(text.parse().unwrap(), &mut diag);
    let args = check(&raw, &mut diag);
    let messages = diag.messages();
    args.ok_or(messages)
}

/// The only error.
fn refused(text: &str) -> String {
    let mut errors = read(text).expect_err(text);
    assert_eq!(errors.len(), 1, "{text}: {errors:#?}");
    errors.remove(0)
}

#[test]
fn the_defaults() {
    let args = read(BOTH).unwrap();
    assert_eq!((args.topic.as_str(), args.group.as_str()), ("orders", "billing"));
    assert_eq!((args.event_type, args.retry, args.summary), (None, None, None));
    assert_eq!((args.timeout, args.concurrency), (Duration::from_secs(20), 1));
}

#[test]
fn the_keys_of_every_handler() {
    let more = r#"event_type = "paid", retry = ["250ms", "1m",], timeout = "1h", concurrency = 1_024,"#;
    let args = read(&with(more)).unwrap();
    assert_eq!(args.event_type.as_deref(), Some("paid"));
    assert_eq!(args.retry, Some(vec![Duration::from_millis(250), Duration::from_secs(60)]));
    assert_eq!((args.timeout, args.concurrency), (Duration::from_secs(3600), 1024));
    assert_eq!(read(&with("retry = []")).unwrap().retry, Some(vec![]));
    assert_eq!(read(r##"topic = r#"a"#, group = "b""##).unwrap().topic, "a");
}

#[test]
fn what_happens_anyway_may_be_written() {
    for pair in ["money = false", r#"transaction = "own""#, r#"order = "partition""#, r#"expired = "dlq""#] {
        assert_eq!(format!("{:?}", read(&with(pair)).unwrap()), format!("{:?}", read(BOTH).unwrap()), "{pair}");
    }
}

#[test]
fn the_keys_of_money_batches_and_order() {
    let args = read(&with(r#"money = true, operation = "charge", conflict = "in_flight""#)).unwrap();
    let money = args.money.unwrap();
    assert_eq!((money.operation.as_deref(), money.conflict.as_str()), (Some("charge"), "in_flight"));
    let args = read(&with("batch = 10_000")).unwrap();
    assert_eq!((args.batch, args.transaction.as_str()), (Some(10_000), "shared"));
    let args = read(&with(r#"order = "key", expired = "skip", stale = "skip""#)).unwrap();
    assert_eq!((args.order.as_str(), args.expired.as_str(), args.stale), ("key", "skip", true));
}

#[test]
fn a_summary_is_one_line_of_any_letters() {
    let longest = "é".repeat(120);
    for text in ["charges a confirmed order", longest.as_str()] {
        assert_eq!(read(&with(&format!("summary = {text:?}"))).unwrap().summary.as_deref(), Some(text));
    }
    let too_long = refused(&with(&format!("summary = {:?}", "é".repeat(121))));
    assert!(too_long.contains("has 121 characters, and 120 are allowed"), "{too_long}");
    for text in ["a\nb", "a\rb", "a\u{2028}b", "a\n"] {
        let broken = refused(&with(&format!("summary = {text:?}")));
        assert!(broken.contains("has a line break"), "{broken}");
    }
}

#[test]
fn mistakes_and_their_cure() {
    let cases = [
        ("", "`topic` and `group` are missing"),
        (r#"topic = "orders""#, r#"`#[idempotent_handler(topic = "orders", group = "billing-order-confirmed")]`"#),
        (r#"topik = "orders", group = "g""#, "did you mean `topic = \"orders\"`?"),
        (r#"topics = "orders", group = "g""#, "`topics` is called `topic` here"),
        (r#"topic = "orders", consumer_group = "g""#, "did you mean `group = \"g\"`?"),
        (r#"topic = "a", group = "g", topic = "b""#, "`topic` is given twice"),
        (r#"topic = orders, group = "g""#, r#"`topic = "orders"`"#),
        (r#"topic = a.b-c, group = "g""#, r#"`topic = "a.b-c"`"#),
        (r#"topic = b"orders", group = "g""#, r#"`topic = "orders"`"#),
        (r#"topic = concat!("a", "b"), group = "g""#, "`topic` takes a string literal"),
        (r#"topic, group = "g""#, "`topic` has no value"),
        (r#"topic = , group = "g""#, "`topic` has no value"),
        (r#"topic("orders"), group = "g""#, "`topic` is followed by `=`"),
        (r#"topic: "orders", group = "g""#, "`topic` is followed by `=`"),
        (r#"topic == "orders", group = "g""#, "`topic` is followed by `=`"),
        (r#"topic = "orders" group = "g""#, "a comma is missing before `group`"),
        (r#"topic = "orders", , group = "g""#, "a comma without a pair"),
        (r#""orders", topic = "orders", group = "g""#, "a pair begins with its key"),
        (r#"topic = "", group = "g""#, "is empty"),
        (r#"topic = "a b", group = "g""#, r#"`topic = "a-b"`"#),
        (r#"topic = "g.dlq", group = "g""#, "one of the group's own topics"),
        (r#"topic = "g.retry.1s", group = "g""#, "one of the group's own topics"),
    ];
    for (text, expected) in cases {
        let error = refused(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn mistakes_in_optional_keys() {
    let cases = [
        ("dlq = \"x\"", "`<group>.dlq`"),
        ("colour = 3", "the keys are `topic`, `group`"),
        ("money = \"true\"", "`money = true`"),
        ("money = 0", "`money = false`"),
        ("money", "`money = true`"),
        ("concurrency = \"8\"", "`concurrency = 8`"),
        ("concurrency = 8u16", "`concurrency = 8`"),
        ("concurrency = -1", "an integer from 1 to 1024"),
        ("concurrency = 0", "`concurrency = 1`"),
        ("concurrency = 4096", "`concurrency = 1024`"),
        ("concurrency = 99999999999999999999999", "`concurrency = 1024`"),
        ("timeout = 20", "`timeout = \"20s\"`"),
        ("timeout = 20s", "`timeout = \"20s\"`"),
        ("timeout = Duration::from_secs(20)", "`timeout = \"20s\"`"),
        ("timeout = \"20\"", "`timeout = \"20s\"`"),
        ("retry = [\"1m\", \"10\"]", "`retry = [\"1m\", \"10s\"]`"),
        ("timeout = \"0s\"", "is zero"),
        ("retry = \"1s\"", "`retry = [\"1s\"]`"),
        ("retry = 3", "`retry = [\"3s\"]`"),
        ("retry = [1s, 2m]", "`retry = [\"1s\", \"2m\"]`"),
        ("retry = (\"1s\", \"1m\")", "`retry = [\"1s\", \"1m\"]`"),
        ("retry = [\"1m\", \"1s\"]", "`retry = [\"1s\", \"1m\"]`"),
        ("retry = [\"60s\", \"1m\"]", "the delay 1m is not longer than 1m before it"),
        ("retry = [\"soon\"]", "is no duration"),
        ("transaction = \"share\"", "did you mean `transaction = \"shared\"`?"),
        ("order = key", "`order = \"key\"`"),
        ("event_type = \"\"", "is empty"),
        ("summary = \"\"", "is empty"),
        ("summary = \" \\n \"", "is empty"),
        ("summary = charges", "`summary = \"charges\"`"),
        ("summary = charges an order", "`summary = \"charges a confirmed order\"`"),
        ("description = \"charges\"", "did you mean `summary = \"charges\"`?"),
        ("max_retries = 3", "`max_retries` is called `retry` here"),
    ];
    for (pair, expected) in cases {
        let error = refused(&with(pair));
        assert!(error.contains(expected), "{pair}: {error}");
    }
}

#[test]
fn rules_between_keys() {
    let cases = [
        ("money = true, batch = 10", "`batch` can't be combined with `money`"),
        (r#"money = true, transaction = "shared""#, "can't be combined with `money`"),
        (r#"operation = "charge""#, "`operation` is for handlers with `money = true`"),
        (r#"conflict = "auto", money = false"#, "`conflict` is for handlers with `money = true`"),
        (r#"batch = 10, transaction = "own""#, "can't be combined with `batch`"),
        (r#"order = "key", batch = 10"#, "can't be combined with `batch`"),
        (r#"order = "key", transaction = "shared""#, "can't be combined with `transaction"),
        (r#"order = "key", retry = []"#, "can't be combined with `retry = []`"),
    ];
    for (pairs, expected) in cases {
        let error = refused(&with(pairs));
        assert!(error.contains(expected), "{pairs}: {error}");
    }
}

#[test]
fn a_group_leaves_room_for_the_names_of_its_topics() {
    let group = |length: usize, more: &str| format!("topic = \"t\", group = \"{}\"{more}", "g".repeat(length));
    assert!(read(&group(239, "")).is_ok());
    assert!(refused(&group(240, "")).contains("use at most 239 characters"));
    assert!(refused(&group(240, ", retry = [\"250ms\"]")).contains("`<group>.retry.250ms`"));
    assert!(read(&group(242, ", retry = []")).is_ok());
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let errors = read(r#"topik = "a", group = "b c", timeout = 20, batch = 1"#).unwrap_err();
    assert_eq!(errors.len(), 4, "{errors:#?}");
}

proptest! {
    /// It either gives a checked value or says why not, and never panics or hangs.
    #[test]
    fn any_tokens_are_read(tokens in prop::collection::vec(token_tree(), 0..24)) {
        let tokens: TokenStream = tokens.into_iter().collect();
        let mut diag = Diag::new();
        let raw = parse(tokens, &mut diag);
        let checked = check(&raw, &mut diag);
        prop_assert_eq!(checked.is_none(), !diag.messages().is_empty());
    }

    /// The same for pairs, which get further.
    #[test]
    fn any_pairs_are_read(pairs in prop::collection::vec((0..KEYS.len(), token_tree()), 0..8)) {
        let pairs = pairs.into_iter().flat_map(|(at, value)| {
            let key = Ident::new(KEYS[at].word, Span::call_site());
            [key.into(), Punct::new('=', Spacing::Alone).into(), value, Punct::new(',', Spacing::Alone).into()]
        });
        let mut diag = Diag::new();
        let raw = parse(pairs.collect::<Vec<TokenTree>>().into_iter().collect(), &mut diag);
        let checked = check(&raw, &mut diag);
        prop_assert_eq!(checked.is_none(), !diag.messages().is_empty());
    }
}
