-- A stream's channel row: whoever broadcasts to the stream moves last_offset
-- in the transaction that inserts the message. Trimming moves first_offset,
-- bytes and trimmed_at, and never last_offset.
CREATE TABLE channels (
    id           INTEGER PRIMARY KEY,
    name         TEXT    NOT NULL UNIQUE,
    epoch        INTEGER NOT NULL,             -- microseconds; the life epoch in meta may be newer and then counts
    last_offset  INTEGER NOT NULL,             -- newest offset ever committed
    first_offset INTEGER NOT NULL DEFAULT 1,   -- lowest offset kept; last_offset + 1 when none is
    bytes        INTEGER NOT NULL DEFAULT 0,   -- payload bytes kept
    trimmed_at   INTEGER NOT NULL DEFAULT 0    -- latest commit time among the messages trimmed
) STRICT;

-- The id is the global commit order. It is chosen by the store and never used
-- twice, so that new rows always go to the end of the table, trimming by age
-- reads from its beginning, and a copy that has lost its tail is recognized.
CREATE TABLE messages (
    id         INTEGER PRIMARY KEY,
    channel_id INTEGER NOT NULL,
    offset_    INTEGER NOT NULL,
    at         INTEGER NOT NULL,   -- commit time, microseconds since 1970
    payload    BLOB    NOT NULL
) STRICT;

-- Where a stream's messages are. Within one commit the messages of a stream
-- get consecutive ids, so that a run of them needs one row here: the message
-- with offset o has the id r.id + (o - r.first_offset), where r is the run with
-- the greatest first_offset <= o. A run ends where the stream's next one
-- begins. On a busy stream this costs next to nothing, where an index over
-- every message would cost a quarter of the throughput.
CREATE TABLE runs (
    channel_id   INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    id           INTEGER NOT NULL,
    PRIMARY KEY (channel_id, first_offset)
) STRICT, WITHOUT ROWID;

-- An idempotency key, under the id of the first message committed with it.
CREATE TABLE keys (
    id      INTEGER PRIMARY KEY,
    digest  BLOB    NOT NULL UNIQUE,   -- of stream and key
    body    BLOB    NOT NULL,          -- digest of the payload
    offset_ INTEGER NOT NULL,
    at      INTEGER NOT NULL
) STRICT;

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
