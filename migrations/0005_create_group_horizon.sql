-- The time below which rows of a group may have been deleted. An event with an older time that has no
-- row may have been processed and forgotten. A group without a row has forgotten nothing.
CREATE TABLE group_horizon (
    consumer_group text        PRIMARY KEY,
    -- For UUID v7: compared with the time in the id.
    ids_before     timestamptz,
    -- For natural keys: compared with the timestamp of the record.
    natural_before timestamptz,
    raised_at      timestamptz NOT NULL DEFAULT now()
);

-- The time in a UUID v7, milliseconds since the Unix epoch.
CREATE FUNCTION idem_millis_of(event_id uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x0000' || translate(left(event_id::text, 13), '-', ''))::bit(64)::bigint
$$;

-- 'time', 'natural', or 'other' for what the library never takes for the id of an event.
CREATE FUNCTION idem_kind_of(event_id uuid) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN event_id >= 'ff000000-0000-0000-0000-000000000000' THEN 'natural'
                WHEN substr(event_id::text, 15, 1) = '7' THEN 'time'
                ELSE 'other' END
$$;

-- What an insert into the dedup table has to ask, after it inserted: the horizon of the group, of natural
-- keys or of ids with a time, milliseconds since the Unix epoch; NULL: none. For one row in its RETURNING; for
-- many beside an aggregate over what was inserted, which is only there when all of it is.
-- VOLATILE, so that it looks with a snapshot of its own, younger than the insert's: an insert that waited
-- for rows to go sees the horizon that was raised for them. A subquery would see the old one.
CREATE FUNCTION idem_horizon(of_group text, is_natural boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT AS $$
BEGIN
    RETURN (SELECT extract(epoch FROM CASE WHEN is_natural THEN natural_before ELSE ids_before END) * 1000
              FROM group_horizon WHERE consumer_group = of_group);
END
$$;

-- A table that was there before the library: rows that are older than its oldest may have been deleted.
-- The program turns the time at which that one was processed into the horizon, and finds it by the
-- time it was raised at. Reading the table may take longer than statements usually may.
SET LOCAL statement_timeout = 0;
DO $$
BEGIN
    IF (SELECT relkind FROM pg_class WHERE oid = 'processed_event'::regclass) = 'r' THEN
        INSERT INTO group_horizon (consumer_group, ids_before, raised_at)
        SELECT consumer_group, min(processed_at), '-infinity' FROM processed_event
         WHERE consumer_group IS NOT NULL GROUP BY consumer_group;
    END IF;
END
$$;

-- A position that was set anew says nothing of how far the events behind it have been read; the dedup
-- table keeps rows until it is known. `event_time` of a retry topic is a time that no event in it is
-- older than; elsewhere that of the last event that was done.
COMMENT ON COLUMN consumer_progress.event_time IS 'no event that is still to be read is older than this, but for clock skew';
COMMENT ON COLUMN consumer_progress.caught_up_at IS 'everything that was there at this time has been read';
