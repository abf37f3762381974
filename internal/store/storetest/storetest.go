// Package storetest is the suite that every store must pass: what the
// sequencer, the hub and the history endpoint rely on, said once.
package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// Store is a store under test.
type Store interface {
	sequencer.Log
	history.Log
	Close() error
}

// Options are what the suite wishes of a store.
type Options struct {
	Now       func() time.Time
	KeyWindow time.Duration
}

// Database is one empty database of its own. Open may be called again after
// the store is closed, and finds what was there.
type Database struct {
	Open func(t *testing.T, o Options) Store
	// SetLast moves a stream's head, as years of broadcasting would.
	SetLast func(t *testing.T, stream string, last uint64)
	// Shared says that several stores may have the database open at once.
	Shared bool
}

// Run runs the suite; fresh makes a new database for each test.
func Run(t *testing.T, fresh func(t *testing.T) Database) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, e *env)
	}{
		{"OffsetsAreContiguous", testContiguous},
		{"RequestIsAtomic", testAtomic},
		{"B49_B62_StreamNeverUsedHasAPosition", testNeverUsed},
		{"HeadsInTheOrderAsked", testHeads},
		{"B53_RepeatedKeyChangesNothing", testRepeat},
		{"RepeatsWithinOneBatch", testRepeatInBatch},
		{"KeyConflict", testConflict},
		{"B85_RefusedRequestLeavesNoKey", testRefusedKey},
		{"B86_NoKeyIsNoKey", testNoKey},
		{"B88_KeyWindowEdges", testKeyWindow},
		{"B89_RetriesNeitherDoubleNorLose", testRetries},
		{"B116_StreamFull", testFull},
		{"B38_PagesRunUpward", testPages},
		{"B40_AnyRangeIsComplete", testRanges},
		{"B41_OneCommitInPagesOfOne", testPagesOfOne},
		{"PageBytes", testPageBytes},
		{"B11_ReadersSeeNoHoles", testReaders},
		{"TwoWriters", testTwoWriters},
		{"Since", testSince},
		{"ClockGoingBack", testClockBack},
		{"TrimByCount", testTrimCount},
		{"TrimByBytes", testTrimBytes},
		{"TrimByAge", testTrimAge},
		{"TrimByRule", testTrimRule},
		{"TrimStarvesNothing", testTrimStarvesNothing},
		{"B31_TrimWhilePaging", testTrimWhilePaging},
		{"TrimWhilePublishing", testTrimWhilePublishing},
		{"B92_Names", testNames},
		{"I20_BytesInAreBytesOut", testBytes},
		{"ReopenKeepsEverything", testReopen},
		{"EndedContext", testEndedContext},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := &env{t: t, db: fresh(t), clock: time.UnixMicro(1_800_000_000_000_000)}
			e.open()
			t.Cleanup(func() { e.store.Close() })
			test.run(t, e)
		})
	}
}

// env is one database, its store and the clock it lives by.
type env struct {
	t     *testing.T
	db    Database
	store Store

	mu    sync.Mutex
	clock time.Time
}

const keyWindow = time.Hour

func (e *env) now() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.clock
}

// pass moves the clock.
func (e *env) pass(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clock = e.clock.Add(d)
}

func (e *env) open() { e.store = e.db.Open(e.t, Options{Now: e.now, KeyWindow: keyWindow}) }

func (e *env) reopen() {
	e.t.Helper()
	if err := e.store.Close(); err != nil {
		e.t.Fatalf("close: %v", err)
	}
	e.open()
}

// one is a request of one broadcast.
func one(stream, data string) sequencer.Request {
	return sequencer.Request{{Stream: stream, Data: []byte(data)}}
}

func keyed(stream, data, key string) sequencer.Request {
	return sequencer.Request{{Stream: stream, Data: []byte(data), Key: key}}
}

// append commits one batch that must not fail as a whole.
func (e *env) append(batch ...sequencer.Request) []sequencer.Result {
	e.t.Helper()
	results, err := e.store.Append(e.t.Context(), batch)
	if err != nil {
		e.t.Fatalf("append: %v", err)
	}
	if len(results) != len(batch) {
		e.t.Fatalf("append: %d results for %d requests", len(results), len(batch))
	}
	for i, r := range results {
		if r.Err == nil && len(r.Placed) != len(batch[i]) {
			e.t.Fatalf("append: %d places for the %d broadcasts of request %d", len(r.Placed), len(batch[i]), i)
		}
	}
	return results
}

// place commits one request that must be stored.
func (e *env) place(r sequencer.Request) sequencer.Placed {
	e.t.Helper()
	result := e.append(r)[0]
	if result.Err != nil {
		e.t.Fatalf("append: %v", result.Err)
	}
	return result.Placed[0]
}

// fill appends n messages, whose payloads are their offsets, in batches.
func (e *env) fill(stream string, n int) {
	e.t.Helper()
	next := int(e.head(stream).Last) + 1
	for n > 0 {
		var batch []sequencer.Request
		for ; n > 0 && len(batch) < 250; n-- {
			batch = append(batch, one(stream, fmt.Sprint(next)))
			next++
		}
		e.append(batch...)
	}
}

func (e *env) head(stream string) protocol.Span {
	e.t.Helper()
	spans, err := e.store.Heads(e.t.Context(), []string{stream})
	if err != nil || len(spans) != 1 {
		e.t.Fatalf("heads: %v, %v", spans, err)
	}
	return spans[0]
}

func (e *env) page(stream string, after uint64, limit, maxBytes int) history.Page {
	e.t.Helper()
	page, err := e.store.Range(e.t.Context(), stream, after, limit, maxBytes)
	if err != nil {
		e.t.Fatalf("range: %v", err)
	}
	return page
}

// all reads a stream from an offset on and checks that it is whole.
func (e *env) all(stream string, after uint64) []protocol.Message {
	e.t.Helper()
	var all []protocol.Message
	for {
		page := e.page(stream, after, 1000, 1<<30)
		if r := page.Check(protocol.Position{Epoch: page.Epoch, Offset: after}); r != "" {
			e.t.Fatalf("%q after %d: %s, span %+v", stream, after, r, page.Span)
		}
		if len(page.Messages) == 0 {
			if after != page.Last {
				e.t.Fatalf("%q: an empty page after %d, the head is %d", stream, after, page.Last)
			}
			return all
		}
		for _, m := range page.Messages {
			if after++; m.Offset != after {
				e.t.Fatalf("%q: offset %d where %d was due", stream, m.Offset, after)
			}
		}
		all = append(all, page.Messages...)
	}
}

// trim removes all that the limits do not keep.
func (e *env) trim(r history.Retention) (steps int) {
	e.t.Helper()
	for more := true; more; steps++ {
		var err error
		if more, err = e.store.Trim(e.t.Context(), r); err != nil {
			e.t.Fatalf("trim: %v", err)
		}
		if steps > 10_000 {
			e.t.Fatal("trimming does not end")
		}
	}
	return steps
}

// publishers appends through a sequencer from n goroutines; each publishes
// count messages one after the other, named by publisher and number.
func (e *env) publishers(log sequencer.Log, stream string, n, count int) {
	ctx, cancel := context.WithCancel(e.t.Context())
	sq := sequencer.New(log, sequencer.Options{})
	done := make(chan error, 1)
	go func() { done <- sq.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	<-sq.Ready()
	var wg sync.WaitGroup
	for p := range n {
		wg.Go(func() {
			for i := range count {
				if _, err := sq.Append(ctx, one(stream, fmt.Sprintf("[%d,%d]", p, i))); err != nil {
					e.t.Errorf("publisher %d: %v", p, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
