//! Handlers inside of an application that has a runtime, a web server and a shutdown of its own.
//!
//! ```sh
//! cargo run --example larger_application
//! ```

use axum::Router;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::routing::get;
use examples::{Error, Playground};
use idem_runtime::Health;
use idem_runtime::prelude::*;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

#[derive(serde::Deserialize, Event)]
struct UserJoined {
    event_id: EventId,
    name: String,
}

/// What the application has built, and handlers may use.
struct Greetings {
    language: &'static str,
}

#[idempotent_handler(topic = "user.joined", group = "greetings")]
async fn on_joined(tx: &mut Tx<'_>, user: UserJoined, greetings: State<Greetings>) -> HandlerResult {
    let word = if greetings.language == "de" { "Hallo" } else { "Hello" };
    sqlx::query("INSERT INTO greeting (text) VALUES ($1)")
        .bind(format!("{word}, {}!", user.name))
        .execute(&mut **tx)
        .await?;
    Ok(())
}

async fn ready(Shared(health): Shared<Health>) -> StatusCode {
    if health.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(application())
}

async fn application() -> Result<(), Error> {
    let playground = Playground::start("CREATE TABLE greeting (text text)").await?;
    playground.topic("user.joined", "greetings")?;
    playground.publish("user.joined", "ada", &json!({"event_id": EventId::now(), "name": "Ada"})).await?;

    // One signal for everything that the application runs.
    let (shutdown, is_shutdown) = watch::channel(false);
    let asked = |mut is_shutdown: watch::Receiver<bool>| async move {
        let _ = is_shutdown.wait_for(|asked| *asked).await;
    };
    let handlers = idem_runtime::builder()
        .config(playground.config()?)
        .state(Greetings { language: "de" })
        .shutdown_when(asked(is_shutdown.clone()));
    let routes = Router::new().route("/ready", get(ready)).with_state(handlers.health());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("the application is at http://{}/ready", listener.local_addr()?);
    let web = tokio::spawn(axum::serve(listener, routes).with_graceful_shutdown(asked(is_shutdown)).into_future());
    let handlers = tokio::spawn(handlers.run());

    while sqlx::query_scalar::<_, i64>("SELECT count(*) FROM greeting").fetch_one(&playground.pool).await? == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    shutdown.send(true)?;
    // The handlers end what they have begun, and commit their offsets.
    handlers.await??;
    web.await??;
    playground.print("SELECT text FROM greeting").await
}
