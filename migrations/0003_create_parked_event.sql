-- Events of handlers with `order = "key"` that wait: one that failed, and the later ones of its Kafka
-- key behind it. The owner of the partition drives them in the order of their offsets. A key may be
-- longer than an index takes, so rows are found by their offsets.
CREATE TABLE parked_event (
    consumer_group   text        NOT NULL,
    topic            text        NOT NULL,
    partition        integer     NOT NULL,
    record_offset    bigint      NOT NULL,
    key              bytea       NOT NULL,
    value            bytea,
    -- Names and values may be any bytes; a value may be absent.
    header_names     bytea[]     NOT NULL,
    header_values    bytea[]     NOT NULL,
    -- Whatever the producer stamped, milliseconds since the Unix epoch.
    timestamp_millis bigint,
    attempt          integer     NOT NULL,
    due_at           timestamptz NOT NULL,
    first_failed_at  timestamptz,
    parked_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, partition, record_offset)
);
