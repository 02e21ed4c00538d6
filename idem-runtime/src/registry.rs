//! All linked handlers, and whether they go together.

use std::collections::BTreeMap;

use crate::handler::{Handler, Registration, States};

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
            if other.spec.concurrency != members[0].spec.concurrency {
                problems.push(format!(
                    "handlers of group `{group}` disagree in `concurrency`: {} says {}, {} says {}",
                    place(members[0]),
                    members[0].spec.concurrency,
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

fn place(handler: &Handler) -> String {
    format!("{} ({}:{})", handler.spec.name, handler.spec.file, handler.spec.line)
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;
    use std::time::Duration;

    use super::*;
    use crate::event::DecodeError;
    use crate::handler::{HandlerSpec, StateNeed};

    fn handler(
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
            },
            decode: |_| Err(DecodeError::Unparsable { class: "test", line: 0, column: 0 }),
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
        assert!(found(&["`a.b` and `a_b`"]), "{problems:#?}");
        assert!(found(&["slow", "State<u8>"]), "{problems:#?}");
        assert_eq!(problems.len(), 5, "{problems:#?}");
    }

    #[test]
    fn no_handler_at_all_is_a_problem() {
        assert!(problems(&[], &States::default())[0].contains("no handler is registered"));
    }
}
