//! A key goes to the partition that Kafka's own client chooses.

use std::collections::BTreeMap;

use tests::ReadRecord;

use crate::desk::{Relay, env, records, tell};

fn by_key(records: &[ReadRecord]) -> BTreeMap<String, i32> {
    let key = |record: &ReadRecord| String::from_utf8(record.key.clone().unwrap()).unwrap();
    records.iter().map(|record| (key(record), record.partition)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_have_the_partitions_of_the_java_client() {
    let env = env().await;
    let (ours, javas) = (env.topic("ours"), env.topic("javas"));
    env.kafka.create_topic(&ours, 7).await;
    env.kafka.create_topic(&javas, 7).await;
    // The hashes that Kafka's own tests expect of some: murmur2, without its sign, over the partitions.
    let known = [
        ("21", -973_932_308_i32),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ];
    let mut keys: Vec<String> = known.iter().map(|(key, _)| (*key).to_owned()).collect();
    keys.extend((0..60).map(|number| format!("order-{number}")));
    keys.extend(["größe", "ключ", "0198c5f4-7a00-7000-8000-000000000001"].map(ToOwned::to_owned));
    let mut tx = env.pool.begin().await.unwrap();
    for key in &keys {
        tell(&mut tx, &ours, key, 1).await;
    }
    tx.commit().await.unwrap();
    let relay = Relay::start(&env);
    let lines: String = keys.iter().map(|key| format!("{key}\tx\n")).collect();
    let (bootstrap, topic) = (env.kafka.bootstrap().to_owned(), javas.clone());
    let java = tokio::task::spawn_blocking(move || {
        let args = ["--bootstrap-server", &bootstrap, "--topic", &topic, "--reader-property", "parse.key=true"];
        tests::java::run_with_input("org.apache.kafka.tools.ConsoleProducer", &args, &lines)
    });
    let _ = java.await.unwrap();
    let ours = by_key(&records(&env, &ours, keys.len()).await);
    assert_eq!(ours, by_key(&records(&env, &javas, keys.len()).await));
    for (key, hash) in known {
        assert_eq!(ours[key], (hash & 0x7fff_ffff) % 7, "{key}");
    }
    relay.stop().await;
}
