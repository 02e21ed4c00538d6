//! The service, as a user of the library writes it: the order and the event that tells of it are one transaction.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use idem_runtime::{Config, outbox};
use sqlx::PgPool;
use tokio::net::TcpListener;

use crate::Error;
use crate::handlers::OrderConfirmed;

pub async fn run() -> Result<(), Error> {
    tracing_subscriber::fmt().with_env_filter("error").with_writer(std::io::stderr).init();
    let pool = PgPool::connect(&std::env::var("IDEM_DATABASE_URL")?).await?;
    let listener = TcpListener::bind(std::env::var("SERVICE_ADDRESS")?).await?;
    let router = Router::new().route("/orders/{id}/confirm", post(confirm)).with_state(pool);
    let serving = axum::serve(listener, router).into_future();
    // A program with handlers has a relay anyway; this one has none.
    let relaying = outbox::relay(Config::from_env()?, std::future::pending());
    tokio::select! {
        served = serving => Ok(served?),
        relayed = relaying => Ok(relayed?),
    }
}

/// Money is in integer minor units.
const PRICE_CENTS: i64 = 4_999;

async fn confirm(State(pool): State<PgPool>, Path(order_id): Path<i64>) -> Result<StatusCode, StatusCode> {
    confirm_once(&pool, order_id).await.map_err(|error| {
        eprintln!("order {order_id}: {error}");
        StatusCode::SERVICE_UNAVAILABLE
    })
}

async fn confirm_once(pool: &PgPool, order_id: i64) -> Result<StatusCode, outbox::PublishError> {
    let mut tx = pool.begin().await?;
    let made = sqlx::query("INSERT INTO orders (id, total_cents) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(order_id)
        .bind(PRICE_CENTS)
        .execute(&mut *tx)
        .await?;
    // A customer who heard no answer asks again.
    if made.rows_affected() == 1 {
        outbox::publish(&mut tx, "order.confirmed", order_id, |event_id| OrderConfirmed {
            event_id,
            order_id,
            total_cents: PRICE_CENTS,
        })
        .event_type("order.confirmed")
        .await?;
    }
    tx.commit().await?;
    Ok(StatusCode::OK)
}
