//! What is published: good events, some of them twice, and everything that a topic should not hold.

use idem_runtime::prelude::EventId;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use uuid::Uuid;

use crate::error::QuickstartError;
use crate::handlers::{GROUPS, OrderConfirmed, TOPIC};
use crate::servers::Servers;

const UNIQUE: usize = 2_000;
const SENT_TWICE: usize = 400;
const FAIL_TWICE_FIRST: usize = 30;
const UNPARSABLE: usize = 20;
const NULL: usize = 5;

/// The header that tells this run's records from those of others on the same broker.
pub const RUN_HEADER: &str = "quickstart-run";

/// The records of one run, in the order in which they are sent.
pub struct Load {
    /// A name for this run.
    pub run: String,
    /// The ids of its unique events, ascending.
    pub events: Vec<Uuid>,
    /// How many of its records no handler can take.
    pub bad: u64,
    records: Vec<Planned>,
}

struct Planned {
    key: String,
    value: Option<Vec<u8>>,
}

impl Load {
    /// Makes events, copies and bad records, and shuffles them.
    pub fn plan() -> Self {
        let orders: Vec<OrderConfirmed> = (0..UNIQUE)
            .map(|index| OrderConfirmed {
                event_id: EventId::now(),
                order_id: 10_000 + fastrand::i64(0..100_000),
                total_amount: fastrand::i64(100..100_000),
                failures: if index < FAIL_TWICE_FIRST { 2 } else { 0 },
            })
            .collect();
        // The copies are of events that succeed at once, so that the two kinds can be told apart.
        let copies = &orders[FAIL_TWICE_FIRST..FAIL_TWICE_FIRST + SENT_TWICE];
        let good = orders
            .iter()
            .chain(copies)
            .map(|order| Planned { key: order.order_id.to_string(), value: serde_json::to_vec(order).ok() });
        let bad = (0..UNPARSABLE).map(|index| Some(unparsable(index))).chain((0..NULL).map(|_| None));
        let bad = bad.map(|value| Planned { key: fastrand::u16(..).to_string(), value });
        let mut records: Vec<Planned> = good.chain(bad).collect();
        fastrand::shuffle(&mut records);
        Self {
            run: EventId::now().to_string(),
            events: orders.iter().map(|order| order.event_id.uuid()).collect(),
            bad: (UNPARSABLE + NULL) as u64,
            records,
        }
    }

    /// How many effects there are when everything is done: one for each event in each group.
    pub fn effects(&self) -> u64 {
        (self.events.len() * GROUPS.len()) as u64
    }

    /// Sends all records and returns how many the broker has acknowledged.
    pub async fn publish(&self, servers: &Servers) -> Result<u64, QuickstartError> {
        let failed = || QuickstartError::kafka(format!("take records for {TOPIC}"));
        let producer: FutureProducer = servers.client().set("enable.idempotence", "true").create().map_err(failed())?;
        let mut sent = Vec::new();
        for Planned { key, value } in &self.records {
            let headers = OwnedHeaders::new().insert(Header { key: RUN_HEADER, value: Some(&self.run) });
            let mut record = FutureRecord::to(TOPIC).key(key).headers(headers);
            record.payload = value.as_ref();
            sent.push(producer.send_result(record).map_err(|(error, _)| failed()(error))?);
        }
        let mut acknowledged = 0;
        for record in sent {
            // A record's answer is lost only if the producer is, which outlives this loop.
            if let Ok(answer) = record.await {
                answer.map_err(|(error, _)| failed()(error))?;
                acknowledged += 1;
            }
        }
        Ok(acknowledged)
    }
}

/// The values that producers send by mistake.
fn unparsable(index: usize) -> Vec<u8> {
    match index % 4 {
        0 => br#"{"event_id":"0198c5f4-7a00-7000-8000-000000000001","order_id":1"#.to_vec(),
        1 => b"order confirmed".to_vec(),
        2 => vec![0x00, 0x00, 0x00, 0x01, 0xff, 0xfe],
        _ => b"<order id=\"1\"/>".to_vec(),
    }
}
