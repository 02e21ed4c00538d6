//! librdkafka's properties, as variables.

use std::collections::BTreeMap;

use super::reader::Reader;

/// librdkafka properties that the library sets itself, and why.
const RESERVED: &[(&str, &str)] = &[
    ("enable.auto.commit", "offsets are committed only after the database"),
    ("enable.auto.offset.store", "offsets are committed only after the database"),
    ("auto.commit.interval.ms", "offsets are committed only after the database"),
    ("auto.offset.reset", "the library decides the position: use IDEM_AUTO_OFFSET_RESET"),
    ("group.id", "a handler names its group"),
    ("partition.assignment.strategy", "every member of a group must be cooperative-sticky"),
    ("bootstrap.servers", "use IDEM_KAFKA_BROKERS"),
    ("metadata.broker.list", "use IDEM_KAFKA_BROKERS"),
    ("client.id", "use IDEM_CLIENT_ID"),
    ("acks", "retries and dead letters must be acknowledged by all replicas"),
    ("request.required.acks", "retries and dead letters must be acknowledged by all replicas"),
    ("enable.idempotence", "the producer is always idempotent"),
    ("message.timeout.ms", "the library bounds a delivery itself"),
    ("delivery.timeout.ms", "the library bounds a delivery itself"),
    ("delivery.report.only.error", "the library waits for every acknowledgement"),
    ("max.in.flight", "the producer is always idempotent"),
    ("max.in.flight.requests.per.connection", "the producer is always idempotent"),
];

impl Reader {
    /// `IDEM_KAFKA_SECURITY_PROTOCOL` is librdkafka's `security.protocol`.
    pub(super) fn kafka_properties(&mut self) -> BTreeMap<String, String> {
        let given: Vec<(String, String, String)> = self
            .vars
            .iter()
            .filter_map(|(variable, value)| {
                let property = variable.strip_prefix("IDEM_KAFKA_").filter(|rest| *rest != "BROKERS")?;
                Some((variable.clone(), property.to_ascii_lowercase().replace('_', "."), value.clone()))
            })
            .collect();
        let mut properties = BTreeMap::new();
        for (variable, property, value) in given {
            if let Some((_, why)) = RESERVED.iter().find(|(name, _)| *name == property) {
                self.error(&variable, format!("would break a promise of the library ({why}): remove it"));
            } else if let Err(why) = rdkafka::ClientConfig::new().set(&property, &value).create_native_config() {
                // librdkafka's text may quote the value, which may be a secret.
                let why = match why {
                    rdkafka::error::KafkaError::ClientConfig(code, _, _, _) => format!("{code:?}"),
                    _ => "refused".to_owned(),
                };
                self.error(&variable, format!("librdkafka does not take `{property}` with this value ({why})"));
            } else {
                properties.insert(property, value);
            }
        }
        properties
    }
}
