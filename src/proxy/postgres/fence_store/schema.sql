-- What several proxies before one server share: the watermark of each lock, and the sessions that
-- were let in under it. Its owner is the control role; nobody else may look into it.
-- Idempotent: running it again keeps what is there.

CREATE SCHEMA IF NOT EXISTS ringfence;
REVOKE ALL ON SCHEMA ringfence FROM PUBLIC;

CREATE TABLE IF NOT EXISTS ringfence.format (version int PRIMARY KEY);
INSERT INTO ringfence.format SELECT 2 WHERE NOT EXISTS (SELECT FROM ringfence.format);
-- 2 has ringfence.prepared.
UPDATE ringfence.format SET version = 2 WHERE version < 2;

-- Of each lock: the highest token that any proxy has let in. It never falls.
CREATE TABLE IF NOT EXISTS ringfence.lock (
    name text COLLATE "C" PRIMARY KEY,
    watermark bigint NOT NULL CHECK (watermark >= 0),
    unsigned boolean NOT NULL
);

-- The backend sessions that may write under a lock. A session is named by pid and start.
CREATE TABLE IF NOT EXISTS ringfence.session (
    lock text COLLATE "C" NOT NULL,
    pid int NOT NULL,
    started bigint NOT NULL,
    token bigint NOT NULL,
    proxy text NOT NULL,
    PRIMARY KEY (lock, pid, started)
);

-- The transactions that are prepared, or about to be, and the locks that they write under. Who ends
-- one holds a current token of each. A name that is used again has a row for each use.
CREATE TABLE IF NOT EXISTS ringfence.prepared (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gid text COLLATE "C" NOT NULL,
    locks text[] NOT NULL,
    pid int NOT NULL,
    started bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS prepared_gid ON ringfence.prepared (gid);

-- Lets a session in, or, where `of_pid` is null, only raises the watermark. `outcome`: held; waits,
-- when it is held and other proxies' sessions still have lower tokens (`ringfence.lower`); stale
-- (with the watermark); other (kind of tokens); or unknown: the lock is not there, and `known` does
-- not say where it begins.
--
-- Order: whoever raises holds the row's exclusive lock until its commit, whoever is equal a shared
-- one. So a session is either in the list that a raise reads after it, or finds the raised
-- watermark. Each statement of a VOLATILE function has a snapshot of its own in READ COMMITTED.
CREATE OR REPLACE FUNCTION ringfence.hold(
    of_lock text, of_token bigint, is_unsigned boolean, of_pid int, of_start bigint,
    of_proxy text, known bigint, OUT outcome text, OUT mark bigint
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_kind boolean;
BEGIN
    LOOP
        SELECT watermark, unsigned INTO mark, of_kind FROM ringfence.lock WHERE name = of_lock;
        IF NOT FOUND THEN
            IF known IS NULL THEN
                outcome := 'unknown';
                RETURN;
            END IF;
            INSERT INTO ringfence.lock VALUES (of_lock, known, is_unsigned) ON CONFLICT DO NOTHING;
            CONTINUE;
        END IF;
        IF of_kind <> is_unsigned THEN
            outcome := 'other';
            RETURN;
        END IF;
        IF mark > of_token THEN
            outcome := 'stale';
            RETURN;
        END IF;
        IF mark < of_token THEN
            UPDATE ringfence.lock SET watermark = of_token
                WHERE name = of_lock AND watermark < of_token;
            IF FOUND THEN
                PERFORM pg_notify('ringfence', '');
            END IF;
        END IF;
        SELECT watermark INTO mark FROM ringfence.lock WHERE name = of_lock FOR SHARE;
        EXIT WHEN mark = of_token;
    END LOOP;
    IF of_pid IS NOT NULL THEN
        INSERT INTO ringfence.session VALUES (of_lock, of_pid, of_start, of_token, of_proxy)
            ON CONFLICT (lock, pid, started) DO UPDATE
            SET token = excluded.token, proxy = excluded.proxy;
    END IF;
    -- Its own gate has settled the token: nothing older of this proxy can be applied any more.
    DELETE FROM ringfence.session
        WHERE lock = of_lock AND token < of_token AND proxy = of_proxy;
    outcome := 'held';
    IF EXISTS (SELECT FROM ringfence.session WHERE lock = of_lock AND token < of_token) THEN
        outcome := 'waits';
    END IF;
END $$;

-- Forgets sessions that have ended. A start that the role may not see is no end.
CREATE OR REPLACE FUNCTION ringfence.forget_ended(of_lock text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM ringfence.session s WHERE (of_lock IS NULL OR s.lock = of_lock) AND NOT EXISTS (
        SELECT FROM pg_stat_activity a WHERE a.pid = s.pid AND (a.backend_start IS NULL
            OR (extract(epoch FROM a.backend_start) * 1000000)::bigint = s.started))
$$;

-- Forgets names under which nothing is prepared and nothing can be any more: first which sessions
-- have ended, then what is prepared, each statement as of its own time.
CREATE OR REPLACE FUNCTION ringfence.forget_unprepared() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended bigint[];
BEGIN
    SELECT array_agg(p.number) INTO ended FROM ringfence.prepared p WHERE NOT EXISTS (
        SELECT FROM pg_stat_activity a WHERE a.pid = p.pid AND (a.backend_start IS NULL
            OR (extract(epoch FROM a.backend_start) * 1000000)::bigint = p.started));
    DELETE FROM ringfence.prepared p WHERE p.number = ANY (ended)
        AND NOT EXISTS (SELECT FROM pg_prepared_xacts x WHERE x.gid = p.gid);
END $$;

-- The sessions that still have lower tokens.
CREATE OR REPLACE FUNCTION ringfence.lower(of_lock text, of_token bigint)
RETURNS TABLE (of_pid int, of_start bigint)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ringfence.forget_ended(of_lock);
    SELECT pid, started FROM ringfence.session WHERE lock = of_lock AND token < of_token
$$;

-- The locks that another proxy has raised above sessions of this one.
CREATE OR REPLACE FUNCTION ringfence.behind(of_proxy text)
RETURNS TABLE (of_lock text, mark bigint, is_unsigned boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT DISTINCT l.name, l.watermark, l.unsigned FROM ringfence.lock l
        JOIN ringfence.session s ON s.lock = l.name
        WHERE s.proxy = of_proxy AND s.token < l.watermark
$$;

-- This proxy has drained a lock up to this watermark.
CREATE OR REPLACE FUNCTION ringfence.give_up(drained text, mark bigint, of_proxy text)
RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM ringfence.session WHERE lock = drained AND token < mark AND proxy = of_proxy
$$;

-- For strict tables: refuses statements of sessions that hold no current token of the lock, those
-- that came past the proxies too. A superuser adds it, or the table's owner, given USAGE on the
-- schema and EXECUTE on the function:
--   CREATE TRIGGER ringfence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON orders
--     FOR EACH STATEMENT EXECUTE FUNCTION ringfence.guard('orders');
CREATE OR REPLACE FUNCTION ringfence.guard() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM ringfence.session s JOIN ringfence.lock l ON l.name = s.lock
        JOIN pg_stat_get_activity(pg_backend_pid()) a ON a.pid = s.pid
            AND (extract(epoch FROM a.backend_start) * 1000000)::bigint = s.started
        WHERE s.lock = TG_ARGV[0] AND s.token = l.watermark;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this session holds no current token of lock "%"', TG_ARGV[0]
            USING ERRCODE = 'RF002', HINT = 'Write through the proxy, with a ticket.';
    END IF;
    RETURN NULL;
END $$;
REVOKE ALL ON ALL TABLES IN SCHEMA ringfence FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA ringfence FROM PUBLIC;
