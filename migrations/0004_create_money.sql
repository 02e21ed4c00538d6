-- Every call that moves money, written before it leaves and settled after its answer. No body, no
-- answer, no address is in it.
CREATE TABLE money_call (
    event_id       uuid        NOT NULL,
    consumer_group text        NOT NULL,
    -- '' for the unnamed call of a handler without an operation.
    operation      text        NOT NULL,
    -- Rises when a call was resolved as failed: the next attempt has another key.
    generation     integer     NOT NULL,
    key            text        NOT NULL,
    -- Of method, path and body, with the event's id before them.
    body_hash      bytea       NOT NULL,
    -- 'unknown': asked, and whether it was carried out is not known. 'waiting': surely not carried
    -- out so far. 'applied', 'refused': the provider's word, or for 'applied' and 'failed' a person's.
    state          text        NOT NULL CHECK (state IN ('unknown', 'waiting', 'applied', 'refused', 'failed')),
    -- Counts requests; a late answer to an earlier one is told by it. 0: all that is known of a request is
    -- that the database, as it was before it went back, may have had it.
    attempt        integer     NOT NULL,
    -- The provider's last HTTP status.
    status         smallint,
    created_at     timestamptz NOT NULL DEFAULT now(),
    attempted_at   timestamptz NOT NULL DEFAULT now(),
    -- Since when the provider may have carried it out although no answer says so, and the last request
    -- whose answer is missing; the second is null where the provider only said that it knows the key.
    unsure_since   timestamptz DEFAULT now(),
    unsure_at      timestamptz DEFAULT now(),
    -- The event's own transaction: its effects are committed.
    recorded_at    timestamptz,
    resolved_at    timestamptz,
    resolved_note  text,
    PRIMARY KEY (event_id, consumer_group, operation, generation)
    -- Each row is updated soon after; room on its page spares the index.
) WITH (fillfactor = 70);

-- Whose calls on a topic have which name. Two groups with one name would send the same keys.
CREATE TABLE money_handler (
    topic          text        NOT NULL,
    operation      text        NOT NULL,
    consumer_group text        NOT NULL,
    handler        text        NOT NULL,
    registered_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic, operation)
);

-- Events below it were read before, and then the database went back: what they did may not be in it.
ALTER TABLE consumer_progress ADD COLUMN reread_below bigint;
-- When that was found out.
ALTER TABLE consumer_progress ADD COLUMN reread_at timestamptz;
