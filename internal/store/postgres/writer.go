package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"go.uber.org/zap"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// writer is one connection that commits batches, with a journal row of its own
// that tells, after a broken link, whether the last batch was committed. It is
// used by one goroutine at a time.
type writer struct {
	store    *Store
	lockWait time.Duration // how long a statement may wait for a channel row
	patience time.Duration // how long Append goes on trying to get a held row; 0 is one try

	id        uuid.UUID
	seq       int64 // of the last batch known to be committed
	journaled bool  // the journal has a row for id
	conn      *pgx.Conn
	used      time.Time        // when conn last had something to do, roughly
	life      lifeID           // what conn was checked against
	ids       map[string]int64 // stream name → channel id, bounded; of this life
	plan      plan

	prepared [len(batchSQL)]bool // on conn
	params   [16][]byte          // arguments of the statement under way
	scratch  []byte

	downSince time.Time // since when connecting has failed; zero when it has not
	downErr   error
	nextTry   time.Time
}

const maxCachedIDs = 200_000

func (s *Store) newWriter(lockWait, patience time.Duration) *writer {
	return &writer{store: s, id: uuid.New(), lockWait: lockWait, patience: patience, ids: map[string]int64{}}
}

// Append implements [sequencer.Log].
func (w *writer) Append(ctx context.Context, batch []sequencer.Request) ([]sequencer.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, w.store.opts.StatementTimeout+w.patience)
	defer cancel()
	w.plan.reset(batch)
	err := w.commitPlan(ctx, &w.plan)
	results := w.plan.results
	w.plan.release()
	if err != nil {
		return nil, err
	}
	return results, nil
}

// maxAttempts bounds how often a batch is changed and tried again: each time
// something is learned that the database knew already, so few are needed.
const maxAttempts = 8

var errAgain = errors.New("postgres: the batch met a conflict again and again")

// commitPlan commits what is live in p, in one transaction where nothing stands
// in the way, and refuses what cannot be stored.
func (w *writer) commitPlan(ctx context.Context, p *plan) error {
	began := time.Now()
	commit := w.commit
	last := errAgain
	gone := 0 // how often channel rows were missing
	for attempt := 0; attempt < maxAttempts && p.anyLive() && ctx.Err() == nil; attempt++ {
		if err := w.connect(ctx); err != nil {
			return notStored(sequencer.ErrBusy, err)
		}
		if last = w.resolveIDs(ctx, p); last != nil {
			if !w.again(ctx, last) {
				return w.failed(last)
			}
			continue
		}
		if !p.arrange() {
			p.answer(committed{}) // nothing but repeats, or nothing at all
			return nil
		}
		var c committed
		c, last = commit(ctx, p)
		if last == nil {
			w.acknowledge()
			p.answer(c)
			return nil
		}
		refused := refusal(last)
		switch {
		case last == errAllHeld:
			continue
		case isGone(last):
			if gone++; gone == 1 {
				w.store.log.Warn("channel rows were removed by somebody; their streams are made anew")
			} else {
				w.disconnect() // it may be more than that
			}
			w.renew() // a lone message finds no offset without its journal row, either
			clear(w.ids)
			continue
		case refused == nil && pgconn.SafeToRetry(last):
			w.disconnect()
			continue
		case refused == nil:
			c, stored, err := w.outcome(ctx, p, last)
			if err != nil {
				return err
			}
			if stored {
				p.answer(c)
				return nil
			}
			continue // nothing of it is stored, and nothing of it will be
		case refused.Code == "23505" && refused.ConstraintName == "keys_pkey":
			last = w.findKeys(ctx, p)
		case refused.Code == "23514" && refused.ConstraintName == "channels_last_offset_check":
			last = w.fit(ctx, p)
		case refused.Code == "23502" && refused.TableName == "writers", refused.Code == "22012":
			// Another life, or a writer that was closed: a new connection tells.
			w.disconnect()
			w.renew()
			clear(w.ids)
			continue
		case refused.Code == "55P03" && time.Since(began) < w.patience:
			attempt-- // it holds nothing between two tries
			continue
		case refused.Code == "55P03":
			commit = w.commitFree
			continue
		}
		if last != nil && !w.again(ctx, last) {
			return w.failed(last)
		}
	}
	if !p.anyLive() {
		return nil
	}
	if last == nil {
		last = errAgain
	}
	return notStored(sequencer.ErrBusy, last)
}

// errGone: a channel row that was to be bumped is not there.
var errGone = errors.New("postgres: a channel row is gone")

// isGone says that a statement has stored nothing because a channel row is not
// there, or, for a lone message, the writer's own row.
func isGone(err error) bool {
	refused := refusal(err)
	return errors.Is(err, errGone) || refused != nil && refused.Code == "23502" && (refused.TableName == "messages" || refused.TableName == "keys")
}

// again says whether a statement that failed, and of which nothing is stored,
// is worth another try, and makes ready for it.
func (w *writer) again(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	refused := refusal(err)
	switch {
	case refused == nil: // the link is broken, or breaking
		w.disconnect()
		return true
	case refused.Code == "40P01" || refused.Code == "40001": // deadlock, serialization
		return true
	case refused.Code[:2] == "42" || refused.Code == "3F000" || refused.Code == "26000" || refused.Code == "0A000":
		// Somebody has changed or removed the tables: another database, maybe.
		w.disconnect()
		return true
	case refused.Code == "25006": // the server takes no writes any more
		w.disconnect()
		return true
	}
	return false
}

// refusal is err as the server's word that it did not do what was asked and
// goes on serving the connection; nil for anything less certain.
func refusal(err error) *pgconn.PgError {
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.SeverityUnlocalized != "ERROR" && (e.SeverityUnlocalized != "" || e.Severity != "ERROR") {
		return nil
	}
	switch e.Code[:2] {
	case "08", "57", "58", "XX":
		return nil
	}
	return e
}

func notStored(kind, err error) error {
	return fmt.Errorf("postgres: append: %w: %w: %w", kind, sequencer.ErrNotStored, err)
}

// failed turns the error of a batch of which nothing is stored into what the
// sequencer may know.
func (w *writer) failed(err error) error {
	refused := refusal(err)
	switch {
	case refused == nil:
		w.disconnect()
	case refused.Code == "53100":
		return notStored(sequencer.ErrDiskFull, err)
	case refused.Code[:2] == "22" || refused.Code[:2] == "23" || refused.Code[:2] == "54" || refused.Code[:2] == "P0":
		// It may be one request's fault: the sequencer tries the halves.
		return fmt.Errorf("postgres: append: %w: %w", sequencer.ErrNotStored, err)
	}
	return notStored(sequencer.ErrBusy, err)
}

// commit runs the batch statement for what was arranged.
func (w *writer) commit(ctx context.Context, p *plan) (committed, error) {
	if !w.journaled {
		if _, err := w.conn.Exec(ctx, writerSQL, pgtype.UUID{Bytes: w.id, Valid: true}, w.store.clock()); err != nil {
			return committed{}, err
		}
		w.journaled = true
	}
	which := p.statement()
	if !w.prepared[which] {
		if _, err := w.conn.PgConn().Prepare(ctx, batchNames[which], batchSQL[which], nil); err != nil {
			return committed{}, err
		}
		w.prepared[which] = true
	}
	params := w.arguments(p, which)
	result := w.conn.PgConn().ExecPrepared(ctx, batchNames[which], params, []int16{1}, []int16{1}).Read()
	if result.Err != nil {
		return committed{}, result.Err
	}
	if len(result.Rows) == 0 {
		return committed{}, errGone
	}
	var c committed
	var err error
	if which == lone {
		c, err = decodeLone(result.Rows, w.life.epoch)
	} else {
		c, err = decodeCommitted(result.Rows, len(p.ids))
	}
	if err != nil {
		w.conn.Close(ctx) //nolint:errcheck // it is of no more use
		return committed{}, err
	}
	return c, nil
}

// statement is the index in batchSQL of the statement for what was arranged.
func (p *plan) statement() int {
	which := 0
	if p.args.keys.n > 0 {
		which |= keyed
	}
	if len(p.ids) == 1 {
		which |= single
	}
	if which == single && p.counts[0] == 1 {
		return lone
	}
	return which
}

// arguments are the binary parameters of that statement. They are good until
// the next batch.
func (w *writer) arguments(p *plan, which int) [][]byte {
	a := &p.args
	b := w.scratch[:0]
	b = append(b, w.id[:]...)
	b = appendInt8(b, w.seq)
	b = append(b, byte(w.life.table>>24), byte(w.life.table>>16), byte(w.life.table>>8), byte(w.life.table))
	b = appendInt8(b, int64(w.life.epoch))
	if which == lone {
		b = appendInt8(b, p.ids[0])
		b = appendInt8(b, p.sizes[0])
	}
	w.scratch = b
	var node, at []byte
	if w.store.ring.Load() {
		node = []byte(w.store.node)
	}
	if now := w.store.clock(); now != nil {
		at = appendInt8(nil, now.UnixMicro()-y2k)
	}
	id, seq, table, epoch := b[0:16], b[16:24], b[24:28], b[28:36]
	if which == lone {
		return append(w.params[:0], b[36:44], b[44:52], p.payload, id, seq, table, epoch, node, at)
	}
	return append(w.params[:0],
		a.ids.bytes(), a.counts.bytes(), a.sizes.bytes(), a.places.bytes(), a.backs.bytes(), a.payloads.bytes(),
		a.keyPlaces.bytes(), a.keyBacks.bytes(), a.keys.bytes(), a.bodies.bytes(), id, seq, table, epoch, node, at)
}

// acknowledge notes that the batch after w.seq is committed.
func (w *writer) acknowledge() {
	w.seq++
	w.store.life.acknowledge(w.life, w.id, w.seq)
}

func decodeCommitted(rows [][][]byte, channels int) (c committed, err error) {
	if len(rows) != 1 || len(rows[0]) != 6 {
		return c, errFormat
	}
	row := rows[0]
	var life int64
	for _, step := range []func() error{
		func() (err error) { c.lasts, err = ints(row[0]); return },
		func() (err error) { c.epochs, err = ints(row[1]); return },
		func() (err error) { life, err = int8Of(row[2]); return },
		func() (err error) { c.at, err = int8Of(row[3]); return },
	} {
		if err := step(); err != nil {
			return c, err
		}
	}
	c.life = protocol.Epoch(life)
	if len(c.lasts) != channels || len(c.epochs) != channels {
		return c, errFormat
	}
	return c, nil
}

// decodeLone reads what loneSQL returned. life is proved by the statement.
func decodeLone(rows [][][]byte, life protocol.Epoch) (committed, error) {
	if len(rows) != 1 || len(rows[0]) != 4 {
		return committed{}, errFormat
	}
	var numbers [3]int64
	for i := range numbers {
		n, err := int8Of(rows[0][i])
		if err != nil {
			return committed{}, err
		}
		numbers[i] = n
	}
	return committed{lasts: numbers[0:1], epochs: numbers[1:2], life: life, at: numbers[2]}, nil
}

// outcome learns what became of the batch in p, whose statement ended with
// cause while it was under way. An error means that it could not be learned.
func (w *writer) outcome(ctx context.Context, p *plan, cause error) (c committed, stored bool, err error) {
	resolve, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.store.opts.ResolveTimeout)
	defer cancel()
	began := time.Now()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		w.disconnect()
		if err = w.dial(resolve); err == nil {
			c, stored, err = w.close(resolve, p)
		}
		if err == nil {
			w.store.log.Warn("the link broke during a commit; the journal told its outcome", zap.Bool("stored", stored),
				zap.Duration("took", time.Since(began)), zap.NamedError("cause", cause))
			w.renew()
			return c, stored, nil
		}
		if !wait(resolve, pause) {
			break
		}
	}
	w.store.log.Error("the link broke during a commit and its outcome could not be learned", zap.NamedError("cause", cause), zap.Error(err))
	w.disconnect()
	// The batch may yet be stored, or may turn out to have been: this writer's
	// journal says nothing certain any more.
	w.renew()
	return c, false, fmt.Errorf("postgres: append: %w: %w", sequencer.ErrOutcomeUnknown, cause)
}

// close ends the writer in the database and says whether the batch in p, the
// one after w.seq, is stored.
func (w *writer) close(ctx context.Context, p *plan) (c committed, stored bool, err error) {
	var seq int64
	var life int64
	err = w.conn.QueryRow(ctx, closeSQL, pgtype.UUID{Bytes: w.id, Valid: true}, p.ids).Scan(&seq, &c.lasts, &life, &c.at, &c.epochs)
	c.life = protocol.Epoch(life)
	return c, seq == w.seq+1 && len(c.lasts) == len(p.ids), err
}

// renew makes w another writer, with a journal of its own.
func (w *writer) renew() { w.id, w.seq, w.journaled = uuid.New(), 0, false }

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// connect makes sure that w has a connection, or fails fast while the database
// is known to be away: one attempt at a time is made, with growing pauses.
func (w *writer) connect(ctx context.Context) error {
	if w.alive() {
		return nil
	}
	if time.Now().Before(w.nextTry) {
		return w.downErr
	}
	err := w.dial(ctx)
	if err == nil {
		w.downSince, w.downErr, w.nextTry = time.Time{}, nil, time.Time{}
		return nil
	}
	if w.downSince.IsZero() {
		w.downSince = time.Now()
	}
	w.downErr = err
	w.nextTry = time.Now().Add(min(max(time.Since(w.downSince), 20*time.Millisecond), time.Second))
	return err
}

// idleUnchecked is how long a connection that was in use is taken to be alive.
const idleUnchecked = 100 * time.Millisecond

// alive says whether there is a connection, as far as can be told without
// asking: one that the server has ended while it was idle must not be given a
// batch, whose outcome would be unknown then.
func (w *writer) alive() bool {
	if w.conn == nil || w.conn.IsClosed() {
		return false
	}
	now := time.Now()
	idle := now.Sub(w.used)
	w.used = now
	if idle < idleUnchecked || !pending(w.conn.PgConn().Conn()) {
		return true
	}
	//lint:ignore SA1019 Ping costs a round trip for each batch; what CheckConn misses, the journal resolves
	if err := w.conn.PgConn().CheckConn(); err != nil {
		w.disconnect()
		return false
	}
	return true
}

// dial connects to the same life of the data, or a new one that has begun.
func (w *writer) dial(ctx context.Context) error {
	w.disconnect()
	ctx, cancel := context.WithTimeout(ctx, w.store.opts.ConnectTimeout)
	defer cancel()
	config := w.store.config.Copy()
	w.store.prepare(config, "writer", w.lockWait)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	life, err := w.store.checkLife(ctx, conn)
	if err != nil {
		closeConn(conn)
		return err
	}
	if life != w.life {
		clear(w.ids) // they are those of the life before
	}
	w.conn, w.life, w.used = conn, life, time.Now()
	w.prepared = [len(batchSQL)]bool{}
	return nil
}

func (w *writer) disconnect() {
	if w.conn != nil {
		closeConn(w.conn)
		w.conn = nil
	}
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = conn.Close(ctx)
}
