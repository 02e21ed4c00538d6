-- Many events share a transaction, and a handler that ran COMMIT in the middle of it would keep the
-- dedup rows of events that were not handled. So the dedup statement inserts a guard, which refers to a
-- row that never exists: the server refuses every COMMIT (23503) until the check has deleted it.
CREATE TABLE idem_never (
    id bigint PRIMARY KEY CHECK (false)
);
-- Unlogged: no row of it is ever committed.
CREATE UNLOGGED TABLE transaction_guard (
    transaction_id bigint PRIMARY KEY,
    CONSTRAINT idem_handler_must_not_commit FOREIGN KEY (transaction_id) REFERENCES idem_never (id)
        DEFERRABLE INITIALLY DEFERRED
);
