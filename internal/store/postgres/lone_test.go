package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/pgtest"
	"github.com/chronocast/chronocast/protocol"
)

// A lone message has a statement of its own, which must notice what the others
// notice: a journal or a channel row that somebody has removed, a writer that
// was closed. None of it may bump a channel without storing the message.
func TestLone_MissingRowsLeaveNoHole(t *testing.T) {
	url := pgtest.Database(t)
	n := startNode(t, url, Options{})
	conn := outsider(t, url)
	for _, step := range []struct{ name, sql string }{
		{"untouched", `SELECT 1`},
		{"journal removed", `DELETE FROM chronocast.writers`},
		{"writers closed", `UPDATE chronocast.writers SET closed = true`},
		{"journal set back", `UPDATE chronocast.writers SET seq = seq - 1`},
		{"stream removed", `DELETE FROM chronocast.messages; DELETE FROM chronocast.channels; DELETE FROM chronocast.streams`},
	} {
		execute(t, conn, step.sql)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		placed, err := n.seq.Append(ctx, one("s", `1`))
		cancel()
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		var last, count, bumped uint64
		if err := conn.QueryRow(context.Background(), `SELECT coalesce(max(m.offset_), 0), count(*), (SELECT sum(last_offset)::bigint FROM chronocast.channels)
			FROM chronocast.messages m`).Scan(&last, &count, &bumped); err != nil {
			t.Fatal(err)
		}
		if got := placed[0].Position.Offset; got != last || last != count || bumped != count {
			t.Errorf("%s: acknowledged at %d; %d messages up to %d, the channel at %d", step.name, got, count, last, bumped)
		}
		if placed[0].Position.Epoch == protocol.Epoch(0) || placed[0].At == 0 {
			t.Errorf("%s: placed %+v", step.name, placed[0])
		}
	}
}
