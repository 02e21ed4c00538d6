-- A lane whose events all went to the dead letter queue for one reason stops, and stays stopped over
-- restarts and rebalances until somebody deletes its row (`idem group resume`).
CREATE TABLE lane_brake (
    consumer_group text        NOT NULL,
    topic          text        NOT NULL,
    partition      integer     NOT NULL,
    reason         text        NOT NULL,
    engaged_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, partition)
);
