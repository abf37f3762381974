package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

func fill(t testing.TB, s *Store, stream string, n int) {
	t.Helper()
	for n > 0 {
		var batch []sequencer.Request
		for ; n > 0 && len(batch) < 500; n-- {
			batch = append(batch, one(stream, fmt.Sprint(n)))
		}
		if _, err := s.Append(context.Background(), batch); err != nil {
			t.Fatal(err)
		}
	}
}

func trimAll(t testing.TB, s *Store, r history.Retention) {
	t.Helper()
	for more := true; more; {
		var err error
		if more, err = s.Trim(context.Background(), r); err != nil {
			t.Fatal(err)
		}
	}
}

// Two nodes trim while publishers publish and readers page: a reader sees
// consecutive offsets up to the head, or is told that its place was trimmed.
func TestTrim_TwoTrimmersAndReaders(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := startNode(t, url, Options{}), mustOpen(t, url, Options{})
	for i := range 3 {
		fill(t, a.Store, fmt.Sprint("s", i), 2000)
	}
	keep := history.Retention{Default: history.Limits{Count: 50}}
	done := make(chan struct{})
	var writers, others sync.WaitGroup
	for i := range 3 {
		stream := fmt.Sprint("s", i)
		writers.Go(func() {
			for j := range 150 {
				if _, err := a.seq.Append(context.Background(), one(stream, fmt.Sprint(j))); err != nil {
					t.Error(err)
				}
			}
		})
		others.Go(func() {
			trimmed, pages := 0, 0
			for at := uint64(0); ; {
				select {
				case <-done:
					if trimmed == 0 && pages == 0 {
						t.Errorf("%s: the reader saw nothing", stream)
					}
					return
				default:
				}
				page, err := b.Range(context.Background(), stream, at, 7, 1<<20)
				if err != nil {
					t.Error(err)
					return
				}
				switch reason := page.Check(protocol.Position{Epoch: page.Epoch, Offset: at}); {
				case reason == protocol.ReasonTrimmed:
					trimmed++
					if len(page.Messages) > 0 {
						t.Errorf("%s: messages beside the word that they are gone", stream)
					}
					at = page.First - 1
				case reason != "":
					t.Errorf("%s: %s", stream, reason)
				default:
					pages++
					for _, m := range page.Messages {
						if at++; m.Offset != at {
							t.Errorf("%s: offset %d where %d was due", stream, m.Offset, at)
							return
						}
					}
					if len(page.Messages) == 0 && at != page.Last {
						t.Errorf("%s: an empty page at %d, the head is %d", stream, at, page.Last)
						return
					}
				}
			}
		})
	}
	for _, s := range []*Store{a.Store, b} {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := s.Trim(context.Background(), keep); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	others.Wait()
	trimAll(t, a.Store, keep)
	conn := outsider(t, url)
	for i := range 3 {
		stream := fmt.Sprint("s", i)
		if span := head(t, b, stream); span.Last != 2150 || span.First != 2101 {
			t.Errorf("%s: %+v", stream, span)
		}
		var count, bytes, noted int
		if err := conn.QueryRow(t.Context(), `SELECT count(*), sum(octet_length(payload)), max(c.bytes) FROM chronocast.messages m
			JOIN chronocast.channels c ON c.id = m.channel_id JOIN chronocast.streams s ON s.id = c.id WHERE s.name = $1`, stream).Scan(&count, &bytes, &noted); err != nil {
			t.Fatal(err)
		}
		if count != 50 || bytes != noted {
			t.Errorf("%s: %d messages of %d bytes, %d noted", stream, count, bytes, noted)
		}
	}
}

// A stream that somebody's transaction holds is left for later, and the others
// are trimmed meanwhile; nobody waits.
func TestTrim_SkipsHeldStreams(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	s := mustOpen(t, url, Options{})
	for _, stream := range []string{"a", "held", "z"} {
		fill(t, s, stream, 100)
	}
	keep := history.Retention{Default: history.Limits{Count: 10}}
	tx := begin(t, outsider(t, url))
	broadcastIn(t, tx, "held", `1`)
	began := time.Now()
	trimAll(t, s, keep)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("trimming took %v", took)
	}
	for stream, first := range map[string]uint64{"a": 91, "held": 1, "z": 91} {
		if span := head(t, s, stream); span.First != first {
			t.Errorf("%s: %+v", stream, span)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	trimAll(t, s, keep)
	if span := head(t, s, "held"); span.First != 92 || span.Last != 101 {
		t.Errorf("after the commit: %+v", span)
	}
}

// More streams than one step trims or looks at.
func TestTrim_ManyStreams(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	s := mustOpen(t, url, Options{})
	const streams = trimChannels + 100
	for round := range 3 {
		var batch []sequencer.Request
		for i := range streams {
			batch = append(batch, one(fmt.Sprint(i), fmt.Sprint(round)))
		}
		if _, err := s.Append(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	trimAll(t, s, history.Retention{Default: history.Limits{Count: 1}})
	for i := range streams {
		if span := head(t, s, fmt.Sprint(i)); span.First != 3 || span.Last != 3 {
			t.Fatalf("stream %d: %+v", i, span)
		}
	}
}

// Journal rows of writers that are no more go in the end; that of a writer that
// has something to lose does not.
func TestTrim_Journal(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	s := mustOpen(t, url, Options{})
	fill(t, s, "s", 3)
	conn := outsider(t, url)
	execute(t, conn, `INSERT INTO chronocast.writers (id, seq, lasts, at) VALUES (gen_random_uuid(), 1, '{1}', now() - interval '31 days'), (gen_random_uuid(), 1, '{1}', now() - interval '29 days')`)
	trimAll(t, s, history.Retention{})
	var n int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM chronocast.writers`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d journal rows, %v", n, err)
	}
	fill(t, s, "s", 3)
	contents(t, s, "s")
}

// The nodes' clocks differ by an hour and jump: order, numbering and epoch do
// not care.
func TestB14_ClocksJump(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	l := &load{publishers: 12, count: 20, streams: 2, keyed: func(p int) bool { return p%3 == 0 }}
	for i := range 3 {
		var mu sync.Mutex
		calls := 0
		l.nodes = append(l.nodes, startNode(t, url, Options{Now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			calls++
			return time.Now().Add(time.Duration((calls/5+i)%3-1) * time.Hour)
		}}))
	}
	before := head(t, l.nodes[0].Store, "s0").Epoch
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l.run(ctx, t)
	l.check(t, l.nodes[1].Store)
	for _, n := range l.nodes {
		if got := head(t, n.Store, "s0").Epoch; got != before {
			t.Errorf("the epoch went from %v to %v", before, got)
		}
	}
}
