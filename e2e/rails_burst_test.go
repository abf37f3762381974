package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// Side by side: one Rails process broadcasts each message through plain Action
// Cable with its PostgreSQL adapter and through Chronocast; one page reads both
// with the same stock client. What the plain one does with the order depends on
// the machine, and is told; Chronocast's is exact.
func TestRails_TheOrderOfPlainActionCableBesideOurs(t *testing.T) {
	t.Parallel()
	const messages = 2000
	s := newServer(t)
	app := rails(t, freePort(t), "js", "js/rails_burst.ru", "DATABASE_URL="+pgtest.Database(t), "CHRONOCAST_URL="+s.url(""), "CABLE_URL="+s.ws())
	b := openTab(t, app.url("/"))
	b.until(20*time.Second, "ready?.plain && ready?.chronocast")
	if status := app.get(fmt.Sprintf("/burst?n=%d", messages)); status != 200 {
		t.Fatalf("the burst was answered with %d", status)
	}
	b.until(30*time.Second, fmt.Sprintf("got.plain.length >= %d && got.chronocast.length >= %d", messages, messages))
	var got struct{ Plain, Chronocast []int }
	b.eval("got", &got)
	if n := behind(got.Chronocast); n != 0 || len(got.Chronocast) != messages {
		t.Errorf("through Chronocast %d of %d arrived, %d after a later one", len(got.Chronocast), messages, n)
	}
	b.noComplaints(false)
	plain := behind(got.Plain)
	figure(t, "a burst of %d in one page: plain Action Cable (Rails 6.1, PostgreSQL adapter) %d of them behind a later one (%.1f %%), through Chronocast %d",
		messages, plain, 100*float64(plain)/messages, behind(got.Chronocast))
}

// behind counts the numbers that come after a greater one.
func behind(numbers []int) int {
	n, most := 0, 0
	for _, v := range numbers {
		if v < most {
			n++
		}
		most = max(most, v)
	}
	return n
}
