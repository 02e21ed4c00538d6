//! Real servers for tests and demonstrations: a PostgreSQL with a data directory of its own,
//! librdkafka's mock cluster in place of a broker, and a payment provider that misbehaves on demand.
//!
//! Behind the cargo feature `testing`. Nothing has to be set up beforehand, root is not needed, and
//! root works: the PostgreSQL server then runs as an unprivileged user. Servers listen on the
//! loopback interface only, and end with the process that started them, even if it is killed.
//!
//! ```no_run
//! # async fn example() -> Result<(), idem_runtime::testing::TestingError> {
//! use idem_runtime::testing::{MockBroker, Postgres};
//!
//! let postgres = Postgres::start().await?;
//! let database_url = postgres.create_database("billing").await?;
//! let broker = MockBroker::start()?;
//! broker.create_topic("orders", 4)?;
//! println!("IDEM_DATABASE_URL={database_url} IDEM_KAFKA_BROKERS={}", broker.bootstrap_servers());
//! # Ok(())
//! # }
//! ```

mod binaries;
mod broker;
mod copy;
mod error;
mod fill;
#[doc(hidden)]
pub mod headers;
mod ports;
mod postgres;
mod provider;
mod supervise;
mod user;

pub use broker::MockBroker;
pub use error::TestingError;
pub use fill::fill_day;
pub use ports::free_port;
pub use postgres::Postgres;
pub use provider::{Provider, ProviderCharge, ProviderFault, ProviderRequest};
pub use supervise::{AfterOwner, Signal, Supervised};
