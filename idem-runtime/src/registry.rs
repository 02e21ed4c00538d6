//! All linked handlers, and whether they go together.

use std::collections::BTreeMap;

use crate::handler::{Handler, Registration, States};
use crate::spec::Transaction;

/// Every handler that the program links, in the order of their names. The inventory's own order is
/// the linker's.
pub(crate) fn handlers() -> Vec<Handler> {
    let mut handlers: Vec<Handler> =
        inventory::iter::<Registration>.into_iter().map(|registered| (registered.build)()).collect();
    handlers.sort_by_key(|handler| (handler.spec.name, handler.spec.file, handler.spec.line));
    handlers
}

/// Everything that only linking can know to be wrong, each as one sentence.
pub(crate) fn problems(handlers: &[Handler], states: &States) -> Vec<String> {
    let mut problems = Vec::new();
    if handlers.is_empty() {
        problems.push(
            "no handler is registered: annotate a function with #[idempotent_handler(topic = \"..\", group = \"..\")]; \
             a crate of handlers that nothing names is not linked: add `use that_crate as _;`"
                .to_owned(),
        );
    }
    let mut by_topic: BTreeMap<(&str, &str), Vec<&Handler>> = BTreeMap::new();
    let mut by_group: BTreeMap<&str, Vec<&Handler>> = BTreeMap::new();
    for handler in handlers {
        by_topic.entry((handler.spec.topic, handler.spec.group)).or_default().push(handler);
        by_group.entry(handler.spec.group).or_default().push(handler);
    }
    for ((topic, group), sharing) in &by_topic {
        problems.extend(shared_topic(topic, group, sharing));
    }
    for (group, members) in &by_group {
        for other in &members[1..] {
            if other.spec.order != members[0].spec.order {
                problems.push(format!(
                    "handlers of group `{group}` disagree in `order`: {} and {}",
                    place(members[0]),
                    place(other)
                ));
            }
        }
        // Those that share transactions have none.
        let own: Vec<&&Handler> =
            members.iter().filter(|handler| handler.spec.transaction == Transaction::Own).collect();
        for other in own.iter().skip(1) {
            if other.spec.concurrency != own[0].spec.concurrency {
                problems.push(format!(
                    "handlers of group `{group}` disagree in `concurrency`: {} says {}, {} says {}",
                    place(own[0]),
                    own[0].spec.concurrency,
                    place(other),
                    other.spec.concurrency
                ));
            }
        }
    }
    let groups: Vec<&&str> = by_group.keys().collect();
    for (at, group) in groups.iter().enumerate() {
        for other in &groups[at + 1..] {
            if group.replace('_', ".") == other.replace('_', ".") {
                problems.push(format!(
                    "groups `{group}` and `{other}` differ only in `.` and `_`: the names of their topics would collide in Kafka"
                ));
            }
        }
    }
    problems.extend(same_names(handlers));
    problems.extend(same_money_keys(handlers));
    for handler in handlers {
        for need in handler.needs.iter().filter(|need| !states.contains(need.id)) {
            problems.push(format!(
                "{} needs a State<{}>, and none was given: add `.state(..)` to the builder",
                place(handler),
                need.type_name
            ));
        }
    }
    problems
}

fn shared_topic(topic: &str, group: &str, sharing: &[&Handler]) -> Vec<String> {
    let mut problems = Vec::new();
    let shares = sharing.iter().find(|handler| handler.spec.transaction == Transaction::Shared);
    let side_by_side = sharing.iter().find(|handler| handler.spec.concurrency > 1);
    if let (Some(shares), Some(side_by_side)) = (shares, side_by_side) {
        problems.push(format!(
            "on topic `{topic}` in group `{group}`, {} shares its transactions and {} has a `concurrency`: events that \
             share a transaction are handled in the order of their partition, one at a time: remove the `concurrency`",
            place(shares),
            place(side_by_side)
        ));
    }
    let untyped = sharing.iter().find(|handler| handler.spec.event_type.is_none());
    let typed = sharing.iter().find(|handler| handler.spec.event_type.is_some());
    if let (Some(untyped), Some(typed)) = (untyped, typed) {
        problems.push(format!(
            "on topic `{topic}` in group `{group}`, {} takes every event and {} takes one event_type: give both an `event_type`",
            place(untyped), place(typed)
        ));
    }
    for (at, handler) in sharing.iter().enumerate() {
        for other in &sharing[at + 1..] {
            if handler.spec.event_type == other.spec.event_type {
                let what = handler.spec.event_type.map(|of| format!(" for event_type `{of}`")).unwrap_or_default();
                problems.push(format!(
                    "topic `{topic}` in group `{group}` has two handlers{what}: {} and {}",
                    place(handler),
                    place(other)
                ));
            }
        }
    }
    problems
}

/// Two groups whose money calls on a topic have one name: each would charge for the same event. The
/// database knows the groups of other processes.
fn same_money_keys(handlers: &[Handler]) -> Vec<String> {
    let mut by_name: BTreeMap<(&str, &str), &Handler> = BTreeMap::new();
    let mut problems = Vec::new();
    for handler in handlers {
        let Some(money) = handler.spec.money else { continue };
        let (topic, operation) = (handler.spec.topic, money.operation.unwrap_or_default());
        let first = *by_name.entry((topic, operation)).or_insert(handler);
        if first.spec.group != handler.spec.group {
            let name = money_name(operation);
            problems.push(format!(
                "{} of group `{}` and {} of group `{}` both make money calls on topic `{topic}` {name}: \
                 give one of them another `operation = \"..\"`",
                place(first),
                first.spec.group,
                place(handler),
                handler.spec.group
            ));
        }
    }
    problems
}

/// How a name of money calls is told.
pub(crate) fn money_name(operation: &str) -> String {
    if operation.is_empty() {
        "without an `operation`".to_owned()
    } else {
        format!("with `operation = \"{operation}\"`")
    }
}

/// Metrics and headers know a handler by its name. Two functions of one module may each hold one of
/// the same name, which a path doesn't tell apart.
fn same_names(handlers: &[Handler]) -> Vec<String> {
    let mut by_name: BTreeMap<&str, &Handler> = BTreeMap::new();
    let mut problems = Vec::new();
    for handler in handlers {
        match by_name.get(handler.spec.name) {
            None => drop(by_name.insert(handler.spec.name, handler)),
            Some(first) => {
                problems.push(format!(
                    "two handlers have one name: {} and {}: rename one",
                    place(first),
                    place(handler)
                ));
            }
        }
    }
    problems
}

fn place(handler: &Handler) -> String {
    format!("{} ({}:{})", handler.spec.name, handler.spec.file, handler.spec.line)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::any::TypeId;
    use std::time::Duration;

    use super::*;
    use crate::event::{DecodeError, Event, EventId};
    use crate::handler::StateNeed;
    use crate::spec::{Conflict, Expired, HandlerSpec, Money, Order};

    /// An event that is never decoded.
    enum Never {}

    impl Event for Never {
        type Versions = crate::__private::Unversioned;

        fn event_id(&self) -> EventId {
            match *self {}
        }

        fn decode(_: &[u8]) -> Result<Self, DecodeError> {
            Err(DecodeError::Unparsable { class: "test", line: 0, column: 0 })
        }
    }

    pub(crate) fn handler(
        name: &'static str,
        topic: &'static str,
        group: &'static str,
        event_type: Option<&'static str>,
    ) -> Handler {
        Handler {
            spec: HandlerSpec {
                name,
                topic,
                group,
                event_type,
                file: "src/main.rs",
                line: 7,
                retry: None,
                timeout: Duration::from_secs(20),
                concurrency: 1,
                money: None,
                transaction: Transaction::Own,
                batch: None,
                order: Order::Partition,
                expired: Expired::Dlq,
                stale: false,
                summary: None,
            },
            decode: crate::__private::event::<Never>().decode(),
            call: std::sync::Arc::new(|_, _, _| Box::pin(async { Ok(()) })),
            needs: Vec::new(),
        }
    }

    #[test]
    fn handlers_that_go_together_are_no_problem() {
        let handlers = [
            handler("a", "orders", "billing", Some("created")),
            handler("b", "orders", "billing", Some("cancelled")),
            handler("c", "orders", "shipping", None),
            handler("d", "payments", "billing", None),
        ];
        assert_eq!(problems(&handlers, &States::default()), [""; 0]);
    }

    #[test]
    fn every_clash_is_named_with_both_places() {
        let mut slow = handler("slow", "other", "billing", None);
        slow.spec.concurrency = 4;
        slow.spec.order = Order::Key;
        slow.needs = vec![StateNeed { id: TypeId::of::<u8>(), type_name: "u8" }];
        let handlers = [
            handler("first", "orders", "billing", None),
            handler("second", "orders", "billing", None),
            handler("typed", "orders", "billing", Some("created")),
            slow,
            handler("dotted", "orders", "a.b", None),
            handler("underscored", "orders", "a_b", None),
        ];
        let problems = problems(&handlers, &States::default());
        let found = |parts: &[&str]| problems.iter().any(|problem| parts.iter().all(|part| problem.contains(part)));
        assert!(found(&["two handlers", "first (src/main.rs:7)", "second (src/main.rs:7)"]), "{problems:#?}");
        assert!(found(&["takes every event", "typed"]), "{problems:#?}");
        assert!(found(&["disagree in `concurrency`", "slow"]), "{problems:#?}");
        assert!(found(&["disagree in `order`", "first (src/main.rs:7)", "slow"]), "{problems:#?}");
        assert!(found(&["`a.b` and `a_b`"]), "{problems:#?}");
        assert!(found(&["slow", "State<u8>"]), "{problems:#?}");
        assert_eq!(problems.len(), 6, "{problems:#?}");
    }

    #[test]
    fn a_concurrency_beside_a_shared_transaction_is_named_where_it_would_be_ignored() {
        let mut shared = handler("shared", "orders", "billing", Some("created"));
        shared.spec.transaction = Transaction::Shared;
        let mut busy = handler("busy", "payments", "billing", Some("paid"));
        busy.spec.concurrency = 8;
        assert_eq!(problems(&[shared.clone(), busy.clone()], &States::default()), [""; 0], "on another topic");
        busy.spec.topic = "orders";
        let problems = problems(&[shared, busy], &States::default());
        assert_eq!(problems.len(), 1, "{problems:#?}");
        assert!(problems[0].contains("busy (src/main.rs:7) has a `concurrency`"), "{problems:#?}");
    }

    #[test]
    fn the_same_event_type_twice_names_both_places() {
        let mut second = handler("second", "orders", "billing", Some("paid"));
        second.spec.line = 40;
        let handlers = [handler("first", "orders", "billing", Some("paid")), second];
        assert_eq!(
            problems(&handlers, &States::default()),
            ["topic `orders` in group `billing` has two handlers for event_type `paid`: \
              first (src/main.rs:7) and second (src/main.rs:40)"]
        );
    }

    #[test]
    fn money_handlers_of_two_groups_on_one_topic_differ_in_their_operation() {
        let with = |operations: [Option<&'static str>; 2], groups: [&'static str; 2]| {
            let mut handlers =
                [handler("a", "orders", groups[0], Some("x")), handler("b", "orders", groups[1], Some("y"))];
            for (handler, operation) in handlers.iter_mut().zip(operations) {
                handler.spec.money = Some(Money { operation, conflict: Conflict::Auto });
            }
            problems(&handlers, &States::default())
        };
        let unnamed = with([None, None], ["billing", "fees"]);
        assert_eq!(unnamed.len(), 1, "{unnamed:#?}");
        for part in ["`billing`", "`fees`", "`orders`", "without an `operation`", "operation = \"..\""] {
            assert!(unnamed[0].contains(part), "{unnamed:#?}");
        }
        assert_eq!(with([Some("fee"), Some("fee")], ["billing", "fees"]).len(), 1);
        assert_eq!(with([Some("charge"), Some("fee")], ["billing", "fees"]), [""; 0]);
        assert_eq!(with([None, Some("fee")], ["billing", "fees"]), [""; 0]);
        assert_eq!(with([None, None], ["billing", "billing"]), [""; 0]);
    }

    #[test]
    fn two_handlers_of_one_name_are_told_apart_by_their_lines() {
        let mut second = handler("shop::inner", "orders", "shipping", None);
        second.spec.line = 40;
        let handlers = [handler("shop::inner", "orders", "billing", None), second];
        assert_eq!(
            problems(&handlers, &States::default()),
            ["two handlers have one name: shop::inner (src/main.rs:7) and shop::inner (src/main.rs:40): rename one"]
        );
    }

    #[test]
    fn no_handler_at_all_is_a_problem() {
        assert!(problems(&[], &States::default())[0].contains("no handler is registered"));
    }
}
