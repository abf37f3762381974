package pgnotify

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	maxKnown  = 200_000     // names remembered
	knownFor  = time.Minute // how long; somebody may put other tables in place of ours
	maxOthers = 10_000
)

// take handles one notification and says whether it was a beat of our own.
// Words it does not know are ignored: other versions may ring too.
//
//	hello NODE             a node has begun to listen
//	beat NODE              it listens still
//	NODE ID:LAST,ID:LAST   it has committed up to these offsets of these channels
//	NODE *                 it has committed more than fits: look
//	tell TEXT              for whoever runs the nodes
//	sql ID:LAST            an application has, from SQL
func (b *Bus) take(ctx context.Context, n *pgconn.Notification) (own bool) {
	from, rest, _ := strings.Cut(n.Payload, " ")
	switch {
	case from == "hello" || from == "beat":
		if rest == b.node {
			return true
		}
		if rest != "" && len(b.others) < maxOthers {
			b.others[rest] = time.Now()
			b.store.Ring(true)
		}
	case from == told:
		b.opts.Told([]byte(rest))
	case from == b.node: // the hub has our own commits already
	case rest == "*":
		b.news.Add(1)
		b.listener.Sweep()
	default:
		if all := parse(rest); len(all) > 0 {
			b.news.Add(1)
			b.tell(ctx, all)
		}
	}
	return false
}

// head is a channel, and how far it has come at least.
type head struct {
	id   int64
	last uint64
}

func parse(text string) (all []head) {
	for pair := range strings.SplitSeq(text, ",") {
		id, last, _ := strings.Cut(pair, ":")
		i, err1 := strconv.ParseInt(id, 10, 64)
		l, err2 := strconv.ParseUint(last, 10, 64)
		if err1 == nil && err2 == nil {
			all = append(all, head{i, l})
		}
	}
	return all
}

// tell passes heads on by the names of their streams.
func (b *Bus) tell(ctx context.Context, all []head) {
	if len(b.known) > maxKnown || time.Since(b.cleared) > knownFor {
		b.forget()
	}
	var unknown []int64
	for _, h := range all {
		if _, known := b.known[h.id]; !known {
			unknown = append(unknown, h.id)
		}
	}
	if len(unknown) > 0 {
		asking, cancel := context.WithTimeout(ctx, b.opts.Beat/2)
		found, err := b.store.Names(asking, unknown)
		cancel()
		if err != nil {
			b.listener.Sweep()
			return
		}
		for id, name := range found {
			b.known[id] = name
		}
	}
	for _, h := range all {
		if name, known := b.known[h.id]; known {
			b.listener.Hint(name, h.last)
		}
	}
}

func (b *Bus) forget() {
	clear(b.known)
	b.cleared = time.Now()
}
