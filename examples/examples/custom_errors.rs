//! An error type of one's own says which path its failures take.
//!
//! ```sh
//! cargo run --example custom_errors
//! ```

use std::sync::atomic::{AtomicBool, Ordering};

use examples::{Error, Playground};
use idem_runtime::prelude::*;
use serde_json::json;

#[derive(Debug, thiserror::Error)]
enum BookingError {
    #[error("the room is locked by another booking")]
    RoomLocked,
    #[error("there is no such room")]
    NoSuchRoom,
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
}

impl Classified for BookingError {
    fn class(&self) -> Class {
        match self {
            // Later it may work: to a retry topic.
            Self::RoomLocked => Class::Transient,
            // It never will: to the dead letter queue.
            Self::NoSuchRoom => Class::Permanent,
            // The SQLSTATE says whether the event or the server is the reason.
            Self::Database(error) => error.class(),
        }
    }
}

#[derive(serde::Deserialize, Event)]
struct RoomBooked {
    event_id: EventId,
    room: i64,
}

#[idempotent_handler(topic = "room.booked", group = "rooms")]
async fn on_booked(tx: &mut Tx<'_>, booked: RoomBooked) -> Result<(), BookingError> {
    static WAS_LOCKED: AtomicBool = AtomicBool::new(false);
    if booked.room == 1 && !WAS_LOCKED.swap(true, Ordering::SeqCst) {
        return Err(BookingError::RoomLocked);
    }
    let found = sqlx::query("UPDATE room SET bookings = bookings + 1 WHERE id = $1")
        .bind(booked.room)
        .execute(&mut **tx)
        .await?;
    if found.rows_affected() == 0 { Err(BookingError::NoSuchRoom) } else { Ok(()) }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt().with_env_filter("idem_runtime::pipeline=warn").with_writer(std::io::stderr).init();
    let tables = "CREATE TABLE room (id bigint PRIMARY KEY, bookings bigint); INSERT INTO room VALUES (1, 0), (2, 0)";
    let playground = Playground::start(tables).await?;
    playground.topic("room.booked", "rooms")?;
    for room in [1, 2, 3] {
        let event = json!({"event_id": EventId::now(), "room": room});
        playground.publish("room.booked", &room.to_string(), &event).await?;
    }
    let booked = "SELECT count(*) FROM room WHERE bookings = 1";
    playground.run_until(idem_runtime::builder(), booked, 2).await?;
    playground.print("SELECT format('room %s: %s bookings', id, bookings) FROM room ORDER BY id").await
}
