-- Events to be published, written in the transaction of the change that they tell of. The relay sends
-- them in the order of `seq` for each (topic, key), and deletes what the broker has acknowledged.
CREATE SEQUENCE idem_outbox_seq;

-- A ring of four partitions, each of 65,536 numbers in a row. A deleted row takes room until vacuum may
-- remove it, which a long transaction anywhere in the database prevents; a partition that the numbers
-- have left is emptied with TRUNCATE, which only waits for transactions that wrote to that partition. So
-- the table stays small, and the relay never reads past many dead rows, whatever else is open.
CREATE TABLE idem_outbox (
    seq                bigint      NOT NULL DEFAULT nextval('idem_outbox_seq'),
    event_id           uuid        NOT NULL,
    topic              text        NOT NULL,
    key                text        NOT NULL,
    payload            bytea       NOT NULL,
    -- [["name", "value"], ..], the order is kept.
    headers            json        NOT NULL,
    -- The record's timestamp, milliseconds since the Unix epoch.
    occurred_at_millis bigint      NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY LIST (((seq >> 16) & 3));
CREATE TABLE idem_outbox_0 PARTITION OF idem_outbox (PRIMARY KEY (seq)) FOR VALUES IN (0);
CREATE TABLE idem_outbox_1 PARTITION OF idem_outbox (PRIMARY KEY (seq)) FOR VALUES IN (1);
CREATE TABLE idem_outbox_2 PARTITION OF idem_outbox (PRIMARY KEY (seq)) FOR VALUES IN (2);
CREATE TABLE idem_outbox_3 PARTITION OF idem_outbox (PRIMARY KEY (seq)) FOR VALUES IN (3);

-- Truncates a partition, unless it has rows, or somebody is writing to it. A row that was numbered before
-- and comes later finds the partition where it was. Whether it is empty must be seen after it is locked: under
-- another isolation level the snapshot is older, and a row that was committed in between would go with it.
CREATE FUNCTION idem_outbox_truncate(slot integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    slot_table text := 'idem_outbox_' || slot;
    is_empty   boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'idem_outbox_truncate needs the isolation level READ COMMITTED'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF pg_relation_size(slot_table::regclass) = 0 THEN
        RETURN true;
    END IF;
    EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE NOWAIT', slot_table);
    EXECUTE format('SELECT NOT EXISTS (SELECT FROM %I)', slot_table) INTO is_empty;
    IF is_empty THEN
        EXECUTE format('TRUNCATE %I', slot_table);
    END IF;
    RETURN is_empty;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

-- Rows that can't be published, with the reason, and without one those of the same (topic, key) behind them.
CREATE TABLE idem_outbox_parked (
    seq                bigint      PRIMARY KEY,
    event_id           uuid        NOT NULL,
    topic              text        NOT NULL,
    key                text        NOT NULL,
    payload            bytea       NOT NULL,
    headers            json        NOT NULL,
    occurred_at_millis bigint      NOT NULL,
    created_at         timestamptz NOT NULL,
    reason             text,
    parked_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- A key may be longer than a B-tree takes.
CREATE INDEX idem_outbox_parked_key ON idem_outbox_parked USING hash (key);

-- The one relay that is active.
CREATE TABLE idem_relay (
    only_row        boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Who relays; or did until it ended without a goodbye: then what it queued may still be sent for so long.
    holder          uuid,
    may_send_millis bigint      NOT NULL DEFAULT 0,
    -- Until then it sleeps, and whoever publishes wakes it. NOTIFY makes the commits of all transactions
    -- that use it wait for each other, so nobody does while the relay is awake, or there is none.
    wake_until      timestamptz
);
INSERT INTO idem_relay DEFAULT VALUES;

-- Writes one row, and wakes the relay at COMMIT if it sleeps. A function, as a session plans what is in it once.
CREATE FUNCTION idem_publish(
    event_id uuid, topic text, key text, payload bytea, headers json, occurred_at_millis bigint
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO idem_outbox (event_id, topic, key, payload, headers, occurred_at_millis)
    VALUES ($1, $2, $3, $4, $5, $6);
    PERFORM pg_notify('idem_outbox', '') FROM idem_relay WHERE wake_until > now();
END
$$;

-- The latest version of an aggregate that a handler has applied (`stale = "skip"`). Topic and event type are what
-- the handler takes: other events may number other things, or other changes of the same thing.
CREATE TABLE aggregate_version (
    consumer_group text   NOT NULL,
    topic          text   NOT NULL,
    event_type     text   NOT NULL,
    aggregate      text   NOT NULL,
    -- NULL only inside of the transaction that makes the row.
    version        bigint,
    PRIMARY KEY (consumer_group, topic, event_type, aggregate)
    -- Each row is updated often; room on its page spares the index.
) WITH (fillfactor = 70);
