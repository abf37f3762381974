package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// maxHeldNames bounds how many names that somebody's open transaction is making
// are waited for in one batch.
const maxHeldNames = 2

// resolveIDs learns the channel ids of all live requests, making the rows of
// streams that have none. A stream that is being made by somebody's open
// transaction is refused as locked, alone.
func (w *writer) resolveIDs(ctx context.Context, p *plan) error {
	if len(w.ids) > maxCachedIDs {
		clear(w.ids)
	}
	var unknown []string
	p.each(func(_ int, items []item) {
		for n := range items {
			it := &items[n]
			id, known := w.ids[it.broadcast.Stream]
			if it.channel = id; !known {
				unknown = append(unknown, it.broadcast.Stream)
			}
		}
	})
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	unknown = slices.Compact(unknown)
	err := w.makeIDs(ctx, unknown)
	if isHeld(err) {
		err = w.makeEach(ctx, p, unknown)
	}
	if err != nil {
		return err
	}
	p.each(func(_ int, items []item) {
		for n := range items {
			items[n].channel = w.ids[items[n].broadcast.Stream]
		}
	})
	return nil
}

// makeEach makes names one by one, after some of them were found held. The
// requests for those are refused, and so are those for whatever is left when
// waiting has taken long enough: lanes will wait for them.
func (w *writer) makeEach(ctx context.Context, p *plan, names []string) error {
	heldNames := map[string]bool{}
	for _, name := range names {
		if len(heldNames) >= maxHeldNames {
			heldNames[name] = true
			continue
		}
		var err error
		if len(names) > 1 {
			err = w.makeIDs(ctx, []string{name})
		}
		if len(names) == 1 || isHeld(err) {
			heldNames[name] = true
		} else if err != nil {
			return err
		}
	}
	p.each(func(i int, items []item) {
		for n := range items {
			if name := items[n].broadcast.Stream; heldNames[name] {
				p.refuse(i, &sequencer.LockedError{Stream: name})
				return
			}
		}
	})
	p.pair()
	return nil
}

// isHeld says that a lock was not had in time.
func isHeld(err error) bool {
	refused := refusal(err)
	return refused != nil && refused.Code == "55P03"
}

func (w *writer) makeIDs(ctx context.Context, names []string) error {
	found, err := w.conn.Query(ctx, knownSQL, names)
	if err == nil {
		err = w.keepIDs(found)
	}
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, known := w.ids[name]; return known })
	if len(names) == 0 {
		return nil
	}
	made, err := w.conn.Query(ctx, namesSQL, names)
	if err != nil {
		return err
	}
	return w.keepIDs(made)
}

func (w *writer) keepIDs(r pgx.Rows) error {
	var name string
	var id int64
	_, err := pgx.ForEachRow(r, []any{&name, &id}, func() error { w.ids[name] = id; return nil })
	return err
}

// findKeys looks up the keys of all live requests: an expired key is forgotten,
// one that is known makes its broadcast a repeat, or its request a conflict.
func (w *writer) findKeys(ctx context.Context, p *plan) error {
	type id struct {
		channel int64
		key     digest
	}
	type known struct {
		body digest
		was  sequencer.Placed
	}
	var ids []int64
	var keys []digest
	p.each(func(_ int, items []item) {
		for n := range items {
			if it := &items[n]; it.keyed {
				ids, keys = append(ids, it.channel), append(keys, it.key)
			}
		}
	})
	if _, err := w.conn.Exec(ctx, expireSQL, ids, keys, w.store.opts.KeyWindow, w.store.clock()); err != nil {
		return err
	}
	found, err := w.conn.Query(ctx, keysSQL, ids, keys)
	if err != nil {
		return err
	}
	have := map[id]known{}
	var k id
	var body digest
	var offset, at, epoch int64
	_, err = pgx.ForEachRow(found, []any{&k.channel, &k.key, &body, &offset, &at, &epoch}, func() error {
		have[k] = known{body, sequencer.Placed{
			Position: protocol.Position{Epoch: protocol.Epoch(epoch), Offset: uint64(offset)}, At: at, Repeat: true,
		}}
		return nil
	})
	if err != nil {
		return err
	}
	p.each(func(i int, items []item) {
		for n := range items {
			it := &items[n]
			if !it.keyed {
				continue
			}
			v, seen := have[id{it.channel, it.key}]
			if it.repeat = seen && v.body == it.body; it.repeat {
				it.was = v.was
			} else if seen {
				p.refuse(i, sequencer.ErrKeyConflict)
				return
			}
		}
	})
	p.pair()
	return nil
}

// fit refuses the requests for which their streams have not enough offsets
// left, after the database has refused the batch for it.
func (w *writer) fit(ctx context.Context, p *plan) error {
	found, err := w.conn.Query(ctx, `SELECT id, last_offset FROM chronocast.channels WHERE id = ANY($1)`, p.ids)
	if err != nil {
		return err
	}
	left := map[int64]int64{}
	var id, last int64
	_, err = pgx.ForEachRow(found, []any{&id, &last}, func() error { left[id] = protocol.MaxOffset - last; return nil })
	if err != nil {
		return err
	}
	p.each(func(i int, items []item) {
		for n := range items {
			if it := &items[n]; it.fresh() {
				left[it.channel]--
			}
		}
		for n := range items {
			if it := &items[n]; it.fresh() && left[it.channel] < 0 {
				p.refuse(i, sequencer.ErrStreamFull)
			}
		}
		if p.state[i] != live {
			for n := range items {
				if it := &items[n]; it.fresh() {
					left[it.channel]++
				}
			}
		}
	})
	p.pair()
	return nil
}

// errAllHeld: commitFree has refused everything that was to be stored.
var errAllHeld = errors.New("postgres: every row is held")

// commitFree stores the requests none of whose channel rows is held by somebody
// else, and refuses the others as locked. It takes four round trips instead of
// one, and is needed once for each row that is found held.
func (w *writer) commitFree(ctx context.Context, p *plan) (c committed, err error) {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return c, err
	}
	defer func() {
		if err != nil {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = tx.Rollback(ending)
		}
	}()
	found, err := tx.Query(ctx, freeSQL, p.ids, milliseconds(w.store.opts.StatementTimeout))
	if err != nil {
		return c, err
	}
	free := map[int64]bool{}
	var id int64
	if _, err = pgx.ForEachRow(found, []any{&id}, func() error { free[id] = true; return nil }); err != nil {
		return c, err
	}
	if len(free) < len(p.ids) { // held, or not there at all
		var there int
		if err = tx.QueryRow(ctx, `SELECT count(*) FROM chronocast.channels WHERE id = ANY($1)`, p.ids).Scan(&there); err != nil {
			return c, err
		}
		if there < len(p.ids) {
			return c, errGone
		}
	}
	p.each(func(i int, items []item) {
		for n := range items {
			if it := &items[n]; it.fresh() && !free[it.channel] {
				p.refuse(i, &sequencer.LockedError{Stream: it.broadcast.Stream})
				return
			}
		}
	})
	p.pair()
	if !p.arrange() {
		return c, errAllHeld
	}
	if c, err = w.commit(ctx, p); err != nil {
		return c, err
	}
	return c, tx.Commit(ctx)
}
