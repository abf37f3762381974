package load

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// crowd is a number of clients that connect together.
type crowd struct {
	b       *bench
	clients []*client
	live    atomic.Int64
	failed  atomic.Int64 // ended by the server, before or after they were live
	hits    atomic.Int64 // messages heard, when counting is on
	want    atomic.Pointer[arrival]
}

// newCrowd returns n clients; name gives the stream of each. Clients are spread
// over the servers.
func (b *bench) newCrowd(n int, name func(i int) string) *crowd {
	g := &crowd{b: b, clients: make([]*client, n)}
	for i := range g.clients {
		cl := b.newClient(i, i%len(b.targets), name(i))
		cl.live = func(cl *client) { g.live.Add(1) }
		cl.over = g.lose
		g.clients[i] = cl
	}
	return g
}

func (g *crowd) lose(cl *client, err error) {
	cl.loop.tally.fail(err)
	g.failed.Add(1)
}

// connect starts the clients at a rate, all at once when it is 0, and waits until
// each is live or has failed.
func (g *crowd) connect(ctx context.Context, perSecond float64) error {
	if err := g.begin(ctx, perSecond); err != nil {
		return err
	}
	n := int64(len(g.clients))
	lookFor(ctx, g.b.o.Timeout+5*time.Second, func() bool { return g.live.Load()+g.failed.Load() >= n })
	g.b.addClients(int(g.live.Load()))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case g.live.Load() == 0:
		return fmt.Errorf("none of %d clients came to be subscribed: %s", n, g.b.firstError())
	case g.failed.Load() > 0:
		g.b.note("%d of %d clients did not come to be subscribed", g.failed.Load(), n)
	}
	return nil
}

// begin starts the clients and does not wait for them.
func (g *crowd) begin(ctx context.Context, perSecond float64) error {
	const batch = 64
	began := time.Now()
	var local error
	for i := 0; i < len(g.clients); i += batch {
		part := g.clients[i:min(i+batch, len(g.clients))]
		if perSecond > 0 {
			due := began.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))
			if wait := time.Until(due); wait > 0 && !sleep(ctx, wait) {
				return context.Cause(ctx)
			}
		}
		for _, l := range g.b.loops {
			ok := l.do(func() {
				for _, cl := range part {
					if cl.loop != l {
						continue
					}
					if err := cl.start(); err != nil {
						local = errors.Join(local, err)
						g.lose(cl, err)
					}
				}
			})
			if !ok {
				return context.Cause(ctx)
			}
		}
	}
	if local != nil && g.failed.Load() >= int64(len(g.clients)) {
		return local
	}
	return nil
}

// each runs f for every client, on its loop.
func (g *crowd) each(f func(*client)) {
	for _, l := range g.b.loops {
		l.do(func() {
			for _, cl := range g.clients {
				if cl.loop == l {
					f(cl)
				}
			}
		})
	}
}

// leave disconnects all, a few at a time.
func (g *crowd) leave() {
	const batch = 500
	for i := 0; i < len(g.clients); i += batch {
		part := g.clients[i:min(i+batch, len(g.clients))]
		for _, l := range g.b.loops {
			l.do(func() {
				for _, cl := range part {
					if cl.loop == l {
						cl.stop()
					}
				}
			})
		}
	}
	g.b.addClients(-int(g.live.Load()))
}

// watch has every client check the lanes of voices that follow one another.
func (g *crowd) watch(voices []*voice) {
	g.each(func(cl *client) {
		cl.base = voices[0].lane
		cl.tracks = make([]track, len(voices))
	})
}

// arrival is a number of hits somebody waits for.
type arrival struct {
	hits int64
	done chan struct{}
}

// count has every message heard counted in hits.
func (g *crowd) count() {
	heard := func(*client, mark, verdict) {
		n := g.hits.Add(1)
		if a := g.want.Load(); a != nil && n == a.hits {
			close(a.done)
		}
	}
	g.each(func(cl *client) { cl.heard = heard })
}

// arrive returns a channel that is closed when hits has come to n, which it has
// not yet.
func (g *crowd) arrive(n int64) <-chan struct{} {
	a := &arrival{hits: n, done: make(chan struct{})}
	g.want.Store(a)
	return a.done
}

// lost adds up what the clients that are still there have not got of what the
// voices said. Messages that the server did not acknowledge are not expected.
func (g *crowd) lost(voices []*voice) (lost uint64) {
	g.each(func(cl *client) {
		if cl.state != clientLive {
			return
		}
		for i, v := range voices {
			v.mu.Lock()
			for _, seq := range v.refused {
				cl.tracks[i].see(seq)
			}
			lost += cl.tracks[i].lost(v.seq)
			v.mu.Unlock()
		}
	})
	return lost
}

// settled reports whether every publisher has its answers.
func (b *bench) settled() bool {
	for _, p := range b.pubs {
		if !p.settled() {
			return false
		}
	}
	return true
}

// settle waits until everything published was answered and nothing has been missing
// or nothing has arrived for two seconds.
func (g *crowd) settle(ctx context.Context, voices []*voice) {
	lookFor(ctx, g.b.o.Timeout, g.b.settled)
	quiet, last := time.Now(), uint64(0)
	lookFor(ctx, g.b.o.Timeout, func() bool {
		missing := g.lost(voices)
		if missing != last {
			quiet, last = time.Now(), missing
		}
		return missing == 0 || time.Since(quiet) > 2*time.Second
	})
}

// addClients keeps the count of live clients for the series.
func (b *bench) addClients(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clients += n
}

// firstError is one of the errors of the step, the most frequent one.
func (b *bench) firstError() string {
	b.collect(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	best, most := "nothing came back", uint64(0)
	if b.step != nil {
		for text, n := range b.step.tally.Errors {
			if n > most {
				best, most = text, n
			}
		}
	}
	return best
}

// voices returns n voices on one stream, with lanes that follow one another.
// Those that perform have a client of their own, which is subscribed.
func (b *bench) voices(ctx context.Context, n int, name string, target int) ([]*voice, *crowd, error) {
	var g *crowd
	if len(b.pubs) == 0 {
		g = b.newCrowd(n, func(int) string { return name })
		for _, cl := range g.clients {
			cl.target = b.targets[target]
		}
		if err := g.connect(ctx, 0); err != nil {
			return nil, nil, err
		}
	}
	voices := make([]*voice, n)
	for i := range voices {
		voices[i] = b.voice(b.name+"/"+name, target, nil)
		if g != nil {
			voices[i].cl = g.clients[i]
		}
	}
	return voices, g, nil
}
