package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// plan is how one batch becomes rows. It is reused from batch to batch.
type plan struct {
	streams []planStream
	index   map[string]int // name to index in streams
	items   []planItem     // of all admitted requests, in order
	results []sequencer.Result
	keys    map[digest]int // keys first used in this batch: index in items
	order   []int          // items to insert, grouped by stream, as their ids ascend
	runs    []int          // streams that begin a new run
	known   []int          // streams whose channel id is known
	args    []driver.Value
}

// planStream is a stream that gets messages.
type planStream struct {
	name string
	channelState
	count int64 // messages it gets
	bytes int64
	first int64 // message id of the first of them
}

// channelState is what is remembered of a channel row. The zero state is of a
// row that is not known.
type channelState struct {
	id    int64
	last  int64
	epoch int64
}

// planItem is one broadcast of an admitted request.
type planItem struct {
	stream int   // index in plan.streams; -1 for a known repeat
	ord    int64 // which of the stream's new messages, from 1
	same   int   // index of the item that it repeats, or -1
	known  sequencer.Placed
	data   []byte
	keyed  bool
	key    digest
	body   digest
}

type digest [16]byte

func keyDigest(stream, key string) digest {
	h := sha256.New()
	h.Write([]byte(stream))
	h.Write([]byte{0}) // no stream name has it
	h.Write([]byte(key))
	return digest(h.Sum(nil)[:16])
}

func bodyDigest(data []byte) digest {
	sum := sha256.Sum256(data)
	return digest(sum[:16])
}

// errStale: a channel row is not what it was after the last batch.
var errStale = errors.New("a channel row was changed by somebody else")

// errOverflow: some stream has fewer offsets left than the batch asks for.
var errOverflow = errors.New("a stream has reached its last offset")

const (
	sqlBumpByName = `INSERT INTO channels (name, epoch, last_offset, bytes) VALUES (?, ?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET last_offset = last_offset + excluded.last_offset, bytes = bytes + excluded.bytes
		RETURNING id, last_offset, epoch`
	sqlChannel   = `SELECT id, epoch, first_offset, last_offset FROM channels WHERE name = ?`
	sqlFindKey   = `SELECT body, offset_, at, id FROM keys WHERE digest = ?`
	sqlDropKey   = `DELETE FROM keys WHERE digest = ?`
	sqlInsertKey = `INSERT INTO keys (id, digest, body, offset_, at) VALUES (?, ?, ?, ?, ?)`
)

// chunks are the numbers of rows that INSERT statements are prepared for. They
// say OR FAIL because a failed batch is rolled back as a whole: without it
// SQLite copies every page first, to undo the one statement.
var chunks = []int{64, 32, 16, 8, 4, 2, 1}

var (
	sqlInsert    = inserts("INSERT OR FAIL INTO messages (id, channel_id, offset_, at, payload) VALUES ", "(?, ?, ?, ?, ?)")
	sqlInsertRun = inserts("INSERT OR FAIL INTO runs (channel_id, first_offset, id) VALUES ", "(?, ?, ?)")
	sqlBump      = func() map[int]string {
		m := inserts(`WITH more(id, was, n, bytes) AS (VALUES `, "(?, ?, ?, ?)", `)
			UPDATE OR FAIL channels SET last_offset = last_offset + more.n, bytes = channels.bytes + more.bytes
			FROM more WHERE channels.id = more.id AND channels.last_offset = more.was`)
		// One stream is the common case and needs no join.
		m[1] = `UPDATE OR FAIL channels SET last_offset = last_offset + ?3, bytes = bytes + ?4 WHERE id = ?1 AND last_offset = ?2`
		return m
	}()
)

func inserts(before, row string, after ...string) map[int]string {
	m := make(map[int]string)
	for _, n := range chunks {
		m[n] = before + row + strings.Repeat(", "+row, n-1) + strings.Join(after, "")
	}
	return m
}

// insertRows inserts n rows with as few statements as there are chunks. row
// appends the arguments of the i-th.
func (s *Store) insertRows(ctx context.Context, sql map[int]string, n int, row func(args []driver.Value, i int) []driver.Value) error {
	for i := 0; i < n; {
		chunk := chunkFor(n - i)
		args := s.plan.args[:0]
		for end := i + chunk; i < end; i++ {
			args = row(args, i)
		}
		s.plan.args = args
		if err := s.w.exec(ctx, sql[chunk], args...); err != nil {
			return err
		}
	}
	clear(s.plan.args) // do not hold on to payloads
	return nil
}

// Append implements [sequencer.Log].
func (s *Store) Append(ctx context.Context, batch []sequencer.Request) ([]sequencer.Result, error) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if err := s.writable(ctx); err != nil {
		return nil, err
	}
	results, err := s.append(ctx, batch, false)
	if errors.Is(err, errLogCut) && errors.Is(err, sequencer.ErrNotStored) {
		if err := s.checkLog(); err != nil {
			return nil, refusal(err)
		}
		results, err = s.append(ctx, batch, false)
	}
	switch {
	case errors.Is(err, errOverflow):
		results, err = s.append(ctx, batch, true)
	case errors.Is(err, errStale) || code(err) == codeConstraint:
		// Somebody else has written to the file: begin with what is there.
		if err := s.recount(); err != nil {
			return nil, notStored(err)
		}
		if results, err = s.append(ctx, batch, false); errors.Is(err, errOverflow) {
			results, err = s.append(ctx, batch, true)
		}
	}
	return results, err
}

// writable makes sure, under wmu, that there is a connection to write on and
// that what it writes can be found again.
func (s *Store) writable(ctx context.Context) error {
	if s.closed {
		return errClosed
	}
	if s.replaced.Load() { // then look again; otherwise at the commit
		if err := errors.Join(s.checkLog(), s.CheckFile()); err != nil {
			return refusal(err)
		}
	}
	if s.w == nil {
		w, err := s.openWriter(ctx)
		if err != nil {
			return notStored(err)
		}
		s.w = w
	}
	return nil
}

// append is one transaction. With careful set it reads the head of every
// stream first and refuses the requests for which no offsets are left.
func (s *Store) append(ctx context.Context, batch []sequencer.Request, careful bool) (_ []sequencer.Result, err error) {
	// The wait for another process's lock is bounded by the busy timeout.
	// Statements run without ctx, which would cost a goroutine each.
	bg := context.Background()
	if err := s.w.exec(bg, "BEGIN IMMEDIATE"); err != nil {
		s.distrust(err)
		return nil, notStored(err)
	}
	done := false
	defer func() {
		if !done {
			s.rollback()
			s.distrust(err)
		}
	}()

	p := &s.plan
	p.reset()
	at := s.commitTime()
	if err := s.admit(bg, p, batch, at, careful); err != nil {
		return nil, notStored(err)
	}
	if p.empty() { // refused or repeated, all of it
		return p.place(at), nil
	}
	if err := s.bump(bg, p); err != nil {
		if errors.Is(err, errOverflow) || errors.Is(err, errStale) {
			return nil, err
		}
		return nil, notStored(err)
	}
	if err := s.insert(bg, p, at); err != nil {
		return nil, notStored(err)
	}
	firstID, nextID := s.nextID, s.nextID+int64(len(p.order))
	if at < s.lastAt {
		if err := s.w.exec(bg, sqlMeta, "clock_back", nextID-1); err != nil {
			return nil, notStored(err)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, notStored(err)
	}
	if !s.wal.plausible() {
		return nil, refusal(errLogCut)
	}
	done = true
	if err := s.w.exec(bg, "COMMIT"); err != nil {
		if err := s.resolveCommit(bg, err, firstID); err != nil {
			return nil, err
		}
	}

	if at < s.lastAt {
		s.clockBack.Store(nextID - 1)
		s.log.Warn("the clock went back", zap.Duration("by", time.Duration(s.lastAt-at)*time.Microsecond))
	}
	s.nextID, s.lastAt = nextID, at
	s.tail = p.streams[p.items[p.order[len(p.order)-1]].stream].id
	s.remember(p)
	if err := s.checkLog(); err != nil {
		return nil, fmt.Errorf("%w: %w", sequencer.ErrOutcomeUnknown, err)
	}
	if time.Since(s.checked) > checkPause {
		s.checked = time.Now()
		if err := s.checkFiles(s.files[:len(s.files)-1]); err != nil {
			return nil, fmt.Errorf("%w: %w", sequencer.ErrOutcomeUnknown, err)
		}
	}
	if err := s.life.advance(nextID - 1); err != nil {
		// It is a lower bound: being behind only makes it less watchful.
		s.log.Warn("the life file could not be written", zap.Error(err))
	}
	for i := range p.streams {
		s.walBytes += p.streams[i].bytes
	}
	if s.walBytes > s.opts.MaxWAL/8 {
		s.walBytes = 0
		s.limitWAL()
	}
	return p.place(at), nil
}

// recount forgets what was remembered of the file.
func (s *Store) recount() error {
	if s.w == nil {
		return errors.New("no connection")
	}
	top, err := s.w.number(context.Background(), "SELECT max(id) FROM messages")
	s.nextID, s.tail = max(s.nextID, top+1), 0
	clear(s.known)
	return err
}

func (p *plan) reset() {
	if p.index == nil {
		p.index, p.keys = make(map[string]int), make(map[digest]int)
	}
	clear(p.index)
	clear(p.keys)
	clear(p.items)
	p.streams, p.items, p.results = p.streams[:0], p.items[:0], nil
}

// smallStep is how far the clock may go back without being followed.
const smallStep = int64(time.Minute / time.Microsecond)

// commitTime is the time of the next commit. Small steps of the clock back are
// held up so that times do not descend; a large one is followed, and noted by
// the caller, because holding it up would falsify what retention by age does
// for as long.
func (s *Store) commitTime() int64 {
	now := s.opts.Now().UnixMicro()
	if now < s.lastAt && s.lastAt-now <= smallStep {
		return s.lastAt
	}
	return now
}

// admit decides about each request and lists what the admitted ones store.
func (s *Store) admit(ctx context.Context, p *plan, batch []sequencer.Request, at int64, careful bool) error {
	p.results = make([]sequencer.Result, len(batch))
	total := 0
	for _, r := range batch {
		total += len(r)
	}
	placed := make([]sequencer.Placed, total) // one allocation for all
	room := map[string]int64{}                // offsets left, known when careful
	for i, r := range batch {
		items, streams := len(p.items), len(p.streams)
		refusal, err := s.admitOne(ctx, p, r, at)
		if err != nil {
			return err
		}
		if refusal == nil && careful {
			refusal, err = s.admitOffsets(ctx, p, p.items[items:], room)
			if err != nil {
				return err
			}
		}
		if refusal != nil {
			p.results[i].Err = refusal
			p.undo(items, streams)
			continue
		}
		p.results[i].Placed, placed = placed[:len(r):len(r)], placed[len(r):]
	}
	return nil
}

func (s *Store) admitOne(ctx context.Context, p *plan, r sequencer.Request, at int64) (refusal, err error) {
	for i := range r {
		b := &r[i]
		item := planItem{stream: -1, same: -1, data: b.Data}
		if b.Key != "" {
			item.keyed, item.key, item.body = true, keyDigest(b.Stream, b.Key), bodyDigest(b.Data)
			refusal, err := s.findKey(ctx, p, &item, b.Stream, at)
			if refusal != nil || err != nil {
				return refusal, err
			}
			if item.same >= 0 || item.known.Repeat {
				p.items = append(p.items, item)
				continue
			}
			p.keys[item.key] = len(p.items)
		}
		st := len(p.streams) - 1
		if st < 0 || p.streams[st].name != b.Stream { // not the one that came last
			var ok bool
			if st, ok = p.index[b.Stream]; !ok {
				st = len(p.streams)
				p.index[b.Stream] = st
				p.streams = append(p.streams, planStream{name: b.Stream, channelState: s.known[b.Stream]})
			}
		}
		p.streams[st].count++
		p.streams[st].bytes += int64(len(b.Data))
		item.stream, item.ord = st, p.streams[st].count
		p.items = append(p.items, item)
	}
	return nil, nil
}

// undo takes back what a refused request has put into the plan.
func (p *plan) undo(items, streams int) {
	for _, item := range p.items[items:] {
		if item.stream >= 0 {
			p.streams[item.stream].count--
			p.streams[item.stream].bytes -= int64(len(item.data))
			if item.keyed {
				delete(p.keys, item.key)
			}
		}
	}
	for _, st := range p.streams[streams:] {
		delete(p.index, st.name)
	}
	clear(p.items[items:])
	p.items, p.streams = p.items[:items], p.streams[:streams]
}

// findKey looks for an earlier use of the item's key, in this batch and then
// in the table, and makes the item a repeat of it or refuses it.
func (s *Store) findKey(ctx context.Context, p *plan, item *planItem, stream string, at int64) (refusal, err error) {
	if first, ok := p.keys[item.key]; ok {
		if p.items[first].body != item.body {
			return fmt.Errorf("%w: stream %q", sequencer.ErrKeyConflict, stream), nil
		}
		item.same = first
		return nil, nil
	}
	var body digest
	var offset, used int64
	found, err := s.w.first(ctx, sqlFindKey, func(row []driver.Value) {
		copy(body[:], row[0].([]byte))
		offset, used = row[1].(int64), row[2].(int64)
	}, item.key[:])
	if err != nil || !found {
		return nil, err
	}
	if at-used >= s.opts.KeyWindow.Microseconds() { // over: the key is as good as new
		return nil, s.w.exec(ctx, sqlDropKey, item.key[:])
	}
	if body != item.body {
		return fmt.Errorf("%w: stream %q", sequencer.ErrKeyConflict, stream), nil
	}
	epoch := int64(0)
	if _, err := s.w.first(ctx, sqlChannel, func(row []driver.Value) { epoch = row[1].(int64) }, stream); err != nil {
		return nil, err
	}
	item.known = sequencer.Placed{
		Position: protocol.Position{Epoch: protocol.Epoch(max(epoch, s.epoch)), Offset: uint64(offset)},
		At:       used,
		Repeat:   true,
	}
	return nil, nil
}

// admitOffsets refuses a request when one of its streams has too few offsets
// left for it.
func (s *Store) admitOffsets(ctx context.Context, p *plan, items []planItem, room map[string]int64) (refusal, err error) {
	for _, item := range items {
		if item.stream < 0 {
			continue
		}
		st := p.streams[item.stream]
		left, ok := room[st.name]
		if !ok {
			last := int64(0)
			if _, err := s.w.first(ctx, sqlChannel, func(row []driver.Value) { last = row[3].(int64) }, st.name); err != nil {
				return nil, err
			}
			left = protocol.MaxOffset - last
			room[st.name] = left
		}
		if st.count > left {
			return fmt.Errorf("%w: stream %q", sequencer.ErrStreamFull, st.name), nil
		}
	}
	return nil, nil
}

// bump moves the channel rows, which is where the new offsets come from. A row
// that was written by the last batches is expected to be as they left it; the
// statement moves it only if it is.
func (s *Store) bump(ctx context.Context, p *plan) error {
	p.known = p.known[:0]
	for i := range p.streams {
		st := &p.streams[i]
		switch {
		case st.count == 0:
			continue
		case st.id != 0:
			p.known = append(p.known, i)
			st.last += st.count
		default:
			_, err := s.w.first(ctx, sqlBumpByName, func(row []driver.Value) {
				st.id, st.last, st.epoch = row[0].(int64), row[1].(int64), max(row[2].(int64), s.epoch)
			}, st.name, s.epoch, st.count, st.bytes)
			if err != nil {
				return err
			}
		}
		if st.last > protocol.MaxOffset {
			return errOverflow
		}
	}
	for i := 0; i < len(p.known); {
		chunk := chunkFor(len(p.known) - i)
		p.args = p.args[:0]
		for end := i + chunk; i < end; i++ {
			st := &p.streams[p.known[i]]
			p.args = append(p.args, st.id, st.last-st.count, st.count, st.bytes)
		}
		changed, err := s.w.change(ctx, sqlBump[chunk], p.args...)
		if err != nil {
			return err
		}
		if changed != int64(chunk) {
			return errStale
		}
	}
	return nil
}

// chunkFor is the largest chunk of at most n rows.
func chunkFor(n int) int {
	for _, chunk := range chunks {
		if chunk <= n {
			return chunk
		}
	}
	return 0
}

// arrange gives each stream consecutive ids from next on, the stream of the
// newest message first, because its run goes on then.
func (p *plan) arrange(next, tail int64) {
	for i := range p.streams {
		if p.streams[i].id == tail {
			p.streams[i].first = next
			next += p.streams[i].count
			break
		}
	}
	total := 0
	for i := range p.streams {
		st := &p.streams[i]
		total += int(st.count)
		if st.first == 0 {
			st.first = next
			next += st.count
		}
	}
	p.order = slices.Grow(p.order[:0], total)[:total]
	base := next - int64(total)
	for i := range p.items {
		if item := &p.items[i]; item.stream >= 0 {
			p.order[p.streams[item.stream].first+item.ord-1-base] = i
		}
	}
}

// insert writes the rows of messages, runs and keys.
func (s *Store) insert(ctx context.Context, p *plan, at int64) error {
	p.arrange(s.nextID, s.tail)
	err := s.insertRows(ctx, sqlInsert, len(p.order), func(args []driver.Value, i int) []driver.Value {
		item := &p.items[p.order[i]]
		return append(args, s.nextID+int64(i), p.streams[item.stream].id, p.offset(item), at, item.data)
	})
	if err != nil {
		return err
	}
	p.runs = p.runs[:0]
	for i := range p.streams {
		st := &p.streams[i]
		if st.count > 0 && !(st.id == s.tail && st.first == s.nextID) {
			p.runs = append(p.runs, i)
		}
	}
	err = s.insertRows(ctx, sqlInsertRun, len(p.runs), func(args []driver.Value, i int) []driver.Value {
		st := &p.streams[p.runs[i]]
		return append(args, st.id, st.last-st.count+1, st.first)
	})
	if err != nil {
		return err
	}
	for _, i := range p.keys {
		item := &p.items[i]
		id := p.streams[item.stream].first + item.ord - 1
		if err := s.w.exec(ctx, sqlInsertKey, id, item.key[:], item.body[:], p.offset(item), at); err != nil {
			return err
		}
	}
	return nil
}

// empty says that the plan stores nothing.
func (p *plan) empty() bool {
	return !slices.ContainsFunc(p.streams, func(st planStream) bool { return st.count > 0 })
}

func (p *plan) offset(item *planItem) int64 {
	st := &p.streams[item.stream]
	return st.last - st.count + item.ord
}

// place fills in the results of a committed plan.
func (p *plan) place(at int64) []sequencer.Result {
	next := 0
	for i := range p.results {
		for j := range p.results[i].Placed {
			item := &p.items[next]
			next++
			placed, repeat := item.known, false
			if item.same >= 0 {
				item, repeat = &p.items[item.same], true
			}
			if item.stream >= 0 {
				placed = sequencer.Placed{
					Position: protocol.Position{Epoch: protocol.Epoch(p.streams[item.stream].epoch), Offset: uint64(p.offset(item))},
					At:       at,
					Repeat:   repeat,
				}
			}
			p.results[i].Placed[j] = placed
		}
	}
	return p.results
}

// remember keeps what a commit has taught: the channel rows, and which streams
// retention should look at.
func (s *Store) remember(p *plan) {
	s.dmu.Lock()
	defer s.dmu.Unlock()
	for i := range p.streams {
		st := &p.streams[i]
		if st.count == 0 {
			continue
		}
		if _, ok := s.known[st.name]; !ok && len(s.known) >= maxKnown {
			clear(s.known)
		}
		s.known[st.name] = st.channelState
		s.dirty[st.id] = struct{}{}
	}
}

// rollback ends a transaction that is not to be. A connection that cannot even
// do that is thrown away.
func (s *Store) rollback() {
	err := s.w.exec(context.Background(), "ROLLBACK")
	if err == nil || !s.w.inTransaction() {
		return
	}
	s.log.Error("rollback failed; the connection is opened anew", zap.Error(err))
	s.dropWriter()
}

// distrust throws the connection away after an error that says something
// about it; the next batch gets a new one.
func (s *Store) distrust(err error) {
	switch {
	case err == nil, s.w == nil, busy(err), full(err), code(err) == codeConstraint,
		errors.Is(err, errOverflow), errors.Is(err, errStale), errors.Is(err, errLogCut):
		return
	}
	s.dropWriter()
}

func (s *Store) dropWriter() {
	s.w.close()
	s.w = nil
}

// resolveCommit finds out what became of a commit that reported an error. It
// returns nil when the batch is stored.
func (s *Store) resolveCommit(ctx context.Context, cause error, firstID int64) error {
	s.rollback()
	if busy(cause) || full(cause) {
		return notStored(cause) // the commit record could not be written
	}
	if s.w != nil {
		stored, err := s.w.number(ctx, "SELECT count(*) FROM messages WHERE id = ?", firstID)
		if err == nil && stored == 1 {
			return nil
		}
	}
	// The record may have reached the file although the sync failed; a crash
	// before the next commit would bring it back.
	return fmt.Errorf("%w: sqlite: commit: %w", sequencer.ErrOutcomeUnknown, cause)
}
