package load

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// spareFiles are descriptors a process needs beside its connections.
const spareFiles = 200

// holding is what a worker is told, on one line.
type holding struct {
	Options Options `json:"options"`
	URLs    []string
	Name    string
	First   int // of all clients, for the source address
	Count   int
	Rate    float64
}

// held is what a worker reports once a second, on one line.
type held struct {
	Live    int64
	Failed  int64
	Pings   uint64
	Errors  map[string]uint64
	CPU     time.Duration
	Joining Latency
}

// hold opens idle connections and holds them. Where one process may not have
// so many descriptors, several share the work.
func hold(ctx context.Context, b *bench) error {
	n, rate := or(b.o.Clients, 60_000)[0], cmp.Or(b.o.Ramp, 500)
	lasts := cmp.Or(b.o.For, 30*time.Second)
	perProcess := int(b.files) - spareFiles
	workers := (n + perProcess - 1) / perProcess
	b.setting("connections a second", rate)
	b.setting("worker processes", workers)
	if b.o.Streams > 0 {
		b.setting("streams", b.o.Streams)
	}
	if len(b.targets)*perProcess < n && len(b.servers) > 0 {
		b.note("the open-file limit is %d: %d servers hold at most %d connections, %d were asked for", b.files, len(b.servers), len(b.targets)*perProcess, n)
		n = len(b.targets) * perProcess
		workers = (n + perProcess - 1) / perProcess
	}
	if workers > 1 {
		b.note("the open-file limit is %d, so %d worker processes share %d connections", b.files, workers, n)
	}
	before := b.measureServer()
	ramp := time.Duration(float64(n) / rate * float64(time.Second))
	b.begin(1, fmt.Sprintf("%d connections at %g/s", n, rate), n, ramp)
	team, err := b.hire(ctx, n, workers, rate)
	if err != nil {
		return err
	}
	defer team.stop()
	all := func() bool {
		h := team.sum()
		b.mu.Lock()
		b.clients = int(h.Live)
		b.others = h.CPU
		b.mu.Unlock()
		return h.Live+h.Failed >= int64(n) || team.broken() != nil
	}
	lookFor(ctx, ramp+b.o.Timeout+10*time.Second, all)
	if err := team.broken(); err != nil {
		return err
	}
	joined := team.sum()
	b.end(func(r *Row) {
		r.Clients, r.Errors = int(joined.Live), joined.Errors
		r.add("confirmed", float64(joined.Live), "")
		r.add("p99 of joining", joined.Joining.P99, "ms")
	})
	if joined.Live == 0 && ctx.Err() == nil {
		return fmt.Errorf("none of %d connections came to be subscribed: %s", n, someError(&b.res.Rows[len(b.res.Rows)-1]))
	}
	b.begin(2, "held", int(joined.Live), lasts)
	pings := team.sum().Pings
	began := time.Now()
	lookFor(ctx, lasts, func() bool { all(); return team.broken() != nil })
	took := time.Since(began)
	now := team.sum()
	row := b.end(func(r *Row) {
		r.Clients = int(now.Live)
		r.Errors = now.Errors
		r.Lost = uint64(max(int64(n)-now.Live, 0))
		r.add("connections held", float64(now.Live), "")
		r.add("connections lost", float64(int64(n)-now.Live), "")
		r.add("pings", float64(now.Pings-pings)/took.Seconds(), "/s")
		if len(b.pids) > 0 {
			r.add("RSS in all", mib(r.RSS), "MiB")
			r.add("RSS before", mib(before.rss), "MiB")
			if now.Live > 0 {
				r.add("RSS of a connection", float64(int64(r.RSS)-int64(before.rss))/float64(now.Live)/1024, "KiB")
			}
		}
	})
	b.res.check("connections that failed or were lost", float64(int64(n)-now.Live), 0, "")
	if each, ok := row.Get("RSS of a connection"); ok {
		b.res.check("server RSS of an idle connection", each, 2, "KiB")
		b.res.check("server CPU while idle", row.ServerCPU, 25, "% of a core")
	}
	if total, ok := row.Get("RSS in all"); ok && n >= 57_000 {
		b.res.check("server RSS in all", total, 150, "MiB")
	}
	b.mu.Lock()
	b.clients = 0
	b.mu.Unlock()
	return ctx.Err()
}

// held is the stream that connection i listens to: one of Streams, or one of its
// own.
func (o Options) held(i int) string {
	if o.Streams > 0 {
		i %= o.Streams
	}
	return fmt.Sprintf("hold/%d", i)
}

// team holds connections, in this process or in workers.
type team struct {
	own     *crowd
	workers []*child
	reading sync.WaitGroup

	mu      sync.Mutex // guards what follows
	reports []held
	err     error
}

func (b *bench) hire(ctx context.Context, n, workers int, rate float64) (*team, error) {
	t := &team{}
	if workers <= 1 {
		t.own = b.newCrowd(n, func(i int) string { return b.o.held(i) })
		return t, t.own.begin(ctx, rate)
	}
	var urls []string
	for _, target := range b.targets {
		urls = append(urls, target.url.String())
	}
	t.reports = make([]held, workers)
	first := 0
	for i := range workers {
		count := (n - first) / (workers - i)
		o := b.o
		o.Serve = nil
		spec, err := json.Marshal(holding{o, urls, b.name, first, count, rate / float64(workers)})
		if err != nil {
			return nil, fmt.Errorf("load: %w", err)
		}
		c, err := startChild(b.o.Child, "hold")
		if err != nil {
			t.stop()
			return nil, err
		}
		t.workers = append(t.workers, c)
		if _, err := c.in.Write(append(spec, '\n')); err != nil {
			t.stop()
			return nil, fmt.Errorf("load: tell a worker: %w", err)
		}
		t.reading.Go(func() { t.read(i, c) })
		first += count
	}
	return t, nil
}

func (t *team) read(i int, c *child) {
	for {
		line, err := c.read()
		var h held
		if err == nil {
			err = json.Unmarshal([]byte(line), &h)
		}
		t.mu.Lock()
		if err != nil {
			t.err = err
			t.mu.Unlock()
			return
		}
		t.reports[i] = h
		t.mu.Unlock()
	}
}

func (t *team) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

func (t *team) sum() (all held) {
	if t.own != nil {
		return t.own.held()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all.Errors = map[string]uint64{}
	for _, h := range t.reports {
		all.Live += h.Live
		all.Failed += h.Failed
		all.Pings += h.Pings
		all.CPU += h.CPU
		all.Joining.P99 = max(all.Joining.P99, h.Joining.P99)
		for k, n := range h.Errors {
			all.Errors[k] += n
		}
	}
	return all
}

func (t *team) stop() {
	if t.own != nil {
		t.own.leave()
	}
	var g sync.WaitGroup
	for _, w := range t.workers {
		g.Go(func() {
			_ = w.in.Close() // it ends, and with it what it writes
		})
	}
	g.Wait()
	t.reading.Wait()
	for _, w := range t.workers {
		w.stop()
	}
}

// held counts what has become of an idle crowd.
func (g *crowd) held() (h held) {
	var joining Histogram
	h.Errors = map[string]uint64{}
	g.each(func(cl *client) {
		if cl.state == clientLive {
			h.Live++
			joining.Record(cl.joined)
		}
	})
	h.Failed = g.failed.Load()
	for _, l := range g.b.loops {
		l.do(func() {
			h.Pings += l.pings + l.tally.Pings
			for k, n := range l.tally.Errors {
				h.Errors[k] += n
			}
		})
	}
	h.Joining = joining.Summary()
	return h
}

// RunChild is what the command of Options.Child runs: a worker that holds
// connections, or the bare loop that others are compared with. It ends when in
// does.
func RunChild(ctx context.Context, kind string, in io.Reader, out io.Writer) error {
	switch kind {
	case "hold":
		return runHolder(ctx, in, out)
	case "floor":
		return runFloor(ctx, in, out)
	}
	return fmt.Errorf("load: there is no worker called %q", kind)
}

func runHolder(ctx context.Context, in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("load: a worker was told nothing: %w", err)
	}
	var spec holding
	if err := json.Unmarshal(line, &spec); err != nil {
		return fmt.Errorf("load: a worker was told nonsense: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &bench{o: spec.Options, clk: clock{began: time.Now()}, files: raiseFiles(), name: spec.Name, res: &Result{}}
	for _, text := range spec.URLs {
		u, err := parseTarget(text)
		if err != nil {
			return err
		}
		t, err := newTarget(u, b.o)
		if err != nil {
			return err
		}
		b.targets = append(b.targets, t)
	}
	p, err := b.newPoller()
	if err != nil {
		return err
	}
	l := newLoop(p, b.clk)
	b.loops = []*Loop{l}
	var g sync.WaitGroup
	g.Go(func() { err = l.Run(ctx) })
	crowd := &crowd{b: b}
	for i := range spec.Count {
		k := spec.First + i
		cl := b.newClient(k, k%len(b.targets), b.o.held(k))
		cl.live = func(*client) { crowd.live.Add(1) }
		cl.over = crowd.lose
		crowd.clients = append(crowd.clients, cl)
	}
	g.Go(func() {
		if crowd.begin(ctx, spec.Rate) != nil {
			return // the reports say how many failed
		}
	})
	g.Go(func() {
		enc := json.NewEncoder(out)
		tick := time.NewTicker(900*time.Millisecond + rand.N(100*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			h := crowd.held()
			h.CPU = ownCPU()
			if enc.Encode(h) != nil {
				return // nobody listens: the input ends too
			}
		}
	})
	_, _ = io.Copy(io.Discard, r) // until it ends
	cancel()
	g.Wait()
	return err
}
