package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

const (
	sqlSpan = `SELECT id, epoch, first_offset, last_offset, trimmed_at FROM channels WHERE name = ?`
	sqlAt   = `SELECT at FROM messages WHERE id = ` + idOf
	// idOf is where the message of stream ?1 with offset ?2 is.
	idOf = `(SELECT r.id + ?2 - r.first_offset FROM runs r
		WHERE r.channel_id = ?1 AND r.first_offset <= ?2 ORDER BY r.first_offset DESC LIMIT 1)`
	// fromRuns walks through the messages of stream ?1 with offsets from ?2 on.
	fromRuns = ` FROM runs r CROSS JOIN messages m
		ON m.id >= r.id + max(?2 - r.first_offset, 0)
		AND m.id < r.id - r.first_offset + ifnull(
			(SELECT n.first_offset FROM runs n WHERE n.channel_id = r.channel_id AND n.first_offset > r.first_offset
				ORDER BY n.first_offset LIMIT 1),
			(SELECT c.last_offset + 1 FROM channels c WHERE c.id = r.channel_id))
		WHERE r.channel_id = ?1 AND r.first_offset >= ifnull(
			(SELECT max(f.first_offset) FROM runs f WHERE f.channel_id = ?1 AND f.first_offset <= ?2), 0)
		ORDER BY r.channel_id, r.first_offset, m.id LIMIT ?3`
	sqlPage  = `SELECT m.offset_, m.at, m.payload` + fromRuns
	sqlSizes = `SELECT m.offset_, length(m.payload), m.at, m.id` + fromRuns

	ctxRows     = 64 // rows read between two looks at the context
	ctxSpans    = 64
	maxPageRows = 1 << 20
)

// read runs f on a reading connection, in one snapshot of the database.
// Statements are run without the context, which would cost a goroutine each;
// f looks at it between rows.
func (s *Store) read(ctx context.Context, what string, f func(c *conn) error) error {
	if ctx.Err() != nil {
		return readError(what, ended(ctx))
	}
	var c *conn
	select {
	case c = <-s.readers:
	case <-s.done:
		return readError(what, errReadClosed)
	case <-ctx.Done():
		return readError(what, ended(ctx))
	}
	defer func() { s.readers <- c }()
	bg := context.Background()
	if err := c.exec(bg, "BEGIN"); err != nil {
		return readError(what, err)
	}
	err := f(c)
	if e := c.exec(bg, "COMMIT"); err == nil {
		err = e
	}
	return readError(what, err)
}

// channel is a channel row as readers see it.
type channel struct {
	protocol.Span
	id        int64 // 0 when the stream was never used
	trimmedAt int64
}

func (s *Store) channel(c *conn, stream string) (channel, error) {
	ch := channel{Span: protocol.Span{Epoch: protocol.Epoch(s.epoch), First: 1}}
	_, err := c.first(context.Background(), sqlSpan, func(row []driver.Value) {
		ch.id = row[0].(int64)
		ch.Epoch = protocol.Epoch(max(row[1].(int64), s.epoch))
		ch.First, ch.Last = uint64(row[2].(int64)), uint64(row[3].(int64))
		ch.trimmedAt = row[4].(int64)
	}, stream)
	return ch, err
}

// Range implements [history.Log].
func (s *Store) Range(ctx context.Context, stream string, after uint64, limit, maxBytes int) (history.Page, error) {
	var page history.Page
	err := s.read(ctx, "range", func(c *conn) error {
		ch, err := s.channel(c, stream)
		page.Span = ch.Span
		if err != nil || after >= ch.Last || after+1 < ch.First || limit <= 0 {
			return err
		}
		limit = min(limit, maxPageRows, int(min(ch.Last-after, maxPageRows)))
		page.Messages = make([]protocol.Message, 0, min(limit, 1024))
		bytes, next := 0, after+1
		return c.query(context.Background(), sqlPage, func(row []driver.Value) error {
			m := protocol.Message{Offset: uint64(row[0].(int64)), At: row[1].(int64)}
			m.Data, _ = row[2].([]byte)
			if m.Offset != next {
				return fmt.Errorf("stream %q has a hole before offset %d", stream, m.Offset)
			}
			if bytes += len(m.Data); bytes > maxBytes && len(page.Messages) > 0 {
				return errStop
			}
			page.Messages = append(page.Messages, m)
			if next++; next%ctxRows == 0 && ctx.Err() != nil {
				return ended(ctx)
			}
			return nil
		}, ch.id, int64(next), int64(limit))
	})
	if err != nil {
		return history.Page{}, err
	}
	return page, nil
}

// Heads implements [history.Log].
func (s *Store) Heads(ctx context.Context, streams []string) ([]protocol.Span, error) {
	spans := make([]protocol.Span, 0, len(streams))
	err := s.read(ctx, "heads", func(c *conn) error {
		for i, stream := range streams {
			if i%ctxSpans == 0 && ctx.Err() != nil {
				return ended(ctx)
			}
			ch, err := s.channel(c, stream)
			if err != nil {
				return err
			}
			spans = append(spans, ch.Span)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return spans, nil
}

// Since implements [history.Log]. Commit times ascend with the offsets, so the
// place is found by halving; only a stream with messages from before a large
// step of the clock backwards is read through.
func (s *Store) Since(ctx context.Context, stream string, at int64) (span protocol.Span, after uint64, err error) {
	err = s.read(ctx, "since", func(c *conn) error {
		ch, err := s.channel(c, stream)
		span, after = ch.Span, ch.Last
		if err != nil || ch.Last == 0 {
			return err
		}
		if ch.First > 1 && ch.trimmedAt >= at {
			after = ch.First - 2
			return nil
		}
		if ch.First > ch.Last {
			return nil
		}
		first, err := c.number(context.Background(), "SELECT "+idOf, ch.id, int64(ch.First))
		if err != nil {
			return err
		}
		if first <= s.clockBack.Load() {
			after, err = scanSince(ctx, c, ch, at)
		} else {
			after, err = searchSince(ctx, c, ch, at)
		}
		return err
	})
	if err != nil {
		return protocol.Span{}, 0, err
	}
	return span, after, nil
}

func searchSince(ctx context.Context, c *conn, ch channel, at int64) (uint64, error) {
	low, high := ch.First, ch.Last+1 // the lowest offset committed at or after at lies in [low, high]
	for low < high {
		if err := ctx.Err(); err != nil {
			return 0, ended(ctx)
		}
		middle := low + (high-low)/2
		t, err := c.number(context.Background(), sqlAt, ch.id, int64(middle))
		if err != nil {
			return 0, err
		}
		if t >= at {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low - 1, nil
}

func scanSince(ctx context.Context, c *conn, ch channel, at int64) (uint64, error) {
	after := ch.Last
	err := c.query(context.Background(), sqlSizes, func(row []driver.Value) error {
		offset := uint64(row[0].(int64))
		if row[2].(int64) >= at {
			after = offset - 1
			return errStop
		}
		if offset%ctxRows == 0 && ctx.Err() != nil {
			return ended(ctx)
		}
		return nil
	}, ch.id, int64(ch.First), int64(ch.Last-ch.First+1))
	return after, err
}
