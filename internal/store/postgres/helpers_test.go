package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

func mustOpen(t testing.TB, url string, o Options) *Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := Open(ctx, url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// outsider is a connection of its own, as the application has one.
func outsider(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func execute(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// node is a store with a sequencer that runs, as a server has them.
type node struct {
	*Store
	seq *sequencer.Sequencer
}

func startNode(t testing.TB, url string, o Options) *node {
	t.Helper()
	n := &node{Store: mustOpen(t, url, o)}
	n.seq = run(t, n.Store, sequencer.Options{})
	return n
}

// run runs a sequencer on log until the test ends.
func run(t testing.TB, log sequencer.Log, o sequencer.Options) *sequencer.Sequencer {
	t.Helper()
	s := sequencer.New(log, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	<-s.Ready()
	return s
}

func one(stream, data string) sequencer.Request {
	return sequencer.Request{{Stream: stream, Data: []byte(data)}}
}

func withKey(stream, data, key string) sequencer.Request {
	return sequencer.Request{{Stream: stream, Data: []byte(data), Key: key}}
}

// publish appends one broadcast that must be stored.
func (n *node) publish(t testing.TB, stream, data string) sequencer.Placed {
	t.Helper()
	placed, err := n.seq.Append(t.Context(), one(stream, data))
	if err != nil {
		t.Fatalf("publish to %s: %v", stream, err)
	}
	return placed[0]
}

func head(t testing.TB, s *Store, stream string) protocol.Span {
	t.Helper()
	spans, err := s.Heads(context.Background(), []string{stream})
	if err != nil {
		t.Fatal(err)
	}
	return spans[0]
}

// contents reads a whole stream, and checks that it has no holes.
func contents(t testing.TB, s *Store, stream string) []protocol.Message {
	t.Helper()
	var all []protocol.Message
	for {
		page, err := s.Range(context.Background(), stream, uint64(len(all)), 10_000, 64<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range page.Messages {
			if m.Offset != uint64(len(all)+1) {
				t.Fatalf("%s: offset %d where %d was due", stream, m.Offset, len(all)+1)
			}
			all = append(all, m)
		}
		if len(page.Messages) == 0 {
			if page.Last != uint64(len(all)) {
				t.Fatalf("%s: %d messages, but the head is %d", stream, len(all), page.Last)
			}
			return all
		}
	}
}

// load is a number of publishers who publish numbered messages through several
// nodes, repeat what was not stored, and note what they were told.
type load struct {
	nodes      []*node
	publishers int
	count      int // messages of each
	streams    int
	keyed      func(publisher int) bool // nil means nobody

	mu       sync.Mutex // guards what follows
	acked    map[[2]int]sequencer.Placed
	unknown  map[[2]int]int // unkeyed messages whose outcome was unknown, and how often they were sent
	refusals atomic.Int64
	progress atomic.Int64
}

func (l *load) stream(publisher int) string { return fmt.Sprintf("s%d", publisher%l.streams) }

// run returns when every message has been acknowledged, or, without a key, its
// outcome is unknown.
func (l *load) run(ctx context.Context, t *testing.T) {
	t.Helper()
	l.acked, l.unknown = map[[2]int]sequencer.Placed{}, map[[2]int]int{}
	var wg sync.WaitGroup
	for p := range l.publishers {
		wg.Go(func() {
			withKey := l.keyed != nil && l.keyed(p)
			for i := range l.count {
				id := [2]int{p, i}
				r := one(l.stream(p), fmt.Sprintf("[%d,%d]", p, i))
				if withKey {
					r[0].Key = fmt.Sprint(id)
				}
				for done := false; !done; {
					placed, err := l.nodes[(p+i)%len(l.nodes)].seq.Append(ctx, r)
					l.mu.Lock()
					switch {
					case err == nil:
						l.acked[id], done = placed[0], true
						l.progress.Add(1)
					case errors.Is(err, sequencer.ErrNotStored):
						l.refusals.Add(1)
					case errors.Is(err, sequencer.ErrOutcomeUnknown):
						l.refusals.Add(1)
						if !withKey {
							l.unknown[id]++
							done = true
						}
					default:
						t.Errorf("publisher %d: %v", p, err)
					}
					l.mu.Unlock()
					if ctx.Err() != nil {
						t.Errorf("publisher %d is still at message %d: %v", p, i, err)
						return
					}
					if !done {
						wait(ctx, 2*time.Millisecond)
					}
				}
			}
		})
	}
	wg.Wait()
}

// check reads everything and compares it with what the publishers were told.
// Unknown outcomes may be stored, once.
func (l *load) check(t *testing.T, s *Store) {
	t.Helper()
	stored := map[[2]int]int{}
	last := make([]int, l.publishers)
	for p := range last {
		last[p] = -1
	}
	for n := range l.streams {
		name := fmt.Sprintf("s%d", n)
		all := contents(t, s, name)
		for _, m := range all {
			var id [2]int
			if err := json.Unmarshal(m.Data, &id); err != nil {
				t.Fatal(err)
			}
			stored[id]++
			if id[1] <= last[id[0]] {
				t.Errorf("%s: publisher %d's message %d stands after its message %d", name, id[0], id[1], last[id[0]])
			}
			last[id[0]] = id[1]
		}
		for id, p := range l.acked {
			if l.stream(id[0]) != name {
				continue
			}
			if p.Offset > uint64(len(all)) || string(all[p.Offset-1].Data) != fmt.Sprintf("[%d,%d]", id[0], id[1]) {
				t.Errorf("message %v was acknowledged at %v and is not there", id, p.Position)
			}
		}
	}
	for p := range l.publishers {
		for i := range l.count {
			id := [2]int{p, i}
			switch n := stored[id]; {
			case n > 1:
				t.Errorf("message %v is stored %d times", id, n)
			case n == 0 && l.unknown[id] == 0:
				t.Errorf("message %v is lost", id)
			}
		}
	}
	t.Logf("%d messages acknowledged, %d outcomes unknown, %d refusals repeated", len(l.acked), len(l.unknown), l.refusals.Load())
}
