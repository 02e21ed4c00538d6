//! Worlds in which one thing is wrong.

use super::outbox::repeated;
use super::*;

/// Events of a subject at consecutive offsets of one partition, each with its effects.
struct World(Evidence);

impl World {
    fn new() -> Self {
        Self(Evidence::default())
    }

    fn event(&mut self, subject: Subject, plan: Plan) -> Uuid {
        let id = Uuid::now_v7();
        let place = Place { subject, partition: 0, offset: i64::try_from(self.0.found.len()).unwrap() };
        self.0.sent.push(Sent {
            subject,
            key: 0,
            event: Some((id, plan)),
            is_far_ahead: false,
            is_behind: false,
            at_millis: 0,
            acked: Some(place),
        });
        self.0.found.push(Found { place, event: Some(id) });
        id
    }

    fn effect(&mut self, handler: &str, event: Uuid) {
        let position = i64::try_from(self.0.effects.len()).unwrap();
        let handler = handler.to_owned();
        self.0.effects.push(Effect { position, handler, event, before: None, cause: None, member: 1, at_millis: 0 });
    }

    /// An order that is done in both groups.
    fn order(&mut self) -> Uuid {
        let order = self.event(Subject::Orders, Plan::Succeed);
        self.effect("orders", order);
        self.effect("order-books", order);
        order
    }

    /// What an order published, on the wire.
    fn published(&mut self, cause: Uuid, event: Uuid, number: i64, epoch: i32) {
        let offset = i64::try_from(self.0.published.len()).unwrap();
        let place = Place { subject: Subject::Invoices, partition: 1, offset };
        self.0.published.push(Published { place, event, cause, key: 7, number, epoch });
    }

    /// An order that is done, with what it published and what came of that.
    fn invoiced(&mut self, number: i64) -> (Uuid, Uuid) {
        let (cause, event) = (self.order(), Uuid::now_v7());
        self.published(cause, event, number, 0);
        for handler in ["invoices", "invoice-books"] {
            self.effect(handler, event);
            self.0.effects.last_mut().unwrap().cause = Some(cause);
        }
        (cause, event)
    }

    fn charge(&mut self, event: Uuid) {
        self.0.charges.push(Charge { event, key: event.to_string() });
    }

    fn letter(&mut self, group: &str, event: Uuid, reason: &str) {
        let (group, reason) = (group.to_owned(), reason.to_owned());
        self.0.letters.push(Letter { group, origin: None, event: Some(event), reason, at_millis: 0 });
    }

    fn wrong(&self) -> Vec<(Wrong, Option<Uuid>)> {
        check(&self.0).into_iter().map(|finding| (finding.wrong, finding.event)).collect()
    }
}

#[test]
fn nothing_is_wrong_with_one_effect_per_handler_and_a_letter_for_what_was_refused() {
    let mut world = World::new();
    world.invoiced(1);
    let refused = world.event(Subject::Clicks, Plan::Refuse);
    world.letter("books", refused, "permanent");
    let paid = world.event(Subject::Payments, Plan::Succeed);
    world.charge(paid);
    world.effect("payments", paid);
    // Acknowledged or not: what is in no topic was not published.
    let unsent = world.event(Subject::Views, Plan::Succeed);
    world.0.found.pop();
    world.0.sent.last_mut().unwrap().acked = None;
    assert_eq!(world.wrong(), []);
    assert!(history(&world.0, unsent)[0].contains("never acknowledged"));
}

#[test]
fn an_event_without_an_effect_is_lost_and_one_that_waits_is_unfinished() {
    let mut world = World::new();
    let lost = world.invoiced(1).0;
    world.0.effects.retain(|effect| effect.handler != "order-books");
    assert_eq!(world.wrong(), [(Wrong::Lost, Some(lost))], "its other group has not seen it");
    world.0.read_below.insert(("books", Subject::Orders, 0), 0);
    assert_eq!(world.wrong(), [(Wrong::Unfinished, Some(lost))], "it has not come to it");
    world.0.read_below.insert(("books", Subject::Orders, 0), 1);
    assert_eq!(world.wrong(), [(Wrong::Lost, Some(lost))], "it has passed it");
    let (group, whereabouts) = ("books".to_owned(), "books.retry.1s".to_owned());
    world.0.waiting.push(Waiting { group, event: lost, whereabouts });
    assert_eq!(world.wrong(), [(Wrong::Unfinished, Some(lost))]);
}

#[test]
fn what_kafka_acknowledged_and_does_not_hold_is_lost() {
    let mut world = World::new();
    let gone = world.event(Subject::Views, Plan::Succeed);
    world.0.found.clear();
    assert_eq!(world.wrong(), [(Wrong::Lost, Some(gone))]);
}

#[test]
fn a_second_effect_and_one_of_a_refused_or_unknown_event_are_double_effects() {
    let mut world = World::new();
    let twice = world.event(Subject::Views, Plan::Succeed);
    world.effect("views", twice);
    world.effect("views", twice);
    assert_eq!(world.wrong(), [(Wrong::DoubleEffect, Some(twice))]);

    let mut world = World::new();
    let refused = world.event(Subject::Views, Plan::Refuse);
    world.letter("books", refused, "permanent");
    world.effect("views", refused);
    let unknown = Uuid::now_v7();
    world.effect("views", unknown);
    assert_eq!(world.wrong(), [(Wrong::DoubleEffect, Some(refused)), (Wrong::DoubleEffect, Some(unknown))]);
}

#[test]
fn an_effect_of_an_event_from_the_far_future_is_a_double_effect() {
    let mut world = World::new();
    let ahead = world.event(Subject::Views, Plan::Succeed);
    world.0.sent[0].is_far_ahead = true;
    world.letter("books", ahead, "future");
    assert_eq!(world.wrong(), []);
    world.effect("views", ahead);
    assert_eq!(world.wrong(), [(Wrong::DoubleEffect, Some(ahead))]);
}

#[test]
fn a_dead_letter_needs_a_reason_that_the_event_deserves() {
    let mut world = World::new();
    let fine = world.event(Subject::Views, Plan::Succeed);
    world.letter("books", fine, "exhausted");
    assert_eq!(world.wrong(), [(Wrong::DeadForNothing, Some(fine))]);
    world.effect("views", fine);
    assert_eq!(world.wrong(), [(Wrong::DeadForNothing, Some(fine))], "an effect is no excuse");
    world.0.rewinds.push(0);
    assert_eq!(world.wrong(), [(Wrong::DeadForNothing, Some(fine))], "nor is a database that went back");

    let mut world = World::new();
    let old = world.event(Subject::Views, Plan::Succeed);
    world.letter("books", old, "expired");
    assert_eq!(world.wrong(), [(Wrong::DeadForNothing, Some(old))]);
    world.0.sent[0].is_behind = true;
    assert_eq!(world.wrong(), []);
    world.effect("views", old);
    assert_eq!(world.wrong(), [], "a copy of it came when it was forgotten");
    world.0.effects[0].at_millis = 5_000;
    assert_eq!(world.wrong(), [(Wrong::DeadForNothing, Some(old))], "it was done after it was called forgotten");
    world.0.rewinds.push(3_000);
    assert_eq!(world.wrong(), [], "what it was called is lost with the database");
}

#[test]
fn a_payment_is_given_up_only_when_its_key_may_be_forgotten() {
    let mut world = World::new();
    world.0.key_ttl_millis = 10_000;
    let payment = world.event(Subject::Payments, Plan::Succeed);
    world.letter("billing", payment, "key-expired");
    assert_eq!(world.wrong(), [(Wrong::DeadForNothing, Some(payment))]);
    world.0.letters[0].at_millis = 10_000;
    assert_eq!(world.wrong(), []);
}

#[test]
fn a_second_charge_and_an_effect_without_one_are_found() {
    let mut world = World::new();
    let twice = world.event(Subject::Payments, Plan::Succeed);
    world.effect("payments", twice);
    world.charge(twice);
    world.charge(twice);
    let free = world.event(Subject::Payments, Plan::Succeed);
    world.effect("payments", free);
    assert_eq!(world.wrong(), [(Wrong::DoubleCharge, Some(twice)), (Wrong::Lost, Some(free))]);
}

#[test]
fn each_effect_of_a_key_has_found_the_one_of_the_record_before() {
    let mut world = World::new();
    let ids: Vec<Uuid> = (0..3).map(|_| world.event(Subject::Accounts, Plan::Succeed)).collect();
    // A copy changes nothing: the first record counts.
    let place = Place { subject: Subject::Accounts, partition: 0, offset: 3 };
    world.0.found.push(Found { place, event: Some(ids[0]) });
    for (at, &id) in ids.iter().enumerate() {
        world.effect("accounts", id);
        world.0.effects[at].before = at.checked_sub(1).map(|before| ids[before]);
    }
    assert_eq!(world.wrong(), []);
    // The second one overtook the first: whatever numbers their rows have.
    world.0.effects[0].before = Some(ids[1]);
    world.0.effects[1].before = None;
    world.0.effects[2].before = Some(ids[0]);
    assert_eq!(world.wrong(), ids.iter().map(|id| (Wrong::OutOfOrder, Some(*id))).collect::<Vec<_>>());
}

#[test]
fn what_is_published_is_on_the_wire_and_takes_effect_once_in_each_group() {
    let mut world = World::new();
    let (cause, event) = world.invoiced(1);
    assert_eq!(world.wrong(), []);
    world.published(cause, event, 1, 0);
    assert_eq!((world.wrong(), repeated(&world.0.published)), (vec![], 1), "sent twice, it is the same event");

    world.0.effects.retain(|effect| effect.handler != "invoices");
    assert_eq!(world.wrong(), [(Wrong::Lost, Some(cause))]);
    world.0.published.clear();
    world.0.effects.retain(|effect| effect.cause.is_none());
    assert_eq!(world.wrong(), [(Wrong::Lost, Some(cause))], "it was never sent");
    world.0.unsent.insert(cause);
    assert_eq!(world.wrong(), [(Wrong::Unfinished, Some(cause))]);

    let mut world = World::new();
    let (cause, event) = world.invoiced(1);
    world.effect("invoices", event);
    world.0.effects.last_mut().unwrap().cause = Some(cause);
    assert_eq!(world.wrong(), [(Wrong::DoubleEffect, Some(cause))]);

    let mut world = World::new();
    let (cause, _) = world.invoiced(1);
    let other = Uuid::now_v7();
    world.published(cause, other, 2, 0);
    world.effect("invoices", other);
    world.effect("invoice-books", other);
    assert_eq!(world.wrong(), [(Wrong::DoubleEffect, Some(cause))], "a second event for one effect");
}

#[test]
fn what_was_acknowledged_to_a_relay_is_in_the_topic_where_it_was_said_to_be() {
    let mut world = World::new();
    let (_, event) = world.invoiced(1);
    let (_, other) = world.invoiced(2);
    let place = |world: &World, at: usize| world.0.published[at].place;
    world.0.acknowledged = vec![(event, place(&world, 0)), (other, place(&world, 1))];
    assert_eq!(world.wrong(), []);
    world.0.acknowledged = vec![(event, place(&world, 1))];
    assert_eq!(world.wrong(), [(Wrong::Lost, Some(event))], "another one is there");
    world.0.acknowledged = vec![(event, Place { offset: 99, ..place(&world, 0) })];
    assert_eq!(world.wrong(), [(Wrong::Lost, Some(event))], "nothing is there");
}

#[test]
fn what_nobody_published_is_found_where_it_takes_effect() {
    let mut world = World::new();
    let (cause, _) = world.invoiced(1);
    world.0.effects.retain(|effect| effect.handler != "orders");
    let wrong = world.wrong();
    assert_eq!(wrong.iter().filter(|found| **found == (Wrong::DoubleEffect, Some(cause))).count(), 2, "{wrong:?}");
}

#[test]
fn numbers_of_a_key_rise_on_the_wire_where_they_are_new() {
    let mut world = World::new();
    let (first, of_first) = world.invoiced(1);
    let (second, of_second) = world.invoiced(2);
    world.published(first, of_first, 1, 0);
    world.published(second, of_second, 1, 1);
    assert_eq!(world.wrong(), [], "again, and by a database that went back");
    let (late, _) = world.invoiced(1);
    assert_eq!(world.wrong(), [(Wrong::OutOfOrder, Some(late))]);
}

#[test]
fn a_record_that_is_nobodys_event_needs_a_letter_of_each_group() {
    let mut world = World::new();
    let place = Place { subject: Subject::Orders, partition: 2, offset: 5 };
    world.0.found.push(Found { place, event: None });
    let letter = |group: &str| Letter {
        group: group.to_owned(),
        origin: Some(place),
        event: None,
        reason: "null".to_owned(),
        at_millis: 0,
    };
    world.0.letters.push(letter("billing"));
    assert_eq!(world.wrong(), [(Wrong::Lost, None)]);
    world.0.letters.push(letter("books"));
    assert_eq!(world.wrong(), []);
}

#[test]
fn a_history_names_everything_that_is_known_of_an_event() {
    let mut world = World::new();
    let id = world.event(Subject::Payments, Plan::Fail(1));
    world.effect("payments", id);
    world.charge(id);
    world.letter("billing", id, "exhausted");
    let history = history(&world.0, id).join("\n");
    for part in ["Fail(1)", "campaign.payments/0@0", "effect 0 of payments", "charged with key", "exhausted"] {
        assert!(history.contains(part), "{part} in {history}");
    }
}
