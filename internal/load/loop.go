package load

import (
	"container/heap"
	"context"
	"net/netip"
	"sync"
	"time"
)

// poller moves the bytes of many connections. All methods but wake are called
// by the loop's goroutine alone, and it calls the connections back only from
// wait.
type poller interface {
	// wait returns after at most d, when something was done for a connection,
	// or after wake. A negative d is no limit.
	wait(d time.Duration) error
	// wake ends a wait, from any goroutine.
	wake()
	// dial begins to connect; c.connected or c.fail follow, from a later wait.
	dial(c *conn, from, to netip.AddrPort) error
	// write takes as much of b as there is room for.
	write(c *conn, b []byte) (int, error)
	// interest says whether the connection wants to read, and to be told by
	// c.writable when there is room.
	interest(c *conn, read, write bool)
	// close lets go of the connection.
	close(c *conn)
	// release ends the poller; no connection is left.
	release()
}

// Loop owns connections, timers and counts. Everything about them happens on
// the goroutine that runs Run; other goroutines hand it work with post.
type Loop struct {
	poll   poller
	clk    clock
	now    time.Time // when it last read anything, or looked at its timers
	buf    []byte
	conns  map[*conn]struct{}
	timers timers
	tally  tally  // since it was last taken
	pings  uint64 // of all that was taken

	mu     sync.Mutex // guards what follows
	posted []func()
	ended  bool
}

// newLoop returns a loop whose connections are moved by p.
func newLoop(p poller, clk clock) *Loop {
	return &Loop{poll: p, clk: clk, now: time.Now(), buf: make([]byte, 256<<10), conns: make(map[*conn]struct{})}
}

// Run serves connections and timers until ctx ends, then closes what is open.
func (l *Loop) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, l.poll.wake)()
	var err error
	for ctx.Err() == nil && err == nil {
		d := time.Duration(-1)
		if len(l.timers) > 0 {
			d = max(time.Until(l.timers[0].at), 0)
		}
		err = l.poll.wait(d)
		l.now = time.Now()
		for len(l.timers) > 0 && !l.timers[0].at.After(l.now) {
			t := heap.Pop(&l.timers).(*timer)
			if f := t.f; f != nil {
				t.f = nil
				f()
			}
		}
		l.runPosted(false)
	}
	l.runPosted(true)
	for c := range l.conns {
		c.close()
	}
	l.poll.release()
	return err
}

func (l *Loop) runPosted(last bool) {
	for {
		l.mu.Lock()
		work := l.posted
		l.posted = nil
		if last && len(work) == 0 {
			l.ended = true
		}
		l.mu.Unlock()
		if len(work) == 0 {
			return
		}
		for _, f := range work {
			f()
		}
	}
}

// post has f run on the loop's goroutine. false: the loop has ended.
func (l *Loop) post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	if l.posted = append(l.posted, f); len(l.posted) == 1 {
		l.poll.wake()
	}
	return true
}

// do runs f on the loop's goroutine and waits for it. false: it has ended.
func (l *Loop) do(f func()) bool {
	done := make(chan struct{})
	if !l.post(func() { defer close(done); f() }) {
		return false
	}
	<-done
	return true
}

// timer is a function that is to be called later.
type timer struct {
	at time.Time
	f  func() // nil: stopped, or called
}

// stop keeps the function from being called. A nil timer is stopped already.
func (t *timer) stop() {
	if t != nil {
		t.f = nil
	}
}

// after calls f in d.
func (l *Loop) after(d time.Duration, f func()) *timer {
	t := &timer{at: time.Now().Add(d), f: f}
	heap.Push(&l.timers, t)
	return t
}

type timers []*timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(*timer)) }
func (t *timers) Pop() any {
	old := *t
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return x
}
