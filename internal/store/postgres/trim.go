package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/chronocast/chronocast/history"
)

// Sizes of a trim step: its transaction stays in the milliseconds, so that no
// channel row is held for long.
const (
	trimChannels = 500  // channels looked at
	trimHeld     = 8    // channels trimmed
	trimRows     = 500  // messages deleted of one channel
	trimKeys     = 2000 // expired keys deleted
)

// keepWriters is how long a journal row is kept after its last batch.
const keepWriters = 30 * 24 * time.Hour

// trimLock is the advisory lock that lets one node trim at a time.
const trimLock = migrationLock + 1

// overdueSQL lists the next channels, by id, with what tells whether they keep
// too much: the first kept message's time, the count and the bytes.
const overdueSQL = `
SELECT c.id, s.name, c.first_offset, c.last_offset, c.bytes,
       (SELECT at FROM chronocast.messages WHERE channel_id = c.id AND offset_ >= c.first_offset ORDER BY offset_ LIMIT 1)
FROM (SELECT * FROM chronocast.channels WHERE id > $1 ORDER BY id LIMIT $2) c
JOIN chronocast.streams s USING (id) ORDER BY c.id`

// trimSQL moves one channel's floor as far as its limits ask, at most $5 rows,
// and deletes what lies below it, in one statement. A channel row that is held
// is left for the next round. Deleting by the primary key's range reads each
// row once.
//
//	$1 channel id, $2 keep count (0 is no limit), $3 keep bytes, $4 keep since
const trimSQL = `
WITH held AS (
	SELECT id, first_offset, last_offset, bytes FROM chronocast.channels WHERE id = $1 FOR UPDATE SKIP LOCKED
), oldest AS (
	SELECT m.offset_, m.at, octet_length(m.payload) AS size,
	       h.bytes - sum(octet_length(m.payload)) OVER (ORDER BY m.offset_) + octet_length(m.payload) AS kept
	FROM held h JOIN chronocast.messages m ON m.channel_id = h.id AND m.offset_ >= h.first_offset
	ORDER BY m.offset_ LIMIT $5
), goner AS (
	SELECT max(o.offset_) AS upto FROM oldest o, held h
	WHERE ($2::bigint > 0 AND o.offset_ <= h.last_offset - $2) OR ($3::bigint > 0 AND o.kept > $3) OR o.at <= $4
), gone AS (
	DELETE FROM chronocast.messages m USING goner WHERE m.channel_id = $1 AND m.offset_ <= goner.upto
	RETURNING octet_length(m.payload) AS size, m.at
), total AS (
	SELECT count(*) AS n, coalesce(sum(size), 0) AS bytes, max(at) AS at FROM gone
)
UPDATE chronocast.channels c SET first_offset = goner.upto + 1, bytes = c.bytes - total.bytes,
       trimmed_at = greatest(c.trimmed_at, total.at)
FROM goner, total WHERE c.id = $1 AND goner.upto IS NOT NULL RETURNING total.n`

const (
	trimKeysSQL = `DELETE FROM chronocast.keys WHERE ctid = ANY(ARRAY(
		SELECT ctid FROM chronocast.keys WHERE at <= $1::timestamptz - $2::interval ORDER BY at LIMIT $3 FOR UPDATE SKIP LOCKED))`
	trimWritersSQL = `DELETE FROM chronocast.writers WHERE at <= $1::timestamptz - $2::interval`
)

// Trim implements [history.Log]. One node of all trims at a time; for the
// others there is nothing to do.
func (s *Store) Trim(ctx context.Context, r history.Retention) (more bool, err error) {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return false, s.unavailable("trim", err)
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(ending) // after a commit it does nothing
	}()
	var mine bool
	var now time.Time
	// A step that a crash undoes is done again: it need not wait for the disk.
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1), coalesce($2::timestamptz, now()), set_config('synchronous_commit', 'off', true)`,
		int64(trimLock), s.clock()).Scan(&mine, &now, nil); err != nil || !mine {
		return false, s.unavailable("trim", err)
	}
	s.mu.Lock()
	cursor := s.cursor
	s.mu.Unlock()
	expired, err := tx.Exec(ctx, trimKeysSQL, now, s.opts.KeyWindow, trimKeys)
	if err == nil && cursor == 0 {
		_, err = tx.Exec(ctx, trimWritersSQL, now, keepWriters)
	}
	if err != nil {
		return false, s.unavailable("trim", err)
	}
	todo, cursor, err := s.overdue(ctx, tx, r, now, cursor)
	if err != nil {
		return false, s.unavailable("trim", err)
	}
	full := false
	steps := &pgx.Batch{}
	for _, o := range todo {
		since := time.Unix(0, 0)
		if o.limit.Age > 0 {
			since = now.Add(-o.limit.Age)
		}
		steps.Queue(trimSQL, o.id, int64(o.limit.Count), o.limit.Bytes, since, trimRows).QueryRow(func(row pgx.Row) error {
			var n int64
			err := row.Scan(&n)
			full = full || n == trimRows
			if errors.Is(err, pgx.ErrNoRows) {
				return nil // somebody holds the row: next time
			}
			return err
		})
	}
	if err := tx.SendBatch(ctx, steps).Close(); err != nil {
		return false, s.unavailable("trim", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return false, s.unavailable("trim", err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor = cursor
	s.full = s.full || full || expired.RowsAffected() == trimKeys
	if cursor != 0 {
		return true, nil
	}
	more = s.full // the round is over; go round again when a channel has more
	s.full = false
	return more, nil
}

type overdue struct {
	id    int64
	limit history.Limits
}

// overdue returns the next channels that keep too much, and where to go on; 0
// when all have been looked at.
func (s *Store) overdue(ctx context.Context, tx pgx.Tx, r history.Retention, now time.Time, after int64) (todo []overdue, cursor int64, err error) {
	found, err := tx.Query(ctx, overdueSQL, after, trimChannels)
	if err != nil {
		return nil, 0, err
	}
	seen := 0
	var id, first, last, bytes int64
	var name string
	var oldest *time.Time
	_, err = pgx.ForEachRow(found, []any{&id, &name, &first, &last, &bytes, &oldest}, func() error {
		if seen++; len(todo) == trimHeld {
			return nil
		}
		cursor = id
		l := r.For(name)
		// A first message from the future was stamped before the clock was set
		// back; older ones may follow it.
		if oldest != nil && ((l.Count > 0 && last-first+1 > int64(l.Count)) || (l.Bytes > 0 && bytes > l.Bytes) ||
			(l.Age > 0 && (now.Sub(*oldest) >= l.Age || oldest.After(now)))) {
			todo = append(todo, overdue{id, l})
		}
		return nil
	})
	if seen < trimChannels && (len(todo) < trimHeld || cursor == id) {
		cursor = 0
	}
	return todo, cursor, err
}
