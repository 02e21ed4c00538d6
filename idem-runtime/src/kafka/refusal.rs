//! What a broker said, with what to do where it refused for want of a right.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// The error's text. Where the broker refused for want of a right, it says which one to grant.
pub(crate) fn told(error: &KafkaError) -> String {
    let cure = match error {
        KafkaError::AdminOp(code) => cure(*code),
        error => error.rdkafka_error_code().and_then(cure),
    };
    match cure {
        Some(cure) => format!("{error}: {cure}"),
        None => error.to_string(),
    }
}

/// The table of the rights is in `failures.md`.
fn cure(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::TopicAuthorizationFailed => {
            "grant this client's user Read and Describe on topics that it reads, Write and Describe on those that it writes"
        }
        Code::GroupAuthorizationFailed => "grant this client's user Read and Describe on the consumer group",
        Code::ClusterAuthorizationFailed => "grant this client's user IdempotentWrite on the cluster",
        Code::SaslAuthenticationFailed | Code::Authentication => {
            "look at IDEM_KAFKA_SASL_MECHANISMS, IDEM_KAFKA_SASL_USERNAME and IDEM_KAFKA_SASL_PASSWORD"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_that_is_missing_is_named_and_an_outage_is_only_told() {
        for (code, right) in [
            (Code::TopicAuthorizationFailed, "Write and Describe"),
            (Code::GroupAuthorizationFailed, "consumer group"),
            (Code::ClusterAuthorizationFailed, "IdempotentWrite"),
            (Code::SaslAuthenticationFailed, "IDEM_KAFKA_SASL_PASSWORD"),
        ] {
            for error in [KafkaError::MessageProduction(code), KafkaError::AdminOp(code), KafkaError::Global(code)] {
                assert!(told(&error).contains(right), "{}", told(&error));
            }
        }
        let outage = KafkaError::Global(Code::AllBrokersDown);
        assert_eq!(told(&outage), outage.to_string());
    }
}
