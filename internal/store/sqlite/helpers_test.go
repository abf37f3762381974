package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(victimEnv); path != "" {
		os.Exit(victim(path))
	}
	goleak.VerifyTestMain(m)
}

func mustOpen(t *testing.T, path string, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustClose(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// outsider is a connection of its own, as another program would have one.
func outsider(t *testing.T, path string) *conn {
	t.Helper()
	c, err := openConn(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.close() })
	return c
}

func one(stream, data string) sequencer.Request {
	return sequencer.Request{{Stream: stream, Data: []byte(data)}}
}

func keyed(stream, data, key string) sequencer.Request {
	return sequencer.Request{{Stream: stream, Data: []byte(data), Key: key}}
}

// fill appends n messages, whose payloads are their offsets, in batches.
func fill(t *testing.T, s *Store, stream string, n int) {
	t.Helper()
	for next := int(head(t, s, stream).Last) + 1; n > 0; {
		var batch []sequencer.Request
		for ; n > 0 && len(batch) < 100; n-- {
			batch = append(batch, one(stream, fmt.Sprint(next)))
			next++
		}
		mustAppend(t, s, batch...)
	}
}

func mustAppend(t *testing.T, s *Store, batch ...sequencer.Request) []sequencer.Result {
	t.Helper()
	results, err := s.Append(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return results
}

func head(t *testing.T, s *Store, stream string) protocol.Span {
	t.Helper()
	spans, err := s.Heads(t.Context(), []string{stream})
	if err != nil {
		t.Fatal(err)
	}
	return spans[0]
}

// whole reads a stream after an offset and checks that it is contiguous.
func whole(t *testing.T, s *Store, stream string, after uint64) []protocol.Message {
	t.Helper()
	page, err := s.Range(t.Context(), stream, after, 1<<20, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	if reason := page.Check(protocol.Position{Epoch: page.Epoch, Offset: after}); reason != "" {
		t.Fatalf("%s after %d: %s of %+v", stream, after, reason, page.Span)
	}
	if got := after + uint64(len(page.Messages)); got != page.Last {
		t.Fatalf("%s after %d: %d messages up to %d, the head is %d", stream, after, len(page.Messages), got, page.Last)
	}
	for i, m := range page.Messages {
		if m.Offset != after+uint64(i)+1 {
			t.Fatalf("%s: offset %d where %d was due", stream, m.Offset, after+uint64(i)+1)
		}
	}
	return page.Messages
}

// copyFile overwrites the file at to, so that it stays the same file, as a
// restore with cp does.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		copyFile(t, filepath.Join(from, e.Name()), filepath.Join(to, e.Name()))
	}
}

var background = context.Background()
