//! The brake of a lane: when everything goes to the dead letter queue for one reason, a person must
//! look before more does.

use super::outcome::Reason;

/// Counts dead letters of one reason in a row.
#[derive(Debug)]
pub(crate) struct Brake {
    /// `None`: switched off.
    limit: Option<u32>,
    last: Option<Reason>,
    count: u32,
}

impl Brake {
    pub(crate) fn new(limit: Option<u32>) -> Self {
        Self { limit, last: None, count: 0 }
    }

    /// Notes how an event ended. `Some`: the lane stops for this reason; the count starts anew.
    #[must_use]
    pub(crate) fn note(&mut self, letter: Option<Reason>) -> Option<Reason> {
        self.count = if letter.is_none() {
            0
        } else if self.last == letter {
            self.count + 1
        } else {
            1
        };
        self.last = letter;
        let engaged = letter.filter(|_| self.limit.is_some_and(|limit| self.count >= limit));
        if engaged.is_some() {
            *self = Self::new(self.limit);
        }
        engaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_reason_in_a_row_engages_it() {
        let mut brake = Brake::new(Some(3));
        let letters = [
            (Some(Reason::Unparsable), None),
            (Some(Reason::Unparsable), None),
            (None, None),
            (Some(Reason::Unparsable), None),
            (Some(Reason::Null), None),
            (Some(Reason::Null), None),
            (Some(Reason::Null), Some(Reason::Null)),
            (Some(Reason::Null), None),
        ];
        for (letter, engaged) in letters {
            assert_eq!(brake.note(letter), engaged);
        }
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut brake = Brake::new(None);
        assert!((0..1_000).all(|_| brake.note(Some(Reason::Null)).is_none()));
    }
}
