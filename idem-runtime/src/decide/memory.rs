//! Whether a lane's queue takes one more record.

/// What every lane may hold, however much the others do.
const RESERVED: usize = 64 * 1024;
/// The part of the common memory that one lane may hold, so that a lane that waits leaves room.
const LARGEST_PART: usize = 4;

/// Whether a lane that holds `lane` bytes takes `record` bytes more, when all lanes together hold `all`
/// of `limit`. An empty lane takes anything: a record may be larger than the memory.
pub(crate) fn has_room(lane: usize, all: usize, record: usize, limit: usize) -> bool {
    lane == 0 || lane + record <= RESERVED || (all + record <= limit && lane + record <= limit / LARGEST_PART)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_lane_takes_its_part_of_what_is_left() {
        const MIB: usize = 1024 * 1024;
        let cases = [
            (0, 0, 100 * MIB, true, "an empty lane takes anything"),
            (0, 32 * MIB, 1024, true, "also when nothing is left"),
            (60 * 1024, 32 * MIB, 4 * 1024, true, "what is reserved for it"),
            (60 * 1024, 32 * MIB, 5 * 1024, false, "and no more of a full memory"),
            (7 * MIB, 7 * MIB, MIB, true, "a quarter of the memory"),
            (8 * MIB, 8 * MIB, 1, false, "and no more, also when there is room"),
            (MIB, 32 * MIB - 10, 11, false, "nothing beyond the memory"),
        ];
        for (lane, all, record, expected, what) in cases {
            assert_eq!(has_room(lane, all, record, 32 * MIB), expected, "{what}");
        }
    }

    proptest! {
        #[test]
        fn lanes_together_stay_within_the_memory_and_what_is_reserved(
            limit in 100_000_usize..10_000_000,
            records in prop::collection::vec((0_usize..8, 1_usize..60_000), 1..400),
        ) {
            let mut lanes = [0; 8];
            for (lane, record) in records {
                let all: usize = lanes.iter().sum();
                if has_room(lanes[lane], all, record, limit) {
                    lanes[lane] += record;
                }
                prop_assert!(lanes.iter().sum::<usize>() <= limit + lanes.len() * RESERVED);
                prop_assert!(lanes.iter().all(|lane| *lane <= (limit / LARGEST_PART).max(RESERVED)));
            }
        }
    }
}
