use super::*;

/// What reviewers read: the generated code as rustc gets it.
fn expanded(args: &str, item: &str) -> String {
    let tokens = expand(args.parse().unwrap(), item.parse().unwrap());
    prettyplease::unparse(&syn::parse2(tokens).unwrap())
}

#[test]
fn the_smallest_handler() {
    insta::assert_snapshot!(expanded(
        r#"topic = "orders", group = "billing""#,
        "async fn on_order(tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult { Ok(()) }",
    ));
}

#[test]
fn every_key_and_parameter() {
    insta::assert_snapshot!(expanded(
        r#"topic = "orders", group = "billing", event_type = "confirmed", retry = ["250ms", "1m"],
           timeout = "5s", concurrency = 8"#,
        "/// Docs.
        #[deprecated]
        pub async fn r#match(
            tx: &mut Tx<'_>, OrderConfirmed { id, .. }: OrderConfirmed, rates: State<Rates>, from: Delivery,
        ) -> Result<(), Failed> { body(tx).await }",
    ));
}

#[test]
fn money() {
    insta::assert_snapshot!(expanded(
        r#"topic = "orders", group = "billing", money = true, operation = "charge", stale = "skip""#,
        "async fn on_order(tx: &mut Tx<'_>, event: Order, from: Delivery, payments: MoneyClient) -> HandlerResult {}",
    ));
}

#[test]
fn a_batch() {
    insta::assert_snapshot!(expanded(
        r#"topic = "orders", group = "billing", batch = 500"#,
        "async fn on_orders(tx: &mut Tx<'_>, events: Vec<Order>) -> HandlerResult { Ok(()) }",
    ));
}

#[test]
fn a_mistake_in_the_attribute_still_checks_the_types() {
    insta::assert_snapshot!(expanded(
        r#"topic = "orders", money = "true""#,
        "async fn on_order(tx: &mut Tx<'_>, event: OrderConfirmed) -> HandlerResult { Ok(()) }",
    ));
}

#[test]
fn a_mistake_in_the_signature_leaves_the_function_alone() {
    insta::assert_snapshot!(expanded(
        r#"topic = "orders", group = "billing""#,
        "fn on_order(event: &OrderConfirmed) -> HandlerResult { Ok(()) }",
    ));
}
