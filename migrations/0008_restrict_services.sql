-- A service needs no right to make, change or drop tables. What maintenance needs of them is in functions that act
-- as the owner of the tables, and everything that a service needs is listed here: `idem_grant` gives it.

-- The rights of a service, one a line.
CREATE FUNCTION idem_rights() RETURNS TABLE (kind text, name text, privilege text)
LANGUAGE sql STABLE AS $$
    SELECT 'TABLE', t.name, unnest(string_to_array(t.privileges, ', ')) FROM (VALUES
        ('idem_lineage',       'SELECT'),
        ('idem_migration',     'SELECT'),
        -- UPDATE only locks rows that are about to go. TRUNCATE empties a day, after its groups' horizons were raised.
        ('processed_event',    'SELECT, INSERT, UPDATE, DELETE, TRUNCATE'),
        ('group_horizon',      'SELECT, INSERT, UPDATE'),
        ('transaction_guard',  'SELECT, INSERT, DELETE'),
        ('consumer_progress',  'SELECT, INSERT, UPDATE'),
        ('lane_brake',         'SELECT, INSERT, DELETE'),
        ('parked_event',       'SELECT, INSERT, UPDATE, DELETE'),
        ('money_call',         'SELECT, INSERT, UPDATE, DELETE'),
        ('money_handler',      'SELECT, INSERT, UPDATE'),
        ('aggregate_version',  'SELECT, INSERT, UPDATE'),
        ('idem_relay',         'SELECT, UPDATE'),
        ('idem_outbox',        'SELECT, INSERT, DELETE'),
        ('idem_outbox_parked', 'SELECT, INSERT, UPDATE, DELETE'),
        ('idem_outbox_0',      'SELECT, DELETE, TRUNCATE'),
        ('idem_outbox_1',      'SELECT, DELETE, TRUNCATE'),
        ('idem_outbox_2',      'SELECT, DELETE, TRUNCATE'),
        ('idem_outbox_3',      'SELECT, DELETE, TRUNCATE')) AS t (name, privileges)
    UNION ALL
    SELECT 'SEQUENCE', 'idem_outbox_seq', 'USAGE'
    UNION ALL
    SELECT 'FUNCTION', f.name, 'EXECUTE' FROM (VALUES
        ('idem_rights()'), ('idem_lacking(name)'), ('idem_first_id_of(date)'), ('idem_partition_of(date)'),
        ('idem_millis_of(uuid)'), ('idem_kind_of(uuid)'), ('idem_horizon(text, boolean)'),
        ('idem_outbox_truncate(integer)'), ('idem_publish(uuid, text, text, bytea, json, bigint)'),
        ('idem_attach_days(integer)'), ('idem_share_rights()'), ('idem_merge_days(integer)')) AS f (name)
$$;

-- What a role lacks of them.
CREATE FUNCTION idem_lacking(of_role name) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
    SELECT privilege || ' on ' || name FROM idem_rights()
     WHERE NOT coalesce(
               CASE kind WHEN 'TABLE' THEN has_table_privilege(of_role, to_regclass(name), privilege)
                         WHEN 'SEQUENCE' THEN has_sequence_privilege(of_role, to_regclass(name), privilege)
                         ELSE has_function_privilege(of_role, to_regprocedure(name), privilege) END, false)
     ORDER BY name, privilege
$$;

-- Gives everybody who has rights on the dedup table the same on its partitions, which maintenance reads and
-- empties one by one.
CREATE FUNCTION idem_share_rights() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format('GRANT %s ON %s TO %s', held.privilege_type, part.oid::regclass,
                      CASE held.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(held.grantee)) END)
          FROM pg_class AS whole
          JOIN pg_inherits ON inhparent = whole.oid
          JOIN pg_class AS part ON part.oid = inhrelid
         CROSS JOIN aclexplode(whole.relacl) AS held
         WHERE whole.oid = 'processed_event'::regclass AND held.grantee <> whole.relowner
           AND NOT EXISTS (SELECT FROM aclexplode(part.relacl) AS has
                            WHERE has.grantee = held.grantee AND has.privilege_type = held.privilege_type)
    LOOP
        EXECUTE statement;
    END LOOP;
END
$$;

-- Merges the oldest days into `late`, as long as they are empty: at most so many, and a hundred days stay. Says
-- how many. The caller's lock_timeout bounds how long every insert is held up.
CREATE FUNCTION idem_merge_days(most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    part     record;
    has_rows boolean;
    last_day date;
    merged   integer := 0;
    late     regclass := 'processed_event_late';
BEGIN
    LOCK TABLE processed_event IN ACCESS EXCLUSIVE MODE;
    FOR part IN
        WITH days AS (
            SELECT c.oid::regclass AS name, to_date(right(c.relname, 8), 'YYYYMMDD') AS day
              FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid
             WHERE inhparent = 'processed_event'::regclass AND c.relname ~ '^processed_event_[0-9]{8}$')
        SELECT * FROM days ORDER BY day LIMIT greatest(least(most, (SELECT count(*) FROM days) - 100), 0)
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', part.name) INTO has_rows;
        EXIT WHEN has_rows;
        EXECUTE format('DROP TABLE %s', part.name);
        merged := merged + 1;
        last_day := part.day;
    END LOOP;
    IF merged > 0 THEN
        EXECUTE format('ALTER TABLE processed_event DETACH PARTITION %s', late);
        EXECUTE format('ALTER TABLE processed_event ATTACH PARTITION %s FOR VALUES FROM (MINVALUE) TO (%L)',
                       late, idem_first_id_of(last_day + 1));
    END IF;
    RETURN merged;
END
$$;

-- Gives a role what a service needs. For the owner of the tables, after each migration.
CREATE FUNCTION idem_grant(to_role regrole) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN
        SELECT DISTINCT relnamespace::regnamespace AS name FROM pg_class
         WHERE oid IN ('processed_event'::regclass, 'idem_lineage'::regclass)
           AND NOT has_schema_privilege(to_role, relnamespace, 'USAGE')
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s', wanted.name, to_role);
    END LOOP;
    FOR wanted IN SELECT * FROM idem_rights() LOOP
        EXECUTE format('GRANT %s ON %s %s TO %s', wanted.privilege, wanted.kind, wanted.name, to_role);
    END LOOP;
    -- GRANT of somebody else's rights is only a warning.
    IF EXISTS (SELECT FROM idem_lacking(pg_get_userbyid(to_role))) THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s can''t give all rights: it does not own the tables', current_user);
    END IF;
    PERFORM idem_share_rights();
END
$$;

-- As the manual says in "Writing SECURITY DEFINER Functions Safely": no name in them is looked for where the
-- caller could have put something, and nobody may call them who was not given the right to.
DO $$
DECLARE
    signature text;
    ours      text := quote_ident(current_schema());
    -- A dedup table that was there before may be elsewhere.
    of_table  text := (SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = 'processed_event'::regclass);
    schemas   text := concat_ws(', ', ours, nullif(of_table, ours), 'pg_temp');
BEGIN
    FOREACH signature IN ARRAY ARRAY['idem_attach_days(integer)', 'idem_share_rights()', 'idem_merge_days(integer)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = %s', signature, schemas);
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', signature);
    END LOOP;
END
$$;
