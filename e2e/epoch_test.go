package e2e

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func bodyOf(s string) io.Reader { return strings.NewReader(s) }

// copyAll copies the files of one directory into another, as a backup tool
// would: new files with the same bytes.
func copyAll(t testing.TB, from, to string) {
	t.Helper()
	list, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if !f.Type().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, f.Name()), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func removeAll(t testing.TB, dir, pattern string) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}

// resetOf resumes at a position on a new socket and returns the word that it
// cannot be continued; the subscription must be live all the same.
func resetOf(t testing.TB, s *server, p *publisher, proto, stream string, at place) frame {
	t.Helper()
	sock := dial(t, s.ws(), proto)
	sock.resume(stream, at)
	sock.confirmed(stream)
	f := sock.next(5*time.Second, "reset", "reject_history", "confirm_history")
	if f.Type == "confirm_history" {
		t.Errorf("%s: the position %v of %q was continued in silence", proto, at, stream)
		return f
	}
	before := len(sock.messages(stream))
	now := p.must(stream, fmt.Sprintf(`{"probe":%d}`, runs.Add(1)))
	sock.awaitMessages(before+1, 10*time.Second)
	got := sock.messages(stream)
	if got[len(got)-1].place != now {
		t.Errorf("%s: after the reset came %v, published was %v", proto, got[len(got)-1].place, now)
	}
	return f
}

// B58: the database file is deleted and the server starts again: an old
// position gets a reset, and message 1 of the new life is delivered.
func TestB58_ADeletedFileIsANewLife(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	p.bulk("gone", 500)
	old := s.head("gone")
	cl := ours(t, s.ws(), "start", "gone")
	cl.awaitLast("gone", 500, 20*time.Second)

	s.terminate(12 * time.Second)
	removeAll(t, s.dir, filepath.Base(s.db)+"*")
	s.start()

	if pg := s.history("gone", fmt.Sprintf("%s:%d", old.Epoch, 500), 0); pg.status != 410 || pg.Error != "epoch_changed" {
		t.Errorf("history from the old life: %d %s, want 410 epoch_changed", pg.status, pg.Error)
	}
	cl.wait(15*time.Second, "reset", "gone")
	first := p.must("gone", `{"new":1}`)
	if first.Offset != 1 || first.Epoch == old.Epoch || !newer(first.Epoch, old.Epoch) {
		t.Errorf("the first message of the new life stands at %v, the old epoch was %s", first, old.Epoch)
	}
	for _, proto := range []string{extended, chronocast} {
		resetOf(t, s, p, proto, "gone", place{old.Epoch, 500})
	}
	cl.until(10*time.Second, "message 1 of the new life", func() bool {
		for _, m := range cl.got["gone"] {
			if m.place == first {
				return true
			}
		}
		return false
	})
	got := cl.messages("gone")[500:]
	judge(s.log("gone"), true).delivered("bundled client, new life", got, 0, false).report(t)
	if n := len(cl.all("reset", "gone")); n != 1 {
		t.Errorf("%d resets, want one", n)
	}
}

// newer compares two epochs, decimal strings of the same kind.
func newer(a, b string) bool { return len(a) > len(b) || len(a) == len(b) && a > b }

// B59: head 1,000, then an older copy of the file taken at 800 is put back and
// 250 are published. Every client resets, whether its position lies beyond the
// restored head or not; none mixes the old 801..1,000 with the new.
func TestB59_ARestoredCopyIsANewLife(t *testing.T) {
	for _, how := range []string{"file", "directory"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			p := newPublisher(t, s.url(""))
			p.bulk("restored", 800)
			s.terminate(12 * time.Second)
			backup := t.TempDir()
			copyAll(t, s.dir, backup)
			s.start()
			p.bulk("restored", 200)
			old := s.head("restored")
			if old.Last != 1000 {
				t.Fatalf("head %d, want 1000", old.Last)
			}
			ahead := ours(t, s.ws(), "start", "restored")
			ahead.awaitLast("restored", 1000, 20*time.Second)

			s.terminate(12 * time.Second)
			switch how {
			case "file": // only the database comes back from the backup
				removeAll(t, s.dir, filepath.Base(s.db)+"-*")
				b, err := os.ReadFile(filepath.Join(backup, filepath.Base(s.db)))
				if err != nil {
					t.Fatal(err)
				}
				os.Remove(s.db)
				if err := os.WriteFile(s.db, b, 0o600); err != nil {
					t.Fatal(err)
				}
			case "directory": // everything that lay beside it too
				removeAll(t, s.dir, "*")
				copyAll(t, backup, s.dir)
			}
			s.start()
			ahead.wait(15*time.Second, "reset", "restored")
			p.bulk("restored", 250)

			for _, at := range []uint64{1000, 900, 801, 700, 1} {
				if pg := s.history("restored", fmt.Sprintf("%s:%d", old.Epoch, at), 0); pg.status != 410 {
					t.Errorf("history after old %d: %d with %d messages, want 410", at, pg.status, len(pg.Messages))
				}
				resetOf(t, s, p, chronocast, "restored", place{old.Epoch, at})
				resetOf(t, s, p, extended, "restored", place{old.Epoch, at})
			}
			h := s.head("restored")
			if !newer(h.Epoch, old.Epoch) {
				t.Errorf("the epoch is %s and was %s", h.Epoch, old.Epoch)
			}
			last := p.must("restored", `{"end":true}`)
			ahead.awaitLast("restored", last.Offset, 20*time.Second)
			for _, m := range ahead.messages("restored")[1000:] {
				if m.Epoch == old.Epoch {
					t.Fatalf("after the reset came %v of the old life", m.place)
				}
			}
		})
	}
}

// B49: subscribing to a stream that was never used confirms a real position;
// when the store is wiped, that position is refused. B62: confirm, head and
// history all tell the position before any message exists.
func TestB49_B62_AnEmptyStreamHasAPosition(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	h := s.head("never/used")
	pg := s.history("never/used", "", 0)
	if h.Epoch == "" || h.Epoch == "0" || h.Last != 0 || h.First != 1 || pg.Epoch != h.Epoch || pg.Last != 0 || pg.More {
		t.Errorf("head %+v, history %+v", h, pg)
	}
	for _, proto := range subprotocols {
		sock := dial(t, s.ws(), proto)
		if at := sock.subscribe("never/used").Streams["never/used"]; at != (place{h.Epoch, 0}) {
			t.Errorf("%s: confirmed at %v, the head is %s:0", proto, at, h.Epoch)
		}
	}
	if at := p.must("never/used", `1`); at != (place{h.Epoch, 1}) {
		t.Errorf("the first message stands at %v, the position told before was %s:0", at, h.Epoch)
	}
	if pg := s.history("never/used", h.Epoch+":0", 0); pg.status != 200 || len(pg.Messages) != 1 {
		t.Errorf("the position told before cannot be continued: %d %s", pg.status, pg.Error)
	}
	s.terminate(12 * time.Second)
	removeAll(t, s.dir, filepath.Base(s.db)+"*")
	s.start()
	for _, proto := range []string{extended, chronocast} {
		resetOf(t, s, p, proto, "never/used", place{h.Epoch, 0})
	}
}
