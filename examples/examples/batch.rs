//! A handler that writes many events with one statement.
//!
//! ```sh
//! cargo run --example batch
//! ```

use examples::{Error, Playground};
use idem_runtime::prelude::*;
use serde_json::json;

#[derive(serde::Deserialize, Event)]
struct ArticleViewed {
    event_id: EventId,
    article: i64,
}

#[idempotent_handler(topic = "article.viewed", group = "statistics", batch = 500)]
async fn on_viewed(tx: &mut Tx<'_>, views: Vec<ArticleViewed>) -> HandlerResult {
    let articles: Vec<i64> = views.iter().map(|view| view.article).collect();
    // Sorted, so that batches of two partitions lock the rows in one order.
    sqlx::query(
        "INSERT INTO article (id, views) SELECT id, count(*) FROM unnest($1::bigint[]) AS id GROUP BY id ORDER BY id \
         ON CONFLICT (id) DO UPDATE SET views = article.views + excluded.views",
    )
    .bind(articles)
    .execute(&mut **tx)
    .await?;
    println!("a batch of {}", views.len());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let playground = Playground::start("CREATE TABLE article (id bigint PRIMARY KEY, views bigint)").await?;
    playground.topic("article.viewed", "statistics")?;
    for number in 0..1_000 {
        let event = json!({"event_id": EventId::now(), "article": number % 3});
        playground.publish("article.viewed", "", &event).await?;
        if number % 10 == 0 {
            playground.publish("article.viewed", "", &event).await?;
        }
    }
    let all = "SELECT coalesce(sum(views), 0)::bigint FROM article";
    playground.run_until(idem_runtime::builder(), all, 1_000).await?;
    playground.print("SELECT format('article %s: %s views', id, views) FROM article ORDER BY id").await
}
