package postgres

// The statements that commit a batch in one round trip. The channel rows are
// bumped in the order of $1, which is sorted, so that two nodes never lock the
// same rows in opposite orders; each offset is computed from the locked row,
// never from the statement's snapshot.
//
// The journal proves three things, or a null in its seq fails the statement, as
// does a division by zero when the journal's row is gone: the database is in
// the life of the numbering this connection was checked against, the writer's
// last acknowledged batch is in it, and nobody has closed the writer to learn
// the fate of a batch whose link broke.
//
//	$1 channel ids, sorted and distinct; $2 messages and $3 payload bytes for each
//	$4 per message: index of its channel in $1, from 1, $5 how far before its channel's last, $6 payload
//	$7 per keyed message: index of its channel in $1, $8 how far back, $9 key digest, $10 body digest
//	$11 the writer, $12 the number of its last acknowledged batch
//	$13 table and $14 epoch of the life it was checked against
//	$15 the name to ring the doorbell with, or null for silence
//	$16 the time, or null for the server's own
//
// A channel row that somebody has removed must not be made here, without a
// name: many channels are bumped by an insert, which is the quickest way to lock
// rows in a given order, and one that finds no row shows by its first offset of
// 0. Its messages then have no offset, which the table refuses. One channel is
// bumped by an update, which returns no row.
//
// A message finds its channel's new last offset by its index in an array. A join
// would do the same, but its plan is made before anything is known of the
// arrays: one that compares each with each takes longer than all the rest.
//
// A batch without keys is spared the set-up of an insert of nothing, and one for
// a single stream the arrays and joins: that is every batch of a hot stream. A
// lone message has a statement of its own.
var batchSQL = [5]string{
	0:              manySQL(unkeyedCTE),
	keyed:          manySQL(manyKeyedCTE),
	single:         singleSQL(unkeyedCTE),
	single | keyed: singleSQL(singleKeyedCTE),
	lone:           loneSQL,
}

// Indexes of batchSQL.
const (
	keyed  = 1
	single = 2
	lone   = 4
)

// batchNames are the names they are prepared under.
var batchNames = [5]string{"chronocast_many", "chronocast_many_keyed", "chronocast_single", "chronocast_single_keyed", "chronocast_lone"}

const (
	at = `coalesce($16::timestamptz, statement_timestamp())`

	manyKeyedCTE = `
), keyed AS (
	INSERT INTO chronocast.keys (channel_id, key, body, offset_, at)
	SELECT ($1::bigint[])[k.i], k.key, k.body, (SELECT lasts FROM told)[k.i] - k.back, ` + at + `
	FROM unnest($7::bigint[], $8::bigint[], $9::uuid[], $10::uuid[]) AS k (i, back, key, body)`

	singleKeyedCTE = `
), keyed AS (
	INSERT INTO chronocast.keys (channel_id, key, body, offset_, at)
	SELECT b.id, k.key, k.body, b.last_offset - k.back, ` + at + `
	FROM bump b, unnest($7::bigint[], $8::bigint[], $9::uuid[], $10::uuid[]) AS k (i, back, key, body)`

	unkeyedCTE = `
), unused AS (
	SELECT $7::bigint[], $8::bigint[], $9::uuid[], $10::uuid[]`

	journalSet = `SET seq = CASE WHEN w.seq = $12::bigint AND NOT w.closed AND life.tableoid = $13::oid AND life.epoch = $14::bigint THEN w.seq + 1 END,
		at = ` + at + `, lasts = `

	told = `life.epoch, (extract(epoch FROM ` + at + `) * 1000000)::bigint, 1 / (SELECT count(*) FROM journal)`
)

func manySQL(keys string) string {
	return `
WITH bump AS (
	INSERT INTO chronocast.channels AS c (id, first_offset, last_offset, bytes)
	SELECT a.id, 0, a.n, a.bytes FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS a (id, n, bytes)
	ON CONFLICT (id) DO UPDATE SET last_offset = c.last_offset + excluded.last_offset, bytes = c.bytes + excluded.bytes
	RETURNING c.id, CASE WHEN c.first_offset > 0 THEN c.last_offset END AS last_offset, c.epoch
), told AS MATERIALIZED (
	SELECT array_agg(last_offset) AS lasts, array_agg(epoch) AS epochs FROM bump
), stored AS (
	INSERT INTO chronocast.messages (channel_id, offset_, at, payload)
	SELECT ($1::bigint[])[r.i], (SELECT lasts FROM told)[r.i] - r.back, ` + at + `, r.payload
	FROM unnest($4::bigint[], $5::bigint[], $6::bytea[]) AS r (i, back, payload)` + keys + `
), journal AS (
	UPDATE chronocast.writers w ` + journalSet + `told.lasts
	FROM told, chronocast.life WHERE w.id = $11::uuid RETURNING 1
)
SELECT told.lasts, told.epochs, ` + told + `,
       CASE WHEN $15::text IS NOT NULL THEN pg_notify('` + doorbell + `',
           CASE WHEN cardinality(told.lasts) > 150 THEN $15::text || ' *'
           ELSE (SELECT $15::text || ' ' || string_agg(d.i || ':' || d.l, ',') FROM unnest($1::bigint[], told.lasts) AS d (i, l)) END) END::text
FROM told, chronocast.life`
}

func singleSQL(keys string) string {
	return `
WITH bump AS (
	UPDATE chronocast.channels c SET last_offset = c.last_offset + ($2::bigint[])[1], bytes = c.bytes + ($3::bigint[])[1]
	WHERE c.id = ($1::bigint[])[1]
	RETURNING c.id, c.last_offset, c.epoch
), stored AS (
	INSERT INTO chronocast.messages (channel_id, offset_, at, payload)
	SELECT b.id, b.last_offset - r.back, ` + at + `, r.payload FROM bump b, unnest($4::bigint[], $5::bigint[], $6::bytea[]) AS r (i, back, payload)` + keys + `
), journal AS (
	UPDATE chronocast.writers w ` + journalSet + `ARRAY[bump.last_offset]
	FROM bump, chronocast.life WHERE w.id = $11::uuid RETURNING 1
)
SELECT ARRAY[bump.last_offset], ARRAY[bump.epoch], ` + told + `,
       CASE WHEN $15::text IS NOT NULL THEN pg_notify('` + doorbell + `', $15::text || ' ' || bump.id || ':' || bump.last_offset) END::text
FROM bump, chronocast.life`
}

// loneSQL commits one message without a key. It does what the others do with a
// quarter less of the server's time: each part reads the part before it and
// nothing else. A message whose journal row or channel row is gone would have
// no offset, which the table refuses: nothing of the statement is stored then.
//
//	$1 channel id, $2 payload bytes, $3 payload
//	$4 the writer, $5 the number of its last acknowledged batch
//	$6 table and $7 epoch of the life it was checked against
//	$8 the name to ring the doorbell with, or null for silence
//	$9 the time, or null for the server's own
const loneSQL = `
WITH bump AS (
	UPDATE chronocast.channels c SET last_offset = c.last_offset + 1, bytes = c.bytes + $2::bigint WHERE c.id = $1::bigint
	RETURNING c.last_offset, c.epoch
), journal AS (
	UPDATE chronocast.writers w SET
		seq = CASE WHEN w.seq = $5::bigint AND NOT w.closed
			AND (SELECT l.tableoid = $6::oid AND l.epoch = $7::bigint FROM chronocast.life l) THEN w.seq + 1 END,
		at = coalesce($9::timestamptz, statement_timestamp()), lasts = ARRAY[b.last_offset]
	FROM bump b WHERE w.id = $4::uuid RETURNING b.last_offset, b.epoch
)
INSERT INTO chronocast.messages (channel_id, offset_, at, payload)
VALUES ($1, (SELECT last_offset FROM journal), coalesce($9, statement_timestamp()), $3::bytea)
RETURNING offset_, (SELECT epoch FROM journal), (extract(epoch FROM at) * 1000000)::bigint,
	CASE WHEN $8::text IS NOT NULL THEN pg_notify('` + doorbell + `', $8::text || ' ' || channel_id || ':' || offset_) END::text`

// doorbell is the NOTIFY channel. Payload: the ringing node's name, a blank, and
// CHANNEL:LAST pairs, or * for "look".
const doorbell = "chronocast"

// writerSQL opens the journal of a writer ($1). $2 is the time or null.
const writerSQL = `INSERT INTO chronocast.writers (id, seq, lasts, at) VALUES ($1, 0, '{}', coalesce($2::timestamptz, now()))`

// closeSQL ends a writer and tells its last batch. It waits for a batch that is
// still open, and a batch that has not come to its journal row yet will fail
// there: what is read here is final. $1 the writer, $2 the channel ids of the
// batch in question.
const closeSQL = `
WITH shut AS (
	INSERT INTO chronocast.writers AS w (id, seq, lasts, at, closed) VALUES ($1, 0, '{}', now(), true)
	ON CONFLICT (id) DO UPDATE SET closed = true RETURNING seq, lasts, at
)
SELECT shut.seq, shut.lasts, life.epoch, (extract(epoch FROM shut.at) * 1000000)::bigint,
       ARRAY(SELECT coalesce(c.epoch, 0) FROM unnest($2::bigint[]) WITH ORDINALITY AS u (id, n)
             LEFT JOIN chronocast.channels c ON c.id = u.id ORDER BY u.n)
FROM shut, chronocast.life`

// namesSQL makes the rows of streams that have none; two nodes that make the
// same stream get the same id. The channel row is made with the name, so that
// whoever knows the id can lock it.
const namesSQL = `
WITH made AS (
	INSERT INTO chronocast.streams AS s (name) SELECT unnest($1::text[])
	ON CONFLICT (name) DO UPDATE SET name = s.name RETURNING name, id
), numbered AS (
	INSERT INTO chronocast.channels (id) SELECT id FROM made ORDER BY id ON CONFLICT (id) DO NOTHING
)
SELECT name, id FROM made`

// knownSQL finds the streams $1 that have a channel row.
const knownSQL = `SELECT s.name, s.id FROM chronocast.streams s JOIN chronocast.channels c ON c.id = s.id WHERE s.name = ANY($1)`

// freeSQL locks those of the channels $1 that nobody holds. What is waited for
// after it is no channel row, and may take $2 milliseconds.
const freeSQL = `
WITH patient AS MATERIALIZED (SELECT set_config('lock_timeout', $2, true))
SELECT l.id FROM patient, (SELECT id FROM chronocast.channels WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED) AS l`

// expireSQL forgets those of the keys ($1 channel ids, $2 keys) whose window has
// passed: $3 the window, $4 the time or null.
const expireSQL = `
DELETE FROM chronocast.keys WHERE ctid = ANY(ARRAY(
	SELECT k.ctid FROM chronocast.keys k JOIN unnest($1::bigint[], $2::uuid[]) AS a (id, key) ON k.channel_id = a.id AND k.key = a.key
	WHERE k.at <= coalesce($4::timestamptz, statement_timestamp()) - $3::interval ORDER BY k.channel_id, k.key FOR UPDATE OF k))`

// keysSQL finds what is known of keys ($1 channel ids, $2 keys).
const keysSQL = `
SELECT k.channel_id, k.key, k.body, k.offset_, (extract(epoch FROM k.at) * 1000000)::bigint, greatest(c.epoch, life.epoch)
FROM unnest($1::bigint[], $2::uuid[]) AS a (id, key)
JOIN chronocast.keys k ON k.channel_id = a.id AND k.key = a.key
JOIN chronocast.channels c ON c.id = k.channel_id, chronocast.life`
