//! librdkafka's properties, as variables.

use std::collections::BTreeMap;

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use super::reader::{Reader, is_of_kubernetes, nearest};

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
    ("partitioner", "a key's partition must be the one that the Java client chooses"),
    ("max.in.flight", "the producer is always idempotent"),
    ("max.in.flight.requests.per.connection", "the producer is always idempotent"),
];

/// What is set most often, to guess what was meant.
const COMMON: [&str; 13] = [
    "IDEM_KAFKA_BROKERS",
    "IDEM_KAFKA_GROUP_INSTANCE_ID",
    "IDEM_KAFKA_GROUP_PROTOCOL",
    "IDEM_KAFKA_MAX_POLL_INTERVAL_MS",
    "IDEM_KAFKA_SASL_MECHANISMS",
    "IDEM_KAFKA_SASL_PASSWORD",
    "IDEM_KAFKA_SASL_USERNAME",
    "IDEM_KAFKA_SECURITY_PROTOCOL",
    "IDEM_KAFKA_SESSION_TIMEOUT_MS",
    "IDEM_KAFKA_SSL_CA_LOCATION",
    "IDEM_KAFKA_SSL_CERTIFICATE_LOCATION",
    "IDEM_KAFKA_SSL_KEY_LOCATION",
    "IDEM_KAFKA_SSL_KEY_PASSWORD",
];

impl Reader {
    /// `IDEM_KAFKA_SECURITY_PROTOCOL` is librdkafka's `security.protocol`.
    pub(super) fn kafka_properties(&mut self) -> BTreeMap<String, String> {
        let given: Vec<(String, String, String)> = self
            .vars
            .iter()
            .filter_map(|(variable, value)| {
                let property = variable.strip_prefix("IDEM_KAFKA_").filter(|rest| *rest != "BROKERS")?;
                if is_of_kubernetes(variable, &value.text) {
                    return None;
                }
                Some((variable.clone(), property.to_ascii_lowercase().replace('_', "."), value.text.clone()))
            })
            .collect();
        let mut properties = BTreeMap::new();
        for (variable, property, value) in given {
            if let Some((_, why)) = RESERVED.iter().find(|(name, _)| *name == property) {
                self.error(&variable, format!("would break a promise of the library ({why}): remove it"));
            } else if let Err(why) = rdkafka::ClientConfig::new().set(&property, &value).create_native_config() {
                // librdkafka's text may quote the value, which may be a secret.
                let why = match why {
                    KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..) => {
                        let hint = nearest(&variable, COMMON).map(|meant| format!(": did you mean {meant}?"));
                        format!("librdkafka has no property `{property}`{}", hint.unwrap_or_default())
                    }
                    _ => format!("librdkafka does not take this value for `{property}`"),
                };
                self.error(&variable, why);
            } else {
                properties.insert(property, value);
            }
        }
        properties
    }
}
