package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

// batches make every statement bump the channels a and b, or one of them.
var batches = map[string][]sequencer.Request{
	"many":         {one("a", `1`), one("b", `2`)},
	"many keyed":   {withKey("a", `1`, "k1"), one("b", `2`)},
	"single":       {one("a", `1`), one("a", `2`)},
	"single keyed": {withKey("a", `1`, "k2"), one("a", `2`)},
	"lone":         {one("a", `1`)},
}

// Rows that an operator has removed under running nodes are noticed by every
// statement: what is acknowledged can be read by every node, at a position that
// nobody has seen before.
func TestRemoved_WhatIsAcknowledgedCanBeRead(t *testing.T) {
	url := pgtest.Database(t)
	nodes := []*Store{mustOpen(t, url, Options{}), mustOpen(t, url, Options{})}
	conn := outsider(t, url)
	for what, removal := range map[string]string{
		"streams deleted":                `DELETE FROM chronocast.streams`,
		"one stream deleted":             `DELETE FROM chronocast.streams WHERE name = 'a'`,
		"channels deleted":               `DELETE FROM chronocast.channels`,
		"streams truncated":              `TRUNCATE chronocast.streams`,
		"channels truncated":             `TRUNCATE chronocast.channels`,
		"all truncated":                  `TRUNCATE chronocast.streams, chronocast.channels, chronocast.messages, chronocast.keys`,
		"deleted, where no trigger runs": `SET session_replication_role = replica; DELETE FROM chronocast.streams; DELETE FROM chronocast.channels; DELETE FROM chronocast.messages; DELETE FROM chronocast.keys; RESET session_replication_role`,
	} {
		for name, batch := range batches {
			t.Run(what+"/"+name, func(t *testing.T) {
				seen := map[string]map[protocol.Position]bool{"a": {}, "b": {}}
				for range 2 {
					for _, n := range nodes {
						note(t, seen, n, []sequencer.Request{one("a", `0`), one("b", `0`)})
						note(t, seen, n, []sequencer.Request{one("a", `0`)})
					}
				}
				execute(t, conn, removal)
				if what == "deleted, where no trigger runs" {
					clear(seen["a"]) // the epoch cannot tell; nothing may be lost all the same
					clear(seen["b"])
				}
				for _, n := range nodes {
					note(t, seen, n, batch)
				}
				for _, n := range nodes {
					for stream := range seen {
						contents(t, n, stream)
					}
				}
				execute(t, conn, `DELETE FROM chronocast.streams`)
			})
		}
	}
}

// note appends a batch, checks that what is acknowledged is there, and that
// its positions were not given to anything before.
func note(t *testing.T, seen map[string]map[protocol.Position]bool, n *Store, batch []sequencer.Request) {
	t.Helper()
	results, err := n.Append(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		stream, at := batch[i][0].Stream, r.Placed[0].Position
		if seen[stream][at] && !r.Placed[0].Repeat { // the other node's use of a key has its place
			t.Errorf("%s: position %v is given twice", stream, at)
		}
		seen[stream][at] = true
		page, err := n.Range(t.Context(), stream, at.Offset-1, 1, 1000)
		if err != nil || page.Epoch != at.Epoch || len(page.Messages) != 1 || string(page.Messages[0].Data) != string(batch[i][0].Data) {
			t.Errorf("%s: acknowledged at %v, there is %+v, %v", stream, at, page, err)
		}
	}
}

// A channel row that is missing without a word, as when triggers are off, costs
// a batch one more try: not its connection, and not eight tries.
func TestRemoved_KeepsTheConnection(t *testing.T) {
	url := pgtest.Database(t)
	core, lines := observer.New(zap.WarnLevel)
	s := mustOpen(t, url, Options{Logger: zap.New(core)})
	conn := outsider(t, url)
	for name, batch := range batches {
		if _, err := s.Append(t.Context(), []sequencer.Request{one("a", `0`), one("b", `0`)}); err != nil {
			t.Fatal(err)
		}
		before := s.main.conn
		execute(t, conn, `SET session_replication_role = replica; DELETE FROM chronocast.channels; DELETE FROM chronocast.messages; DELETE FROM chronocast.keys`)
		lines.TakeAll()
		began := time.Now()
		if _, err := s.Append(t.Context(), batch); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.main.conn != before {
			t.Errorf("%s: the connection was given up", name)
		}
		if got := lines.TakeAll(); len(got) != 1 || got[0].Message != "channel rows were removed by somebody; their streams are made anew" {
			t.Errorf("%s: log %v", name, got)
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("%s: it took %v", name, d)
		}
	}
}

// A channel row that is gone while another is held is not taken to be held.
func TestRemoved_BesideAHeldStream(t *testing.T) {
	url := pgtest.Database(t)
	s := mustOpen(t, url, Options{})
	both := []sequencer.Request{one("a", `1`), one("b", `2`)}
	if _, err := s.Append(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	conn := outsider(t, url)
	execute(t, conn, `SET session_replication_role = replica; DELETE FROM chronocast.channels WHERE id = (SELECT id FROM chronocast.streams WHERE name = 'b');
		DELETE FROM chronocast.messages WHERE channel_id = (SELECT id FROM chronocast.streams WHERE name = 'b')`)
	execute(t, conn, `BEGIN; SELECT FROM chronocast.broadcast('a', '3'::text)`)
	results, err := s.Append(t.Context(), both)
	execute(t, conn, `ROLLBACK`)
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Err == nil || results[1].Err != nil || results[1].Placed[0].Offset != 1 {
		t.Errorf("%+v", results)
	}
}

// Broadcasting from SQL makes a removed stream anew, too.
func TestRemoved_BroadcastFromSQL(t *testing.T) {
	url := pgtest.Database(t)
	s := mustOpen(t, url, Options{})
	conn := outsider(t, url)
	var last protocol.Epoch
	for _, removal := range []string{`SELECT 1`, `DELETE FROM chronocast.streams`, `DELETE FROM chronocast.channels`, `TRUNCATE chronocast.channels`} {
		execute(t, conn, removal)
		for want := int64(1); want <= 2; want++ {
			var epoch, offset int64
			if err := conn.QueryRow(t.Context(), `SELECT * FROM chronocast.broadcast('a', '1'::text)`).Scan(&epoch, &offset); err != nil {
				t.Fatalf("%s: %v", removal, err)
			}
			if offset != want || want == 1 && protocol.Epoch(epoch) <= last {
				t.Errorf("%s: %d:%d after epoch %v", removal, epoch, offset, last)
			}
			last = protocol.Epoch(epoch)
		}
		if got := contents(t, s, "a"); len(got) != 2 {
			t.Errorf("%s: %d messages", removal, len(got))
		}
	}
}

// Messages removed by hand are never passed over in silence.
func TestRemoved_Messages(t *testing.T) {
	url := pgtest.Database(t)
	s := mustOpen(t, url, Options{})
	conn := outsider(t, url)
	fill := func(n int) {
		t.Helper()
		for range n {
			if _, err := s.Append(t.Context(), []sequencer.Request{one("a", `1`)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	look := func(after uint64, first uint64, reason protocol.Reason, offsets ...uint64) {
		t.Helper()
		page, err := s.Range(context.Background(), "a", after, 100, 1000)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for _, m := range page.Messages {
			got = append(got, m.Offset)
		}
		if r := page.Check(protocol.Position{Epoch: page.Epoch, Offset: after}); r != reason || page.First != first || fmt.Sprint(got) != fmt.Sprint(offsets) {
			t.Errorf("after %d: %q, span %+v, messages %v; want %q, first %d, %v", after, r, page.Span, got, reason, first, offsets)
		}
	}
	fill(10)
	execute(t, conn, `DELETE FROM chronocast.messages WHERE offset_ IN (1, 2, 5, 6, 10)`)
	look(0, 3, protocol.ReasonTrimmed)
	look(1, 3, protocol.ReasonTrimmed)
	look(2, 1, "", 3, 4)
	look(4, 7, protocol.ReasonTrimmed)
	look(6, 1, "", 7, 8, 9)
	look(9, 11, protocol.ReasonTrimmed)
	look(10, 1, "")
	span, after, err := s.Since(t.Context(), "a", 0)
	if err != nil || span.Check(protocol.Position{Epoch: span.Epoch, Offset: after}) != protocol.ReasonTrimmed {
		t.Errorf("since the beginning: %+v after %d, %v", span, after, err)
	}
	execute(t, conn, `TRUNCATE chronocast.messages`)
	if got := head(t, s, "a"); got.First != 11 || got.Last != 10 {
		t.Errorf("head after TRUNCATE: %+v", got)
	}
	fill(2)
	look(0, 11, protocol.ReasonTrimmed)
	look(10, 11, "", 11, 12)
	if _, err := s.Trim(t.Context(), history.Retention{Default: history.Limits{Bytes: 2}}); err != nil {
		t.Fatal(err)
	}
	look(10, 11, "", 11, 12) // the bytes that are gone do not count
}

// Settings that a role may choose itself have their bounds in the function.
func TestBroadcast_Settings(t *testing.T) {
	url := pgtest.Database(t)
	mustOpen(t, url, Options{})
	conn := outsider(t, url)
	call := func(setting, value, sql string) error {
		t.Helper()
		execute(t, conn, `SELECT set_config($1, $2, false)`, setting, value)
		defer execute(t, conn, `SELECT set_config($1, '', false)`, setting)
		_, err := conn.Exec(t.Context(), sql)
		return err
	}
	const small = `SELECT * FROM chronocast.broadcast('s', '1'::text, 'k')`
	for _, c := range []struct{ setting, value string }{
		{"chronocast.max_payload", "much"}, {"chronocast.max_payload", "-1"}, {"chronocast.max_payload", "99999999999999999999"},
		{"chronocast.key_window", "soon"},
	} {
		if err := call(c.setting, c.value, small); codeOf(err) != "22023" || !strings.Contains(err.Error(), "the setting "+c.setting) {
			t.Errorf("%s = %s: %v", c.setting, c.value, err)
		}
	}
	const big = `SELECT FROM chronocast.broadcast('s', '"' || repeat('x', 67108863) || '"')`
	if err := call("chronocast.max_payload", "999999999999", big); codeOf(err) != "54000" {
		t.Errorf("a payload above 64 MiB: %v", err)
	}
	// A key that will be stamped in the future, as after a step of the clock: a
	// window below zero must not make it expire before its time.
	if err := call("chronocast.key_window", "1 hour", small); err != nil {
		t.Fatal(err)
	}
	execute(t, conn, `UPDATE chronocast.keys SET at = now() + interval '1 minute'`)
	if err := call("chronocast.key_window", "-1 hour", small); err != nil {
		t.Fatal(err)
	}
	if n := len(contents(t, mustOpen(t, url, Options{}), "s")); n != 1 {
		t.Errorf("a window below zero: %d messages under one key", n)
	}
}
