package sqlite

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// BenchmarkOrder compares, on one machine and in one run, what an ordered log
// costs. All three write the same payloads through the same kind of
// connection with synchronous=FULL, each to a file of its own:
//
//	naive      one transaction per broadcast: lock, bump the channel row, insert, commit
//	unordered  group commit of rows without order: no channel row, no index by place
//	ours       the sequencer on the store
//
// One iteration is one round of each, one after the other; the metrics are
// medians over the rounds. Run it with -benchtime=15x.
func BenchmarkOrder(b *testing.B) {
	const publishers = 64
	payload := []byte(`"` + strings.Repeat("x", 298) + `"`)
	for _, streams := range []int{1, 1000} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			names := make([]string, streams)
			for i := range names {
				names[i] = fmt.Sprintf("stream/%d", i)
			}
			naive := newNaive(b)
			unordered := benchSequencer(b, newUnordered(b))
			ours := benchSequencer(b, benchStore(b))
			// Create the channel rows and fill the caches.
			for _, publish := range []publishFunc{naive, unordered, ours} {
				measure(publishers, names, payload, 300*time.Millisecond, publish)
			}
			var rates [3][]float64
			for b.Loop() {
				for i, publish := range []publishFunc{naive, unordered, ours} {
					rates[i] = append(rates[i], measure(publishers, names, payload, 250*time.Millisecond, publish))
				}
			}
			var toNaive, toUnordered []float64 // within each round, so that a busy moment of the machine counts for all
			for i := range rates[2] {
				toNaive = append(toNaive, rates[2][i]/rates[0][i])
				toUnordered = append(toUnordered, rates[2][i]/rates[1][i])
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(rates[0]), "naive-msg/s")
			b.ReportMetric(median(rates[1]), "unordered-msg/s")
			b.ReportMetric(median(rates[2]), "ours-msg/s")
			b.ReportMetric(median(toNaive), "ours/naive")
			b.ReportMetric(median(toUnordered), "ours/unordered")
		})
	}
}

// BenchmarkAppend is the store alone: one call with a full batch.
func BenchmarkAppend(b *testing.B) {
	payload := []byte(`"` + strings.Repeat("x", 298) + `"`)
	for _, streams := range []int{1, 1000} {
		b.Run(fmt.Sprintf("streams=%d/batch=256", streams), func(b *testing.B) {
			s := benchStore(b)
			n := 0
			for b.Loop() {
				batch := make([]sequencer.Request, 256)
				for i := range batch {
					n++
					batch[i] = sequencer.Request{{Stream: fmt.Sprintf("stream/%d", n%streams), Data: payload}}
				}
				if _, err := s.Append(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// BenchmarkRange reads pages of a thousand from a stream whose rows lie among
// those of others.
func BenchmarkRange(b *testing.B) {
	s := benchStore(b)
	payload := []byte(`"` + strings.Repeat("x", 298) + `"`)
	for i := range 40 {
		batch := make([]sequencer.Request, 1000)
		for j := range batch {
			batch[j] = sequencer.Request{{Stream: fmt.Sprintf("stream/%d", (i*1000+j)%4), Data: payload}}
		}
		if _, err := s.Append(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	rows := 0
	for b.Loop() {
		page, err := s.Range(b.Context(), "stream/1", uint64(rows%9)*1000, 1000, 4<<20)
		if err != nil || len(page.Messages) != 1000 {
			b.Fatal(len(page.Messages), err)
		}
		rows += len(page.Messages)
	}
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
}

type publishFunc func(stream string, data []byte) error

// measure returns broadcasts per second while publishers publish for a time.
func measure(publishers int, names []string, payload []byte, d time.Duration, publish publishFunc) float64 {
	var total atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	end := began.Add(d)
	for p := range publishers {
		wg.Go(func() {
			for i := p; time.Now().Before(end); i += publishers {
				if err := publish(names[i%len(names)], payload); err != nil {
					panic(err)
				}
				total.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(total.Load()) / time.Since(began).Seconds()
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.SortFunc(x, cmp.Compare)
	return x[len(x)/2]
}

func benchStore(b *testing.B) *Store {
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "bench.db"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

func benchSequencer(b *testing.B, log sequencer.Log) publishFunc {
	sq := sequencer.New(log, sequencer.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sq.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	<-sq.Ready()
	return func(stream string, data []byte) error {
		_, err := sq.Append(context.Background(), sequencer.Request{{Stream: stream, Data: data}})
		return err
	}
}

// rawWriter is the store's own kind of connection on a file of its own.
func rawWriter(b *testing.B, schema string) *conn {
	s := &Store{path: filepath.Join(b.TempDir(), "raw.db"), opts: Options{}.withDefaults()}
	c, err := s.openWriter(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if err := c.script(b.Context(), schema); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.close() })
	return c
}

// newNaive is one transaction per broadcast. The connection is shared under a
// mutex: with one each, the 64 would wait for each other in SQLite's busy
// handler, which sleeps, and look worse than they are.
func newNaive(b *testing.B) publishFunc {
	c := rawWriter(b, `
		CREATE TABLE channels (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, last_offset INTEGER NOT NULL) STRICT;
		CREATE TABLE messages (id INTEGER PRIMARY KEY, channel_id INTEGER NOT NULL, offset_ INTEGER NOT NULL, at INTEGER NOT NULL, payload BLOB NOT NULL) STRICT;
		CREATE UNIQUE INDEX messages_place ON messages (channel_id, offset_);`)
	var mu sync.Mutex
	ctx := context.Background()
	return func(stream string, data []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if err := c.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
			return err
		}
		var id, offset int64
		found, err := c.first(ctx, "SELECT id, last_offset FROM channels WHERE name = ?",
			func(row []driver.Value) { id, offset = row[0].(int64), row[1].(int64) }, stream)
		if err != nil {
			return err
		}
		offset++
		if found {
			err = c.exec(ctx, "UPDATE channels SET last_offset = ? WHERE id = ?", offset, id)
		} else {
			id, err = c.number(ctx, "INSERT INTO channels (name, last_offset) VALUES (?, ?) RETURNING id", stream, offset)
		}
		if err != nil {
			return err
		}
		err = c.exec(ctx, "INSERT INTO messages (channel_id, offset_, at, payload) VALUES (?, ?, ?, ?)", id, offset, time.Now().UnixMicro(), data)
		if err != nil {
			return err
		}
		return c.exec(ctx, "COMMIT")
	}
}

// unordered appends rows in batches and gives them no place in a stream.
type unordered struct {
	c    *conn
	args []driver.Value
	id   int64
	hash map[string]int64
}

func newUnordered(b *testing.B) sequencer.Log {
	return &unordered{c: rawWriter(b, `CREATE TABLE messages (id INTEGER PRIMARY KEY, channel_id INTEGER NOT NULL,
		offset_ INTEGER NOT NULL, at INTEGER NOT NULL, payload BLOB NOT NULL) STRICT`), hash: map[string]int64{}}
}

func (u *unordered) Append(ctx context.Context, batch []sequencer.Request) ([]sequencer.Result, error) {
	ctx = context.WithoutCancel(ctx)
	if err := u.c.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		return nil, err
	}
	at := time.Now().UnixMicro()
	results := make([]sequencer.Result, len(batch))
	next := 0
	for _, chunk := range chunks {
		for len(batch)-next >= chunk {
			u.args = u.args[:0]
			for range chunk {
				r := batch[next]
				channel, ok := u.hash[r[0].Stream]
				if !ok {
					channel = int64(len(u.hash) + 1)
					u.hash[r[0].Stream] = channel
				}
				u.id++
				u.args = append(u.args, u.id, channel, u.id, at, r[0].Data)
				results[next].Placed = []sequencer.Placed{{Position: protocol.Position{Epoch: 1, Offset: uint64(u.id)}, At: at}}
				next++
			}
			if err := u.c.exec(ctx, sqlInsert[chunk], u.args...); err != nil {
				return nil, err
			}
		}
	}
	return results, u.c.exec(ctx, "COMMIT")
}
