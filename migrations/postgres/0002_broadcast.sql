-- Broadcasting from SQL, inside the application's own transaction: the message
-- exists if and only if that transaction commits, and stands in the stream in
-- the order of commits. The channel row stays locked until the transaction ends.

CREATE FUNCTION chronocast.broadcast(stream text, data bytea, key text DEFAULT NULL, OUT epoch bigint, OUT "offset" bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    biggest CONSTANT int := coalesce(nullif(current_setting('chronocast.max_payload', true), ''), '1048576')::int;
    key_window CONSTANT interval := coalesce(nullif(current_setting('chronocast.key_window', true), ''), '1 hour')::interval;
    channel bigint;
    key_digest uuid;
    body_digest uuid;
    seen record;
BEGIN
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

    SELECT s.id INTO channel FROM chronocast.streams s WHERE s.name = stream COLLATE "C";
    IF channel IS NULL THEN
        INSERT INTO chronocast.streams AS s (name) VALUES (stream)
        ON CONFLICT (name) DO UPDATE SET name = s.name RETURNING s.id INTO channel;
        INSERT INTO chronocast.channels (id) VALUES (channel) ON CONFLICT (id) DO NOTHING;
    END IF;

    -- The lock comes before the key is looked up: two transactions with one key
    -- meet here, and the second sees what the first has committed.
    IF key IS NOT NULL THEN
        PERFORM FROM chronocast.channels c WHERE c.id = channel FOR UPDATE;
    END IF;

    IF key IS NOT NULL THEN
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
    INSERT INTO chronocast.messages (channel_id, offset_, at, payload) VALUES (channel, broadcast."offset", clock_timestamp(), data);
    IF key IS NOT NULL THEN
        INSERT INTO chronocast.keys (channel_id, key, body, offset_, at)
        VALUES (channel, key_digest, body_digest, broadcast."offset", clock_timestamp());
    END IF;
    PERFORM pg_notify('chronocast', 'sql ' || channel || ':' || broadcast."offset");
END $$;

CREATE FUNCTION chronocast.broadcast(stream text, data text, key text DEFAULT NULL, OUT epoch bigint, OUT "offset" bigint)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM chronocast.broadcast(stream, convert_to(data, 'UTF8'), key)
$$;

REVOKE ALL ON FUNCTION chronocast.broadcast(text, bytea, text), chronocast.broadcast(text, text, text) FROM PUBLIC;
