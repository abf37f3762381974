-- Streams, their numbering and their messages.

-- One row: the life of this database's numbering, and which server it was last
-- seen on. A stream counts in the epoch greatest(channels.epoch, life.epoch).
CREATE TABLE chronocast.life (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch       bigint  NOT NULL,
    system_id   text    NOT NULL,
    timeline    text    NOT NULL,
    -- While this timeline was written every commit had reached a synchronous
    -- replica before it was acknowledged, as far as the nodes have seen.
    synchronous boolean NOT NULL DEFAULT false
);

-- Names stand apart from the numbering, so that the row every broadcast
-- rewrites stays narrow.
CREATE TABLE chronocast.streams (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
         CHECK (octet_length(name) BETWEEN 1 AND 255 AND name !~ '[\u0001-\u001f\u007f-\u009f]')
);

-- The channel row: locked by every broadcast to the stream. No index on a
-- column that a broadcast changes and pages mostly empty: each bump is a HOT
-- update.
CREATE TABLE chronocast.channels (
    id           bigint PRIMARY KEY,
    epoch        bigint NOT NULL DEFAULT 0,
    first_offset bigint NOT NULL DEFAULT 1,
    last_offset  bigint NOT NULL DEFAULT 0 CHECK (last_offset <= 9007199254740991),
    bytes        bigint NOT NULL DEFAULT 0,
    trimmed_at   timestamptz
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 4000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000);

CREATE TABLE chronocast.messages (
    channel_id bigint      NOT NULL,
    offset_    bigint      NOT NULL,
    at         timestamptz NOT NULL,
    payload    bytea       NOT NULL,
    PRIMARY KEY (channel_id, offset_)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);

-- Payloads are often compressed already or short; the default compression
-- costs more than the space it saves.
ALTER TABLE chronocast.messages ALTER COLUMN payload SET STORAGE EXTERNAL;

-- Idempotency keys: digests of the key and of the body it was first used for.
CREATE TABLE chronocast.keys (
    channel_id bigint      NOT NULL,
    key        uuid        NOT NULL,
    body       uuid        NOT NULL,
    offset_    bigint      NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (channel_id, key)
);
CREATE INDEX keys_at ON chronocast.keys (at);

-- The last batch of every writing connection, in the same transaction as the
-- batch: it tells a writer whose link broke during the commit what became of
-- it. A closed writer commits nothing more. Rows stay in line, so that writing
-- one is one write.
CREATE TABLE chronocast.writers (
    id     uuid PRIMARY KEY,
    seq    bigint NOT NULL,
    lasts  bigint[] NOT NULL, -- of the batch's channels, by channel id
    at     timestamptz NOT NULL,
    closed boolean NOT NULL DEFAULT false
) WITH (fillfactor = 20, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE chronocast.writers ALTER COLUMN lasts SET STORAGE EXTERNAL;
