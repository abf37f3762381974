package postgres

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

// rangeSQL reads the span and a page in one snapshot. The running sum of sizes
// is computed before a payload is fetched, so that a page of few large messages
// costs no more than it returns.
const rangeSQL = `
SELECT life.tableoid, greatest(c.epoch, life.epoch), coalesce(c.first_offset, 1), coalesce(c.last_offset, 0),
       m.offset_, (extract(epoch FROM m.at) * 1000000)::bigint, m.payload
FROM chronocast.life
LEFT JOIN chronocast.streams s ON s.name = $1
LEFT JOIN chronocast.channels c ON c.id = s.id
LEFT JOIN LATERAL (
	SELECT * FROM (
		SELECT p.offset_, p.at, p.payload,
		       sum(octet_length(p.payload)) OVER (ORDER BY p.offset_) AS upto, row_number() OVER (ORDER BY p.offset_) AS nth
		FROM (SELECT offset_, at, payload FROM chronocast.messages
		      WHERE channel_id = c.id AND offset_ > $2 ORDER BY offset_ LIMIT $3) AS p
	) AS sized WHERE nth = 1 OR upto <= $4
) AS m ON $2 >= c.first_offset - 1
ORDER BY m.offset_`

// Range implements [history.Log].
func (s *Store) Range(ctx context.Context, stream string, after uint64, limit, maxBytes int) (page history.Page, err error) {
	err = s.read(ctx, "range", func(ctx context.Context) (table uint32, err error) {
		page.Messages = nil
		found, err := s.pool.Query(ctx, rangeSQL, stream, int64(after), limit, int64(maxBytes))
		if err != nil {
			return 0, err
		}
		var epoch, first, last int64
		var offset, at *int64
		var payload []byte
		_, err = pgx.ForEachRow(found, []any{&table, &epoch, &first, &last, &offset, &at, &payload}, func() error {
			if offset != nil {
				page.Messages = append(page.Messages, protocol.Message{Offset: uint64(*offset), At: *at, Data: payload})
				payload = nil
			}
			return nil
		})
		page.Span = protocol.Span{Epoch: protocol.Epoch(epoch), First: uint64(first), Last: uint64(last)}
		return table, err
	})
	if err != nil {
		return history.Page{}, err
	}
	if limit > 0 {
		s.whole(stream, after, &page)
	}
	return page, nil
}

// whole makes sure that a page passes over nothing. Messages that somebody has
// deleted by hand are trimmed, as far as readers are concerned: the page ends
// before them, and one that would begin with them has none and says where the
// stream begins for this reader.
func (s *Store) whole(stream string, after uint64, page *history.Page) {
	if after >= page.Last || after+1 < page.First {
		return
	}
	for n, m := range page.Messages {
		if m.Offset == after+1+uint64(n) {
			continue
		}
		if n == 0 {
			page.First = m.Offset
		}
		page.Messages = page.Messages[:n]
		break
	}
	if len(page.Messages) > 0 {
		return
	}
	if page.First <= after+1 {
		page.First = page.Last + 1
	}
	s.log.Warn("messages are missing that were not trimmed; readers are told so", zap.String("stream", stream),
		zap.Uint64("after", after), zap.Uint64("until", page.First))
}

// read runs one query, whose answer comes with the table that tells which life
// it is from. When that is not the one this node knows, somebody has put another
// database in the old one's place: nothing of it is told before the new life
// was looked at.
func (s *Store) read(ctx context.Context, what string, query func(context.Context) (table uint32, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		var table uint32
		err := s.ask(ctx, func() (err error) { table, err = query(ctx); return err })
		refused := refusal(err)
		strange := refused != nil && (refused.Code[:2] == "42" || refused.Code == "3F000" || refused.Code == "0A000" || refused.Code == "26000")
		if attempt > 0 || !strange && (err != nil || table == s.life.current().table) {
			return s.unavailable(what, err)
		}
		if err := s.Sight(ctx); err != nil {
			return err
		}
	}
}

// ask runs a query, and once more on a new connection when the one it was given
// broke: the server may have ended it while it was idle, and reading twice does
// no harm. The pool's other connections are likely to be broken, too.
func (s *Store) ask(ctx context.Context, query func() error) error {
	err := query()
	if !broken(err) || ctx.Err() != nil {
		return err
	}
	s.pool.Reset()
	return query()
}

// broken says that a connection that had been good has ended. One that could
// not be made at all, and one that is silent, are not worth another try.
func broken(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var told *pgconn.PgError
	var dialed *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &dialed):
		return false
	case errors.As(err, &told):
		return told.SeverityUnlocalized == "FATAL" || told.SeverityUnlocalized == "PANIC" || told.Code[:2] == "08"
	case errors.As(err, &network):
		return !network.Timeout()
	}
	return true // EOF, and whatever else ends a connection
}

// sinceSQL finds the first kept message committed at or after a time. Commit
// times ascend with offsets but for steps of the server's clock, so the
// earliest such offset is searched among all that are kept: it is the one after
// which none is older.
const sinceSQL = `
SELECT life.tableoid, greatest(c.epoch, life.epoch), coalesce(c.first_offset, 1), coalesce(c.last_offset, 0), c.trimmed_at >= $2,
       (SELECT min(offset_) FROM chronocast.messages WHERE channel_id = c.id AND offset_ >= c.first_offset AND at >= $2),
       (SELECT min(offset_) FROM chronocast.messages WHERE channel_id = c.id AND offset_ >= c.first_offset)
FROM chronocast.life
LEFT JOIN chronocast.streams s ON s.name = $1
LEFT JOIN chronocast.channels c ON c.id = s.id`

// Since implements [history.Log].
func (s *Store) Since(ctx context.Context, stream string, at int64) (span protocol.Span, after uint64, err error) {
	var trimmed *bool
	var next, kept *int64
	err = s.read(ctx, "since", func(ctx context.Context) (table uint32, err error) {
		var epoch, first, last int64
		err = s.pool.QueryRow(ctx, sinceSQL, stream, time.UnixMicro(at)).Scan(&table, &epoch, &first, &last, &trimmed, &next, &kept)
		span = protocol.Span{Epoch: protocol.Epoch(epoch), First: uint64(first), Last: uint64(last)}
		return table, err
	})
	switch {
	case err != nil:
		return protocol.Span{}, 0, err
	case span.First <= span.Last && (kept == nil || uint64(*kept) > span.First):
		// Somebody has deleted the oldest by hand, and nobody knows their times.
		span.First = span.Last + 1
		if kept != nil {
			span.First = uint64(*kept)
		}
		return span, span.First - 2, nil
	case trimmed != nil && *trimmed && span.First > 1:
		return span, span.First - 2, nil
	case next != nil:
		return span, uint64(*next) - 1, nil
	}
	return span, span.Last, nil
}

const headsSQL = `
SELECT life.tableoid, greatest(c.epoch, life.epoch), coalesce(c.first_offset, 1), coalesce(c.last_offset, 0)
FROM chronocast.life, unnest($1::text[]) WITH ORDINALITY AS a (name, n)
LEFT JOIN chronocast.streams s ON s.name = a.name COLLATE "C"
LEFT JOIN chronocast.channels c ON c.id = s.id
ORDER BY a.n`

// Heads implements [history.Log].
func (s *Store) Heads(ctx context.Context, streams []string) ([]protocol.Span, error) {
	if len(streams) == 0 {
		return nil, nil
	}
	spans := make([]protocol.Span, 0, len(streams))
	err := s.read(ctx, "heads", func(ctx context.Context) (table uint32, err error) {
		spans = spans[:0]
		found, err := s.pool.Query(ctx, headsSQL, streams)
		if err != nil {
			return 0, err
		}
		var epoch, first, last int64
		_, err = pgx.ForEachRow(found, []any{&table, &epoch, &first, &last}, func() error {
			spans = append(spans, protocol.Span{Epoch: protocol.Epoch(epoch), First: uint64(first), Last: uint64(last)})
			return nil
		})
		return table, err
	})
	if err != nil {
		return nil, err
	}
	return spans, nil
}

// Names returns the names of channels, for those of ids that exist.
func (s *Store) Names(ctx context.Context, ids []int64) (map[int64]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StatementTimeout)
	defer cancel()
	var names map[int64]string
	err := s.ask(ctx, func() error {
		names = make(map[int64]string, len(ids))
		found, err := s.pool.Query(ctx, `SELECT id, name FROM chronocast.streams WHERE id = ANY($1)`, ids)
		if err != nil {
			return err
		}
		var id int64
		var name string
		_, err = pgx.ForEachRow(found, []any{&id, &name}, func() error { names[id] = name; return nil })
		return err
	})
	if err != nil {
		return nil, s.unavailable("names", err)
	}
	return names, nil
}
