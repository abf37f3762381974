//go:build unix

package postgres

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// The benchmarks compare, on one database and in one run, what order costs.
// All contestants write the same payloads into tables of the same shape, with
// fsync and synchronous_commit on:
//
//	naive      a transaction for each broadcast: BEGIN, SELECT FOR UPDATE, UPDATE, INSERT, COMMIT
//	single     the same in one statement for each broadcast
//	unordered  batched inserts through the same sequencer, numbered by a sequence: no order, no lock
//	ours       the sequencer on the store, with a listener and the doorbell
//	silent     the same without the doorbell
//	bare       one prepared insert of one row (a lone publisher only)
//
// Rounds of all contestants take turns; the metrics are medians over the rounds
// and, for ratios, medians of each round's ratio. Where the server runs on this
// machine the processor time of its backends and of this process is counted
// too: on a machine that others use it is the steadier measure. A ratio A/B is
// how many times as fast A is, a cpu ratio how many times as frugal.
const (
	benchRounds = 5
	benchRound  = 250 * time.Millisecond
)

type contestant struct {
	name    string
	publish func(stream int, data []byte) error
}

// measured is what one round showed.
type measured struct {
	rate     float64
	p50, p99 time.Duration
	cpu      float64 // messages for a second of processor time; 0 when it is not known
}

// processors tells the processor time used by this process and the backends of
// the databases in the field.
type processors struct {
	conn *pgx.Conn
	also string // another database
}

func (p processors) used() (sum time.Duration) {
	found, err := p.conn.Query(context.Background(), `SELECT pid FROM pg_stat_activity WHERE datname IN (current_database(), $1) AND backend_type = 'client backend'`, p.also)
	if err != nil {
		return 0
	}
	var pid int
	_, _ = pgx.ForEachRow(found, []any{&pid}, func() error {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		var running int64
		_, _ = fmt.Sscan(string(stat), &running)
		sum += time.Duration(running)
		return nil
	})
	if sum == 0 {
		return 0
	}
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return 0
	}
	return sum + time.Duration(own.Utime.Nano()+own.Stime.Nano())
}

func measure(publishers, streams int, data []byte, d time.Duration, c contestant, p processors) measured {
	var wg sync.WaitGroup
	took := make([][]time.Duration, publishers)
	before := p.used()
	began := time.Now()
	end := began.Add(d)
	for n := range publishers {
		wg.Go(func() {
			for i := n; ; i += publishers {
				start := time.Now()
				if start.After(end) {
					return
				}
				if err := c.publish(i%streams, data); err != nil {
					panic(fmt.Sprintf("%s: %v", c.name, err))
				}
				took[n] = append(took[n], time.Since(start))
			}
		})
	}
	wg.Wait()
	lasted, used := time.Since(began), p.used()-before
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) == 0 {
		return measured{}
	}
	m := measured{rate: float64(len(all)) / lasted.Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100]}
	if used > 0 {
		m.cpu = float64(len(all)) / used.Seconds()
	}
	return m
}

func median[T float64 | time.Duration](x []T) T {
	x = slices.Clone(x)
	slices.Sort(x)
	return x[len(x)/2]
}

// compete runs the rounds and returns each contestant's.
func compete(p processors, publishers, streams int, data []byte, contestants ...contestant) map[string][]measured {
	for _, c := range contestants { // fill the caches
		measure(min(publishers, 64), streams, data, benchRound/2, c, p)
	}
	rounds := map[string][]measured{}
	for r := range benchRounds {
		for i := range contestants {
			c := contestants[(i+r)%len(contestants)]
			rounds[c.name] = append(rounds[c.name], measure(publishers, streams, data, benchRound, c, p))
		}
	}
	return rounds
}

func column[T float64 | time.Duration](rounds []measured, f func(measured) T) []T {
	var out []T
	for _, m := range rounds {
		out = append(out, f(m))
	}
	return out
}

func rate(m measured) float64      { return m.rate }
func cpu(m measured) float64       { return m.cpu }
func p50(m measured) time.Duration { return m.p50 }
func p99(m measured) time.Duration { return m.p99 }

// ratio is the median over the rounds of what f shows of a against b.
func ratio[T float64 | time.Duration](rounds map[string][]measured, a, b string, f func(measured) T) float64 {
	var out []float64
	for i := range rounds[a] {
		out = append(out, float64(f(rounds[a][i]))/float64(f(rounds[b][i])))
	}
	return median(out)
}

func report(b *testing.B, rounds map[string][]measured, name string) {
	b.ReportMetric(median(column(rounds[name], rate)), name+"-msg/s")
	b.ReportMetric(float64(median(column(rounds[name], p50)))/1e6, name+"-p50-ms")
	b.ReportMetric(float64(median(column(rounds[name], p99)))/1e6, name+"-p99-ms")
}

// versus reports how a fares against b.
func versus(b *testing.B, rounds map[string][]measured, x, y string) {
	b.ReportMetric(ratio(rounds, x, y, rate), x+"/"+y)
	if r := ratio(rounds, x, y, cpu); r > 0 {
		b.ReportMetric(r, "cpu-"+x+"/"+y)
	}
}

func benchPayload() []byte { return []byte(`"` + strings.Repeat("x", 298) + `"`) }

func BenchmarkOrder(b *testing.B) {
	url := pgtest.Database(b)
	t := newRivals(b, url)
	ours, silent := t.ours(b, url, 1, true), t.ours(b, t.apart(b), 1, false)
	for _, streams := range []int{1, 1000} {
		for _, publishers := range []int{1, 32, 512} {
			b.Run(fmt.Sprintf("streams=%d/publishers=%d", streams, publishers), func(b *testing.B) {
				field := []contestant{t.naive, t.single, t.unordered, ours, silent}
				if publishers == 1 {
					field = append(field, t.bare)
				}
				var rounds map[string][]measured
				for b.Loop() {
					rounds = compete(t.processors, publishers, streams, benchPayload(), field...)
				}
				b.ReportMetric(0, "ns/op")
				for _, c := range field {
					report(b, rounds, c.name)
				}
				versus(b, rounds, "ours", "naive")
				versus(b, rounds, "ours", "unordered")
				versus(b, rounds, "silent", "unordered")
				versus(b, rounds, "ours", "silent")
				if publishers == 1 {
					b.ReportMetric(ratio(rounds, "ours", "bare", p50), "ours-p50/bare-p50")
					b.ReportMetric(ratio(rounds, "silent", "bare", p50), "silent-p50/bare-p50")
				}
			})
		}
	}
}

// BenchmarkNodes spreads the publishers over several nodes.
func BenchmarkNodes(b *testing.B) {
	url := pgtest.Database(b)
	t := newRivals(b, url)
	for _, nodes := range []int{1, 2, 4} {
		ours, silent := t.ours(b, url, nodes, true), t.ours(b, t.apart(b), nodes, false)
		for _, streams := range []int{1, 1000} {
			b.Run(fmt.Sprintf("nodes=%d/streams=%d/publishers=512", nodes, streams), func(b *testing.B) {
				var rounds map[string][]measured
				for b.Loop() {
					rounds = compete(t.processors, 512, streams, benchPayload(), ours, silent, t.unordered)
				}
				b.ReportMetric(0, "ns/op")
				report(b, rounds, "ours")
				report(b, rounds, "silent")
				versus(b, rounds, "ours", "silent")
				versus(b, rounds, "ours", "unordered")
			})
		}
	}
}

// BenchmarkOffset compares a lone publisher's latency at the beginning of a
// stream and behind its millionth message.
func BenchmarkOffset(b *testing.B) {
	var field []contestant
	for _, n := range []int{10, 1_000_000} {
		url := pgtest.Database(b)
		s := startNode(b, url, Options{})
		if _, err := s.seq.Append(b.Context(), one("s", `1`)); err != nil {
			b.Fatal(err)
		}
		conn := outsider(b, url)
		execute(b, conn, `INSERT INTO chronocast.messages (channel_id, offset_, at, payload) SELECT 1, n, now(), '1' FROM generate_series(2, $1::bigint) AS n`, n)
		execute(b, conn, `UPDATE chronocast.channels SET last_offset = $1`, n)
		execute(b, conn, `CHECKPOINT`)
		data := benchPayload()
		field = append(field, contestant{fmt.Sprint("at", n), func(int, []byte) error {
			_, err := s.seq.Append(context.Background(), sequencer.Request{{Stream: "s", Data: data}})
			return err
		}})
	}
	var rounds map[string][]measured
	for b.Loop() {
		rounds = compete(processors{conn: outsider(b, pgtest.Database(b))}, 1, 1, benchPayload(), field...)
	}
	b.ReportMetric(0, "ns/op")
	for _, c := range field {
		report(b, rounds, c.name)
	}
	b.ReportMetric(ratio(rounds, field[1].name, field[0].name, p50), "p50-late/early")
}

// apart makes a database for a contestant that would share its tables with
// another: an index with twice the messages is the slower one.
func (t *rivals) apart(b *testing.B) string {
	url := pgtest.Database(b)
	t.processors.also = outsider(b, url).Config().Database
	return url
}

// rivals are the other ways to store the same, in tables of their own.
type rivals struct {
	naive, single, unordered, bare contestant
	processors                     processors
}

func newRivals(b *testing.B, url string) *rivals {
	conn := outsider(b, url)
	execute(b, conn, `
		CREATE SCHEMA rivals;
		CREATE TABLE rivals.channels (id bigint PRIMARY KEY, last_offset bigint NOT NULL) WITH (fillfactor = 50);
		INSERT INTO rivals.channels SELECT n, 0 FROM generate_series(1, 1000) AS n;
		CREATE TABLE rivals.messages (channel_id bigint NOT NULL, offset_ bigint NOT NULL, at timestamptz NOT NULL, payload bytea NOT NULL,
			PRIMARY KEY (channel_id, offset_));
		CREATE SEQUENCE rivals.unordered_offset CACHE 1000;
		CREATE TABLE rivals.unordered (channel_id bigint NOT NULL, offset_ bigint NOT NULL DEFAULT nextval('rivals.unordered_offset'),
			at timestamptz NOT NULL, payload bytea NOT NULL, PRIMARY KEY (channel_id, offset_))`)
	pool, err := pgxpool.New(b.Context(), url+"&pool_max_conns=48")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	ctx := context.Background()
	seq := run(b, &unordered{conn: outsider(b, url)}, sequencer.Options{})
	lone := outsider(b, url)
	return &rivals{
		processors: processors{conn: outsider(b, url)},
		naive: contestant{"naive", func(stream int, data []byte) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				var last int64
				if err := tx.QueryRow(ctx, `SELECT last_offset FROM rivals.channels WHERE id = $1 FOR UPDATE`, stream+1).Scan(&last); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, `UPDATE rivals.channels SET last_offset = $2 WHERE id = $1`, stream+1, last+1); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `INSERT INTO rivals.messages VALUES ($1, $2, now(), $3)`, stream+1, last+1, data)
				return err
			})
		}},
		single: contestant{"single", func(stream int, data []byte) error {
			_, err := pool.Exec(ctx, `WITH bump AS (UPDATE rivals.channels SET last_offset = last_offset + 1 WHERE id = $1 RETURNING id, last_offset)
				INSERT INTO rivals.messages SELECT id, last_offset, now(), $2 FROM bump`, stream+1, data)
			return err
		}},
		unordered: contestant{"unordered", func(stream int, data []byte) error {
			_, err := seq.Append(ctx, sequencer.Request{{Stream: benchStreams[stream], Data: data}})
			return err
		}},
		bare: contestant{"bare", func(stream int, data []byte) error {
			_, err := lone.Exec(ctx, `INSERT INTO rivals.unordered (channel_id, at, payload) VALUES ($1, now(), $2)`, stream+1, data)
			return err
		}},
	}
}

var benchStreams = func() (names [1000]string) {
	for i := range names {
		names[i] = fmt.Sprintf("stream/%d", i)
	}
	return names
}()

// ours spreads the publishers over nodes, with one listener for each.
func (t *rivals) ours(b *testing.B, url string, nodes int, ring bool) contestant {
	var seqs []*sequencer.Sequencer
	for range nodes {
		n := startNode(b, url, Options{})
		n.Ring(ring)
		seqs = append(seqs, n.seq)
		var all sequencer.Request // the streams are made before anything is measured
		for _, stream := range benchStreams {
			all = append(all, sequencer.Broadcast{Stream: stream, Data: []byte(`1`)})
		}
		if _, err := n.seq.Append(b.Context(), all); err != nil {
			b.Fatal(err)
		}
		if ring {
			listen(b, url)
		}
	}
	var turn atomic.Int64
	name := "silent"
	if ring {
		name = "ours"
	}
	return contestant{name, func(stream int, data []byte) error {
		_, err := seqs[int(turn.Add(1))%nodes].Append(context.Background(), sequencer.Request{{Stream: benchStreams[stream], Data: data}})
		return err
	}}
}

// listen hears the doorbell until the benchmark ends.
func listen(b *testing.B, url string) {
	conn, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	execute(b, conn, `LISTEN chronocast`)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close(context.Background())
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
		}
	}()
	b.Cleanup(func() {
		cancel()
		<-done
	})
}

// unordered stores batches without locking or numbering any stream.
type unordered struct {
	conn     *pgx.Conn
	prepared bool
	ids      map[string]int64
	args     [2]array
}

func (u *unordered) Append(ctx context.Context, batch []sequencer.Request) ([]sequencer.Result, error) {
	if !u.prepared {
		u.prepared, u.ids = true, map[string]int64{}
		if _, err := u.conn.PgConn().Prepare(ctx, "unordered", `INSERT INTO rivals.unordered (channel_id, at, payload)
			SELECT r.id, statement_timestamp(), r.payload FROM unnest($1::bigint[], $2::bytea[]) AS r (id, payload)`, nil); err != nil {
			return nil, err
		}
	}
	u.args[0].reset(pgtype.Int8OID)
	u.args[1].reset(pgtype.ByteaOID)
	placed := make([]sequencer.Placed, len(batch))
	results := make([]sequencer.Result, len(batch))
	for i, r := range batch {
		id, known := u.ids[r[0].Stream]
		if !known {
			id = int64(len(u.ids) + 1)
			u.ids[r[0].Stream] = id
		}
		u.args[0].int(id)
		u.args[1].data(r[0].Data)
		placed[i] = sequencer.Placed{Position: protocol.Position{Epoch: 1, Offset: 1}, Repeat: true}
		results[i].Placed = placed[i : i+1 : i+1]
	}
	_, err := u.conn.PgConn().ExecPrepared(ctx, "unordered", [][]byte{u.args[0].bytes(), u.args[1].bytes()}, []int16{1}, nil).Close()
	return results, err
}
