-- What becomes of the numbering when rows are removed from outside.

-- Whoever knows a position of a stream that is gone must not continue with a
-- stream made anew under its name: the database gets a new life of the
-- numbering, in the same transaction.
CREATE FUNCTION chronocast.raise_life() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE chronocast.life SET epoch = greatest(epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        (SELECT coalesce(max(c.epoch), 0) + 1 FROM chronocast.channels c))
$$;

-- A stream goes with its channel row, its messages and its keys.
CREATE FUNCTION chronocast.streams_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM chronocast.channels c USING gone WHERE c.id = gone.id;
    RETURN NULL;
END $$;

CREATE FUNCTION chronocast.channels_deleted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM gone) THEN
        DELETE FROM chronocast.messages m USING gone WHERE m.channel_id = gone.id;
        DELETE FROM chronocast.keys k USING gone WHERE k.channel_id = gone.id;
        PERFORM chronocast.raise_life();
    END IF;
    RETURN NULL;
END $$;

-- After TRUNCATE. The tables of one TRUNCATE are still in use here: what other
-- tables hold is deleted.
CREATE FUNCTION chronocast.streams_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM chronocast.channels;
    RETURN NULL;
END $$;

CREATE FUNCTION chronocast.channels_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM chronocast.messages;
    DELETE FROM chronocast.keys;
    PERFORM chronocast.raise_life();
    RETURN NULL;
END $$;

-- Messages alone: the streams go on, and what they kept is trimmed.
CREATE FUNCTION chronocast.messages_truncated() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE chronocast.channels SET first_offset = last_offset + 1, bytes = 0, trimmed_at = clock_timestamp()
    WHERE first_offset <= last_offset;
    RETURN NULL;
END $$;

CREATE TRIGGER deleted AFTER DELETE ON chronocast.streams REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION chronocast.streams_deleted();
CREATE TRIGGER deleted AFTER DELETE ON chronocast.channels REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION chronocast.channels_deleted();
CREATE TRIGGER truncated AFTER TRUNCATE ON chronocast.streams
    FOR EACH STATEMENT EXECUTE FUNCTION chronocast.streams_truncated();
CREATE TRIGGER truncated AFTER TRUNCATE ON chronocast.channels
    FOR EACH STATEMENT EXECUTE FUNCTION chronocast.channels_truncated();
CREATE TRIGGER truncated AFTER TRUNCATE ON chronocast.messages
    FOR EACH STATEMENT EXECUTE FUNCTION chronocast.messages_truncated();

REVOKE ALL ON FUNCTION chronocast.raise_life(), chronocast.streams_deleted(), chronocast.channels_deleted(),
    chronocast.streams_truncated(), chronocast.channels_truncated(), chronocast.messages_truncated() FROM PUBLIC;

-- As before, but settings that make no sense say so, no setting allows a
-- payload above 64 MiB or a window below zero, and a stream that is removed
-- meanwhile is made anew.
CREATE OR REPLACE FUNCTION chronocast.broadcast(stream text, data bytea, key text DEFAULT NULL, OUT epoch bigint, OUT "offset" bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    set_payload CONSTANT text := nullif(current_setting('chronocast.max_payload', true), '');
    set_window CONSTANT text := nullif(current_setting('chronocast.key_window', true), '');
    biggest bigint := 1048576;
    key_window interval := '1 hour';
    channel bigint;
    key_digest uuid;
    body_digest uuid;
    seen record;
BEGIN
    IF set_payload !~ '^[0-9]{1,18}$' THEN
        RAISE EXCEPTION 'chronocast: the setting chronocast.max_payload is "%", not a number of bytes', set_payload USING ERRCODE = '22023';
    END IF;
    biggest := least(coalesce(set_payload::bigint, biggest), 67108864);
    IF set_window IS NOT NULL THEN
        BEGIN
            key_window := greatest(set_window::interval, interval '0');
        EXCEPTION WHEN data_exception THEN
            RAISE EXCEPTION 'chronocast: the setting chronocast.key_window is "%", not an interval', set_window USING ERRCODE = '22023';
        END;
    END IF;
    IF stream IS NULL OR octet_length(stream) NOT BETWEEN 1 AND 255 OR stream ~ '[\u0001-\u001f\u007f-\u009f]' THEN
        RAISE EXCEPTION 'chronocast: a stream name is 1 to 255 bytes without control characters' USING ERRCODE = '22023';
    END IF;
    IF data IS NULL OR octet_length(data) = 0 THEN
        RAISE EXCEPTION 'chronocast: the payload is missing' USING ERRCODE = '22023';
    END IF;
    IF octet_length(data) > biggest THEN
        RAISE EXCEPTION 'chronocast: the payload has % bytes, more than %', octet_length(data), biggest USING ERRCODE = '54000';
    END IF;
    IF key IS NOT NULL AND (octet_length(key) > 255 OR key !~ '\S') THEN
        RAISE EXCEPTION 'chronocast: a key is 1 to 255 bytes and not blank' USING ERRCODE = '22023';
    END IF;
    PERFORM convert_from(data, 'UTF8')::json; -- 22P02 unless it is JSON

    FOR attempt IN 1..5 LOOP
        SELECT s.id INTO channel FROM chronocast.streams s JOIN chronocast.channels c ON c.id = s.id WHERE s.name = stream COLLATE "C";
        IF channel IS NULL THEN
            INSERT INTO chronocast.streams AS s (name) VALUES (stream)
            ON CONFLICT (name) DO UPDATE SET name = s.name RETURNING s.id INTO channel;
            INSERT INTO chronocast.channels (id) VALUES (channel) ON CONFLICT (id) DO NOTHING;
        END IF;

        -- The lock comes before the key is looked up: two transactions with one
        -- key meet here, and the second sees what the first has committed.
        IF key IS NOT NULL THEN
            PERFORM FROM chronocast.channels c WHERE c.id = channel FOR UPDATE;
            CONTINUE WHEN NOT FOUND;
            key_digest := encode(substr(sha256(convert_to(key, 'UTF8')), 1, 16), 'hex')::uuid;
            body_digest := encode(substr(sha256(data), 1, 16), 'hex')::uuid;
            DELETE FROM chronocast.keys k WHERE k.channel_id = channel AND k.key = key_digest AND k.at <= clock_timestamp() - key_window;
            SELECT k.body, k.offset_ INTO seen FROM chronocast.keys k WHERE k.channel_id = channel AND k.key = key_digest;
            IF FOUND THEN
                IF seen.body <> body_digest THEN
                    RAISE EXCEPTION 'chronocast: the key was used for another payload' USING ERRCODE = '23505';
                END IF;
                SELECT greatest(c.epoch, l.epoch), seen.offset_ INTO broadcast.epoch, broadcast."offset"
                FROM chronocast.channels c, chronocast.life l WHERE c.id = channel;
                RETURN;
            END IF;
        END IF;

        UPDATE chronocast.channels c SET last_offset = c.last_offset + 1, bytes = c.bytes + octet_length(data)
        FROM chronocast.life l WHERE c.id = channel
        RETURNING greatest(c.epoch, l.epoch), c.last_offset INTO broadcast.epoch, broadcast."offset";
        EXIT WHEN FOUND;
    END LOOP;
    IF broadcast."offset" IS NULL THEN
        RAISE EXCEPTION 'chronocast: the stream is removed again and again, or the row of chronocast.life is' USING ERRCODE = '55000';
    END IF;
    INSERT INTO chronocast.messages (channel_id, offset_, at, payload) VALUES (channel, broadcast."offset", clock_timestamp(), data);
    IF key IS NOT NULL THEN
        INSERT INTO chronocast.keys (channel_id, key, body, offset_, at)
        VALUES (channel, key_digest, body_digest, broadcast."offset", clock_timestamp());
    END IF;
    PERFORM pg_notify('chronocast', 'sql ' || channel || ':' || broadcast."offset");
END $$;
