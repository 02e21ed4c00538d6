-- The lineage names this database. Kafka's commit metadata carries it, so that a service that is
-- pointed at another database notices before it processes anything. A restored copy keeps it.
CREATE TABLE idem_lineage (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    id         uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO idem_lineage DEFAULT VALUES;

-- The smallest v7 of a UTC day: its first 48 bits are milliseconds since the Unix epoch.
CREATE FUNCTION idem_first_id_of(utc_day date) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT rpad(lpad(to_hex((utc_day - DATE '1970-01-01')::bigint * 86400000), 12, '0'), 32, '0')::uuid
$$;

CREATE FUNCTION idem_partition_of(utc_day date) RETURNS text
LANGUAGE sql STABLE STRICT AS $$
    SELECT 'processed_event_' || to_char(utc_day, 'YYYYMMDD')
$$;

-- Attaches every day that is missing, from the first one to `ahead` days from today, and says how many. A
-- table that was there before and is not partitioned gets none.
-- CREATE (LIKE) + ATTACH does not wait for transactions that have inserted into the table;
-- CREATE .. PARTITION OF would, and would hold up every later insert meanwhile.
CREATE FUNCTION idem_attach_days(ahead integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    day date;
    attached integer := 0;
BEGIN
    FOR day IN
        WITH attached AS (
            SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day
              FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'processed_event'::regclass AND c.relname ~ '^processed_event_[0-9]{8}$')
        SELECT first + n FROM (SELECT min(a.day) AS first FROM attached a) AS known,
               generate_series(1, (now() AT TIME ZONE 'UTC')::date + ahead - first) AS n
         WHERE NOT EXISTS (SELECT FROM attached a WHERE a.day = first + n)
    LOOP
        EXECUTE format('CREATE TABLE %I (LIKE processed_event INCLUDING DEFAULTS)', idem_partition_of(day));
        EXECUTE format('ALTER TABLE processed_event ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                       idem_partition_of(day), idem_first_id_of(day), idem_first_id_of(day + 1));
        attached := attached + 1;
    END LOOP;
    RETURN attached;
END
$$;

-- Makes the dedup table with its partitions, all of it empty: `late` for ids before the first day, the
-- days from there to a week ahead, and `natural`.
--
-- One row per event and group. A UUID v7 begins with its creation time, so a range of ids is a
-- range of time, and the primary key stays unique over all partitions. Partitioning by
-- processed_at would need it in the key, and then nothing would ever conflict.
CREATE FUNCTION idem_create_dedup_table(first_day date) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    CREATE TABLE processed_event (
        event_id       uuid        NOT NULL,
        consumer_group text        NOT NULL,
        processed_at   timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (event_id, consumer_group)
    ) PARTITION BY RANGE (event_id);
    -- Identifiers made from natural keys (UUID v8) begin with 0xff, which no time of a v7 reaches.
    CREATE TABLE processed_event_natural PARTITION OF processed_event
        FOR VALUES FROM ('ff000000-0000-0000-0000-000000000000') TO (MAXVALUE);
    EXECUTE format('CREATE TABLE processed_event_late PARTITION OF processed_event FOR VALUES FROM (MINVALUE) TO (%L)',
                   idem_first_id_of(first_day));
    EXECUTE format('CREATE TABLE %I PARTITION OF processed_event FOR VALUES FROM (%L) TO (%L)',
                   idem_partition_of(first_day), idem_first_id_of(first_day), idem_first_id_of(first_day + 1));
    -- Their rows go by age; those of a day go all at once.
    CREATE INDEX processed_event_late_processed_at ON processed_event_late (processed_at);
    CREATE INDEX processed_event_natural_processed_at ON processed_event_natural (processed_at);
    PERFORM idem_attach_days(7);
END
$$;

-- A table of that name that was there before is used as it is; the program has looked at it. The first
-- day is a week back, as far as events are usually redelivered; what is older has its home in `late`.
DO $$
BEGIN
    IF to_regclass('processed_event') IS NULL THEN
        PERFORM idem_create_dedup_table((now() AT TIME ZONE 'UTC')::date - 7);
    END IF;
END
$$;

-- How far a group is on a partition. Written after the effects are committed and before Kafka is
-- told; `epoch` rises with every assignment, so that a former owner can't move it any more.
CREATE TABLE consumer_progress (
    consumer_group text        NOT NULL,
    topic          text        NOT NULL,
    partition      integer     NOT NULL,
    epoch          bigint      NOT NULL,
    next_offset    bigint      NOT NULL,
    event_time     timestamptz,
    caught_up_at   timestamptz,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, partition)
);
