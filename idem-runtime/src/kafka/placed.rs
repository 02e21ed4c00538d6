//! What counts as an acknowledgement.

use rdkafka::producer::future_producer::Delivery;

/// Whether a broker has said where a record is. One of which nobody has is sent again: consumers know an event that they
/// have had.
///
/// librdkafka reports a record without a place as delivered when one that it had sent after it, to the same partition,
/// is acknowledged: a broker takes the sequence numbers of a producer without a gap. That does not hold for the first
/// records of a producer. When the partition is changing its leader, the old one refuses the first; the new one, which
/// has never heard of the producer, takes the second with whatever number it has. The first is then in no log.
pub(crate) fn is_placed(delivery: &Delivery) -> bool {
    delivery.offset >= 0
}
