package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/sequencer"
)

// startSequencer runs a sequencer on s until the test ends.
func startSequencer(t *testing.T, s sequencer.Log) *sequencer.Sequencer {
	t.Helper()
	sq := sequencer.New(s, sequencer.Options{})
	ctx, cancel := context.WithCancel(background)
	done := make(chan error, 1)
	go func() { done <- sq.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	<-sq.Ready()
	return sq
}

func TestB109_ParallelPublishersMeetNoBusy(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, filepath.Join(t.TempDir(), "a.db"), Options{})
	sq := startSequencer(t, s)
	const publishers, each = 50, 40
	var wg sync.WaitGroup
	for p := range publishers {
		wg.Go(func() {
			for i := range each {
				if _, err := sq.Append(background, one(fmt.Sprint("s", i%4), fmt.Sprint(p))); err != nil {
					t.Errorf("publisher %d: %v", p, err)
					return
				}
				if i%10 == 0 {
					if _, err := s.Trim(background, limits("count:300")); err != nil {
						t.Errorf("trim: %v", err)
					}
					if _, err := s.Range(background, "s0", 0, 10, 1000); err != nil {
						t.Errorf("range: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	for i := range 4 {
		span := head(t, s, fmt.Sprint("s", i))
		if span.Last != publishers*each/4 {
			t.Errorf("span %+v", span)
		}
		whole(t, s, fmt.Sprint("s", i), span.First-1)
	}
}

// TestB110_OutsideWriter: another program holds the write lock. Publishes wait
// and are then refused as busy, reads go on, and all is well afterwards.
func TestB110_OutsideWriter(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{BusyTimeout: 100 * time.Millisecond})
	fill(t, s, "s", 5)
	c := outsider(t, path)
	if err := c.exec(background, "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	// With a key, so that the transaction reads before it writes.
	_, err := s.Append(t.Context(), []sequencer.Request{keyed("s", "6", "k")})
	if !errors.Is(err, sequencer.ErrBusy) || !errors.Is(err, sequencer.ErrNotStored) {
		t.Fatalf("append: %v", err)
	}
	if took := time.Since(began); took < 90*time.Millisecond {
		t.Errorf("it was refused after %v, without waiting", took)
	}
	if got := len(whole(t, s, "s", 0)); got != 5 {
		t.Errorf("%d messages can be read", got)
	}
	s.Trim(t.Context(), limits("count:4")) // must not hang; whether it fails is its business
	answered := make(chan error, 1)
	s.opts.BusyTimeout = time.Minute
	if err := s.w.script(background, s.busyTimeout()); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := s.Append(background, []sequencer.Request{keyed("s", "6", "k")})
		answered <- err
	}()
	whole(t, s, "s", 0)
	if err := c.exec(background, "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatalf("a publish that waited for the lock: %v", err)
	}
	fill(t, s, "s", 3)
	if got := head(t, s, "s"); got.Last != 9 {
		t.Errorf("%+v", got)
	}
}

// TestOutsideWriter_TakesAnID: another program has written a message. The
// store finds a free id and goes on.
func TestOutsideWriter_TakesAnID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{})
	fill(t, s, "s", 5)
	c := outsider(t, path)
	if err := c.script(background, "INSERT INTO messages (id, channel_id, offset_, at, payload) VALUES (6, 99, 1, 1, x'30'), (7, 99, 2, 1, x'30')"); err != nil {
		t.Fatal(err)
	}
	fill(t, s, "s", 5)
	if got := len(whole(t, s, "s", 0)); got != 10 {
		t.Errorf("%d messages", got)
	}
}

// testDiskFull publishes until there is no room, then makes room.
func testDiskFull(t *testing.T, s *Store, makeRoom func()) {
	payload := `"` + strings.Repeat("x", 20_000) + `"`
	stored := 0
	for {
		results, err := s.Append(t.Context(), []sequencer.Request{one("s", payload), one("t", payload)})
		if err != nil {
			if !errors.Is(err, sequencer.ErrDiskFull) || !errors.Is(err, sequencer.ErrNotStored) {
				t.Fatalf("after %d: %v", stored, err)
			}
			break
		}
		if stored++; results[0].Placed[0].Offset != uint64(stored) || stored > 10_000 {
			t.Fatalf("%+v as number %d", results[0].Placed, stored)
		}
	}
	for range 5 {
		if _, err := s.Append(t.Context(), []sequencer.Request{one("s", payload)}); !errors.Is(err, sequencer.ErrDiskFull) {
			t.Fatalf("on a full disk: %v", err)
		}
	}
	for _, stream := range []string{"s", "t"} {
		if got := len(whole(t, s, stream, 0)); got != stored {
			t.Errorf("%s: %d messages, %d were acknowledged", stream, got, stored)
		}
	}
	makeRoom()
	mustAppend(t, s, one("s", payload), one("t", "1"))
	for _, stream := range []string{"s", "t"} {
		if got := len(whole(t, s, stream, 0)); got != stored+1 {
			t.Errorf("%s: %d messages once there is room, want %d", stream, got, stored+1)
		}
	}
	t.Logf("%d batches fitted", stored)
}

func TestB113_DatabaseFull(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{})
	if err := s.w.script(background, "PRAGMA max_page_count = 500"); err != nil {
		t.Fatal(err)
	}
	testDiskFull(t, s, func() {
		if err := s.w.script(background, "PRAGMA max_page_count = 100000"); err != nil {
			t.Fatal(err)
		}
	})
	epoch := s.epoch
	mustClose(t, s)
	if s = mustOpen(t, path, Options{}); s.epoch != epoch {
		t.Error("a full disk began another epoch")
	}
}

// TestWAL_StaysBoundedUnderSteadyReaders keeps two readers going whose reads
// overlap without a pause, and writes many times the bound.
func TestWAL_StaysBoundedUnderSteadyReaders(t *testing.T) {
	t.Parallel()
	const bound = 1 << 20
	path := filepath.Join(t.TempDir(), "a.db")
	s := mustOpen(t, path, Options{MaxWAL: bound})
	payload := `"` + strings.Repeat("x", 8000) + `"`
	mustAppend(t, s, one("s", payload))

	// Each of two readers keeps its snapshot until the other has one.
	stop := make(chan struct{})
	release := [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
	begun := make(chan struct{})
	var wg sync.WaitGroup
	reader := func(me int) {
		for first := me == 0; ; first = false {
			err := s.read(background, "test", func(c *conn) error {
				if _, err := s.channel(c, "s"); err != nil { // the snapshot begins here
					return err
				}
				if first {
					close(begun)
				} else {
					release[1-me] <- struct{}{}
				}
				select {
				case <-release[me]:
				case <-stop:
					return errStop
				}
				return nil
			})
			if err != nil {
				if !errors.Is(err, errStop) {
					t.Error(err)
				}
				return
			}
		}
	}
	wg.Go(func() { reader(0) })
	<-begun
	wg.Go(func() { reader(1) })
	most := int64(0)
	for range 20 {
		var batch []sequencer.Request
		for range 40 {
			batch = append(batch, one("s", payload))
		}
		mustAppend(t, s, batch...)
		s.walTry = time.Time{} // as if the pause between attempts had passed
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, info.Size())
	}
	close(stop)
	wg.Wait()
	if most > 3*bound {
		t.Errorf("the log grew to %d bytes, its bound is %d", most, bound)
	}
	t.Logf("6.4 MB written, at most %d bytes of log", most)
	whole(t, s, "s", 0)
}

// TestAppend_SurvivesABrokenConnection: the writing connection fails in the
// middle of a batch. Nothing of it is stored, and the next batch is.
func TestAppend_SurvivesABrokenConnection(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "a.db"), Options{})
	fill(t, s, "s", 3)
	for _, sql := range []string{"PRAGMA query_only = 1", "BEGIN IMMEDIATE"} {
		if err := s.w.script(background, sql); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Append(t.Context(), []sequencer.Request{one("s", "4")}); !errors.Is(err, sequencer.ErrNotStored) {
			t.Fatalf("%v", err)
		}
		before := head(t, s, "s").Last
		fill(t, s, "s", 1)
		if got := len(whole(t, s, "s", 0)); got != int(before)+1 {
			t.Errorf("%d messages after %d", got, before)
		}
	}
	if got := head(t, s, "s").Last; got != 5 {
		t.Errorf("head %d", got)
	}
}

// TestAppend_SurvivesAPanic: a batch panics half-way. The next one is stored.
func TestAppend_SurvivesAPanic(t *testing.T) {
	now := time.Now
	s := mustOpen(t, filepath.Join(t.TempDir(), "a.db"), Options{Now: func() time.Time { return now() }})
	fill(t, s, "s", 3)
	now = func() time.Time { panic("a bug") }
	func() {
		defer func() { recover() }()
		s.Append(t.Context(), []sequencer.Request{one("s", "4")})
	}()
	now = time.Now
	fill(t, s, "s", 3)
	if got := len(whole(t, s, "s", 0)); got != 6 {
		t.Errorf("%d messages", got)
	}
}

func TestClose_EverythingIsRefusedAfterwards(t *testing.T) {
	s := mustOpen(t, filepath.Join(t.TempDir(), "a.db"), Options{})
	fill(t, s, "s", 3)
	mustClose(t, s)
	mustClose(t, s)
	if _, err := s.Append(t.Context(), []sequencer.Request{one("s", "4")}); !errors.Is(err, sequencer.ErrClosed) || !errors.Is(err, sequencer.ErrNotStored) {
		t.Errorf("append: %v", err)
	}
	for name, read := range map[string]func() error{
		"range": func() error { _, err := s.Range(t.Context(), "s", 0, 1, 1); return err },
		"heads": func() error { _, err := s.Heads(t.Context(), []string{"s"}); return err },
		"since": func() error { _, _, err := s.Since(t.Context(), "s", 1); return err },
		"trim":  func() error { _, err := s.Trim(t.Context(), limits("count:1")); return err },
	} {
		if err := read(); err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
