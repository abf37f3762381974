package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"time"

	"github.com/chronocast/chronocast/history"
)

// trimmer remembers where retention stands. Everything in it can be found
// again by a full scan, which is what happens after Open and when the limits
// change.
type trimmer struct {
	retention history.Retention
	started   bool

	// scan is the channel id up to which the full scan has come; -1 when it is
	// done.
	scan  int64
	queue []int64 // channels to look at, taken from the dirty set
	ages  []ageCursor
	keys  int64 // id up to which keys were pruned
	turn  int   // the kind of work done last
}

// ageCursor follows the messages of all streams with one age limit through the
// table in commit order, which is the order in which they expire.
type ageCursor struct {
	age time.Duration
	id  int64 // messages up to this one were looked at
}

// kinds of work: by size, by age, keys.
const kinds = 3

// stepRows is how many messages one step removes at most.
const stepRows = 500

const (
	sqlChannelByID  = `SELECT name, first_offset, last_offset, bytes FROM channels WHERE id = ?`
	sqlNextChannels = `SELECT id FROM channels WHERE id > ? ORDER BY id LIMIT ?`
	sqlOldest       = `SELECT id, channel_id, offset_, at FROM messages WHERE id > ? ORDER BY id LIMIT ?`
	sqlDeleteRange  = `DELETE FROM messages WHERE id BETWEEN ? AND ?`
	sqlDeleteRuns   = `DELETE FROM runs WHERE channel_id = ?1 AND first_offset <
		(SELECT max(first_offset) FROM runs WHERE channel_id = ?1 AND first_offset <= ?2)`
	sqlRaiseFloor    = `UPDATE channels SET first_offset = ?, bytes = bytes - ?, trimmed_at = max(trimmed_at, ?) WHERE id = ?`
	sqlTrimmedID     = `INSERT INTO meta (name, value) VALUES ('trimmed_id', ?) ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)`
	sqlOldestKeys    = `SELECT id, at FROM keys WHERE id > ? ORDER BY id LIMIT ?`
	sqlDeleteOldKeys = `DELETE FROM keys WHERE id <= ?`
)

// cut is what one step removes from one stream: all below first.
type cut struct {
	channel int64
	first   int64 // the new floor
	ids     []int64
	bytes   int64
	at      int64 // latest commit time removed
}

// Trim implements [history.Log]. A step is chosen on a reading connection and
// then made in one transaction; only Trim removes messages, so what was chosen
// is still there.
func (s *Store) Trim(ctx context.Context, r history.Retention) (more bool, err error) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	s.prepareTrim(r)

	var cuts []cut
	var keys int64
	t := s.trim // advanced only when the step is made
	err = s.read(ctx, "trim", func(c *conn) error {
		// Each kind of work has its turn: a stream that is always over its
		// limit must not keep the old messages of others for ever.
		for range kinds {
			var pending bool
			var err error
			switch t.turn = (t.turn + 1) % kinds; t.turn {
			case 0:
				cuts, pending, err = s.chooseBySize(ctx, c, &t, r)
			case 1:
				cuts, pending, err = s.chooseByAge(c, &t, r)
			case 2:
				keys, pending, err = s.chooseKeys(c, &t)
			}
			if err != nil {
				return err
			}
			if len(cuts) > 0 || keys > 0 {
				more = true
				return nil
			}
			more = more || pending
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	if more && (len(cuts) > 0 || keys > 0) {
		if err := s.remove(ctx, cuts, keys); err != nil {
			s.trim.started = false // look at everything again
			return false, err
		}
	}
	s.trim = t
	return more, nil
}

func (s *Store) prepareTrim(r history.Retention) {
	t := &s.trim
	if !t.started || t.retention.Default != r.Default || !slices.Equal(t.retention.Rules, r.Rules) {
		*t = trimmer{retention: history.Retention{Default: r.Default, Rules: slices.Clone(r.Rules)}, started: true, turn: kinds - 1}
		ages := map[time.Duration]bool{r.Default.Age: true}
		for _, rule := range r.Rules {
			ages[rule.Age] = true
		}
		delete(ages, 0)
		for age := range ages {
			t.ages = append(t.ages, ageCursor{age: age})
		}
	}
	if len(t.queue) == 0 {
		s.dmu.Lock()
		for id := range s.dirty {
			t.queue = append(t.queue, id)
		}
		clear(s.dirty)
		s.dmu.Unlock()
	}
}

// chooseBySize looks at the streams that have grown, and at those of the full
// scan, and lists what is over their limits of count and bytes. pending says
// that there are more streams to look at.
func (s *Store) chooseBySize(ctx context.Context, c *conn, t *trimmer, r history.Retention) (cuts []cut, pending bool, err error) {
	rows := 0
	seen := make(map[int64]bool)
	for looked := 0; rows < stepRows && looked < stepRows && ctx.Err() == nil; looked++ {
		id, ok, err := s.nextChannel(c, t)
		if err != nil {
			return nil, false, err
		}
		if !ok {
			break
		}
		if seen[id] { // it has grown and is in the full scan too
			continue
		}
		seen[id] = true
		k, unfinished, err := s.cutToSize(c, id, r, stepRows-rows)
		if err != nil {
			return nil, false, err
		}
		if unfinished {
			t.queue = append(t.queue, id)
		}
		if len(k.ids) > 0 {
			cuts = append(cuts, k)
			rows += len(k.ids)
		}
	}
	return cuts, len(t.queue) > 0 || t.scan >= 0, nil
}

// nextChannel returns the next channel to look at for count and bytes: those
// of the full scan first.
func (s *Store) nextChannel(c *conn, t *trimmer) (id int64, ok bool, err error) {
	if len(t.queue) == 0 && t.scan >= 0 {
		err := c.query(context.Background(), sqlNextChannels, func(row []driver.Value) error {
			t.scan = row[0].(int64)
			t.queue = append(t.queue, t.scan)
			return nil
		}, t.scan, int64(stepRows))
		if err != nil {
			return 0, false, err
		}
		if len(t.queue) == 0 {
			t.scan = -1
		}
	}
	if len(t.queue) == 0 {
		return 0, false, nil
	}
	id = t.queue[0]
	t.queue = t.queue[1:]
	return id, true, nil
}

// cutToSize finds what a stream keeps beyond its limits of count and bytes, up
// to rows messages; unfinished says that there is more.
func (s *Store) cutToSize(c *conn, id int64, r history.Retention, rows int) (_ cut, unfinished bool, err error) {
	var name string
	var first, last, bytes int64
	found, err := c.first(context.Background(), sqlChannelByID, func(row []driver.Value) {
		name, first, last, bytes = row[0].(string), row[1].(int64), row[2].(int64), row[3].(int64)
	}, id)
	if err != nil || !found {
		return cut{}, false, err
	}
	limits := r.For(name)
	count := last - first + 1
	over := func() bool {
		return count > 0 && (limits.Count > 0 && count > int64(limits.Count) || limits.Bytes > 0 && bytes > limits.Bytes)
	}
	if !over() {
		return cut{}, false, nil
	}
	k := cut{channel: id, first: first}
	err = c.query(context.Background(), sqlSizes, func(row []driver.Value) error {
		if !over() {
			return errStop
		}
		k.take(row)
		count--
		bytes -= row[1].(int64)
		return nil
	}, id, first, int64(rows))
	return k, over(), err
}

// take adds one row of sqlSizes to the cut.
func (k *cut) take(row []driver.Value) {
	k.first = row[0].(int64) + 1
	k.bytes += row[1].(int64)
	k.at = max(k.at, row[2].(int64))
	k.ids = append(k.ids, row[3].(int64))
}

// chooseByAge looks at the oldest messages that were not looked at yet.
func (s *Store) chooseByAge(c *conn, t *trimmer, r history.Retention) (cuts []cut, more bool, err error) {
	now := s.opts.Now().UnixMicro()
	t.ages = append([]ageCursor(nil), t.ages...)
	for i := range t.ages {
		cursor := &t.ages[i]
		cutoff := now - cursor.age.Microseconds() // committed at or before: expired
		expired := make(map[int64]int64)          // channel to highest offset
		seen, read := cursor.id, 0
		err := c.query(context.Background(), sqlOldest, func(row []driver.Value) error {
			at := row[3].(int64)
			switch {
			case at <= cutoff:
				expired[row[1].(int64)] = row[2].(int64)
			case at <= now:
				return errStop
			default:
				// From a time when the clock was wrong. It goes together with
				// the next message of its stream that has expired.
			}
			cursor.id = row[0].(int64)
			read++
			return nil
		}, seen, int64(stepRows))
		if err != nil {
			return nil, false, err
		}
		for id, offset := range expired {
			k, err := s.cutUpTo(c, id, offset, cursor.age, r)
			if err != nil {
				return nil, false, err
			}
			if len(k.ids) > 0 {
				cuts = append(cuts, k)
			}
		}
		if read == stepRows {
			return cuts, true, nil
		}
		if len(cuts) > 0 {
			return cuts, i < len(t.ages)-1, nil
		}
	}
	return nil, false, nil
}

// cutUpTo removes a stream's messages up to offset, if age is its limit.
func (s *Store) cutUpTo(c *conn, id, offset int64, age time.Duration, r history.Retention) (cut, error) {
	var name string
	var first int64
	found, err := c.first(context.Background(), sqlChannelByID, func(row []driver.Value) {
		name, first = row[0].(string), row[1].(int64)
	}, id)
	if err != nil || !found || r.For(name).Age != age || offset < first {
		return cut{}, err
	}
	k := cut{channel: id, first: first}
	err = c.query(context.Background(), sqlSizes, func(row []driver.Value) error {
		if row[0].(int64) > offset {
			return errStop
		}
		k.take(row)
		return nil
	}, id, first, offset-first+1)
	return k, err
}

// chooseKeys returns the id up to which keys have left their window.
func (s *Store) chooseKeys(c *conn, t *trimmer) (upTo int64, more bool, err error) {
	now := s.opts.Now().UnixMicro()
	cutoff := now - s.opts.KeyWindow.Microseconds()
	read := 0
	err = c.query(context.Background(), sqlOldestKeys, func(row []driver.Value) error {
		id, at := row[0].(int64), row[1].(int64)
		switch {
		case at <= cutoff:
			upTo = id
		case at <= now:
			return errStop
		}
		t.keys = id
		read++
		return nil
	}, t.keys, int64(stepRows))
	return upTo, read == stepRows, err
}

// remove makes a step: the rows go and the floors move in one transaction.
func (s *Store) remove(ctx context.Context, cuts []cut, keys int64) error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if err := s.writable(ctx); err != nil {
		return readError("trim", errors.Join(history.ErrUnavailable, err))
	}
	if err := s.checkLog(); err != nil {
		return readError("trim", errors.Join(history.ErrUnavailable, err))
	}
	bg := context.WithoutCancel(ctx)
	err := inTransaction(ctx, s.w, func() error {
		var ids []int64
		for _, k := range cuts {
			ids = append(ids, k.ids...)
			if err := s.w.exec(bg, sqlDeleteRuns, k.channel, k.first); err != nil {
				return err
			}
			if err := s.w.exec(bg, sqlRaiseFloor, k.first, k.bytes, k.at, k.channel); err != nil {
				return err
			}
		}
		slices.Sort(ids)
		for len(ids) > 0 { // runs of consecutive ids go with one statement each
			n := 1
			for n < len(ids) && ids[n] == ids[n-1]+1 {
				n++
			}
			if err := s.w.exec(bg, sqlDeleteRange, ids[0], ids[n-1]); err != nil {
				return err
			}
			if len(ids) == n {
				if err := s.w.exec(bg, sqlTrimmedID, ids[n-1]); err != nil {
					return err
				}
			}
			ids = ids[n:]
		}
		if keys > 0 {
			return s.w.exec(bg, sqlDeleteOldKeys, keys)
		}
		return nil
	})
	return readError("trim", err)
}
