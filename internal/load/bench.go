package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// scenario is one of the things that can be run.
type scenario struct {
	about string
	run   func(ctx context.Context, b *bench) error
}

// bench is one run.
type bench struct {
	o       Options
	clk     clock
	targets []*target
	servers []*ownServer
	pids    []int
	loops   []*Loop
	pubs    []*publisher // one for each target; empty when clients perform
	fail    chan error   // a loop that ended by an error
	name    string       // begins the streams of this run
	files   uint64

	nextLane atomic.Uint32

	mu      sync.Mutex // guards what follows
	res     *Result
	step    *step
	clients int
	others  time.Duration // processor time of workers that have reported
}

// step is the step under way.
type step struct {
	row            Row
	tally          tally
	began          time.Time
	lasts          time.Duration // as far as it is known beforehand
	number         int
	server, own    usage
	refused, acked uint64
}

// Run runs one scenario. When ctx ends it stops in order and returns what was
// found so far, marked as interrupted. An error means that there is no result
// worth keeping, but for what Result holds when it is not nil.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	s := scenarios[o.Scenario]
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // memory is cheaper here than processor time
	now := time.Now()
	b := &bench{o: o, clk: clock{began: now}, files: raiseFiles(), fail: make(chan error, 1)}
	b.name = "b/" + string(appendDigits(nil, rand.Uint64(), 4)) // short: every frame carries it twice
	b.res = &Result{
		Scenario: o.Scenario, About: s.about, Started: now.UTC(), Protocol: o.Protocol, Publish: o.Publish,
		Machine: describeMachine(), Settings: map[string]string{},
	}
	defer b.close()
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	inner, cancel := context.WithCancelCause(ctx)
	var g sync.WaitGroup
	for _, l := range b.loops {
		g.Go(func() {
			if err := l.Run(inner); err != nil {
				cancel(err)
			}
		})
	}
	for _, p := range b.pubs {
		g.Go(func() { p.run(inner) })
	}
	g.Go(func() { b.sample(inner) })
	err := b.preflight(inner)
	ready := err == nil
	if ready {
		err = s.run(inner, b)
		if b.step != nil { // it was cut short
			b.end(nil)
		}
	}
	cause := context.Cause(inner)
	cancel(nil)
	g.Wait()
	b.res.Seconds = round(time.Since(now).Seconds())
	switch {
	case ctx.Err() != nil:
		b.res.Interrupted = true
		return b.res, nil
	case err != nil && errors.Is(err, context.Canceled) && cause != nil:
		return nil, cause
	case err != nil && !ready:
		return nil, err
	}
	return b.res, err
}

// open finds the servers, or starts them, and prepares the loops.
func (b *bench) open(ctx context.Context) error {
	urls := []string{b.o.URL}
	if b.o.URL == "" {
		if len(b.o.Serve) == 0 {
			return errors.New("load: no URL, and no command to start a server with")
		}
		urls = nil
		for range b.serverCount() {
			s, err := startServer(ctx, b.o.Serve, b.o.ServeFlags)
			if err != nil {
				return err
			}
			b.servers = append(b.servers, s)
			b.pids = append(b.pids, s.cmd.Process.Pid)
			urls = append(urls, s.url)
		}
		b.res.Server = fmt.Sprintf("our own, %d started for this run", len(urls))
		if len(urls) == 1 {
			b.res.Server = "our own, started for this run"
		}
	} else {
		b.res.Server = b.o.URL
	}
	if b.o.PID > 0 {
		b.pids = append([]int{b.o.PID}, children(b.o.PID)...)
	}
	for _, pid := range b.pids {
		if _, err := measure(pid); err != nil {
			return err
		}
	}
	for _, text := range urls {
		u, err := parseTarget(text)
		if err != nil {
			return err
		}
		t, err := newTarget(u, b.o)
		if err != nil {
			return err
		}
		b.targets = append(b.targets, t)
		if b.o.Publish == PublishPerform {
			continue
		}
		p, err := b.newPublisher(t)
		if err != nil {
			return err
		}
		b.pubs = append(b.pubs, p)
	}
	for range b.o.Loops {
		p, err := b.newPoller()
		if err != nil {
			return err
		}
		b.loops = append(b.loops, newLoop(p, b.clk))
	}
	return nil
}

// serverCount is how many servers of ours are started: one, unless it may not
// have as many connections as are to be held.
func (b *bench) serverCount() int {
	if b.o.Servers > 0 || b.o.Scenario != "hold" {
		return max(b.o.Servers, 1)
	}
	per := int(b.files) - spareFiles
	return (or(b.o.Clients, 60_000)[0] + per - 1) / per
}

func (b *bench) newPoller() (poller, error) {
	if t := b.targets[0]; b.o.Goroutines || t.tls != nil {
		return newStreams(t.tls), nil
	}
	return newPoller()
}

func (b *bench) newPublisher(t *target) (*publisher, error) {
	base := &url.URL{Scheme: map[string]string{"ws": "http", "wss": "https"}[t.url.Scheme], Host: t.url.Host}
	switch b.o.Publish {
	case PublishBroadcast:
		base.Path = "/broadcast"
	case PublishAnyCable:
		base.Path = "/_broadcast"
	}
	addr := t.addr
	if b.o.PublishURL != "" {
		var err error
		if base, err = url.Parse(b.o.PublishURL); err != nil || base.Host == "" {
			return nil, errors.New("--publish-url is no URL")
		}
		if addr, err = resolve(base); err != nil {
			return nil, err
		}
		if base.Path == "" && b.o.Publish != PublishAPI {
			base.Path = "/_broadcast"
		}
	}
	return newPublisher(b.o.Publishers, publisherOptions{
		way: b.o.Publish, base: base, addr: addr, key: b.o.Key, depth: b.o.Pipeline, batch: b.o.Batch,
		timeout: b.o.Timeout, insecure: b.o.Insecure,
	}), nil
}

// close ends what was started.
func (b *bench) close() {
	var g sync.WaitGroup
	for _, s := range b.servers {
		g.Go(s.stop)
	}
	g.Wait()
}

// preflight sends one message through the server, so that whatever is wrong is
// told in one sentence before the load begins.
func (b *bench) preflight(ctx context.Context) error {
	for i := range b.targets {
		if err := b.probe(ctx, i); err != nil {
			return fmt.Errorf("%s: %w", b.targets[i].host, err)
		}
	}
	b.mu.Lock()
	b.res.Series = nil
	b.mu.Unlock()
	return nil
}

func (b *bench) probe(ctx context.Context, target int) error {
	outcome := make(chan error, 4)
	tell := func(err error) {
		select {
		case outcome <- err:
		default:
		}
	}
	cl := b.newClient(0, target, "preflight")
	cl.over = func(_ *client, err error) { tell(err) }
	cl.heard = func(*client, mark, verdict) { tell(nil) }
	v := b.voice(cl.stream, target, cl)
	cl.live = func(*client) {
		b.say(v, time.Now(), b.plainShape(), func(err error) {
			if err != nil {
				tell(err)
			}
		})
	}
	if !cl.loop.do(func() {
		if err := cl.start(); err != nil {
			tell(err)
		}
	}) {
		return context.Cause(ctx)
	}
	defer cl.loop.do(cl.stop)
	limit := time.NewTimer(2 * b.o.Timeout)
	defer limit.Stop()
	select {
	case err := <-outcome:
		return err
	case <-limit.C:
		return fmt.Errorf("a message that was published did not arrive within %v", 2*b.o.Timeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *bench) plainShape() shape {
	s, err := newShape("text", 64)
	if err != nil {
		panic(err) // the numbers are ours
	}
	return s
}

// newClient returns a client that is not connected yet.
func (b *bench) newClient(i, target int, name string) *client {
	t := b.targets[target]
	stream := b.name + "/" + name
	return &client{
		loop: b.loops[i%len(b.loops)], target: t, from: t.source(i / len(b.targets)),
		ident: b.identifier(stream), stream: stream,
	}
}

// identifier returns the identifier of a stream as a JSON string.
func (b *bench) identifier(stream string) []byte {
	name := quote(stream)
	return quote(strings.ReplaceAll(b.o.Channel, "{stream}", string(name[1:len(name)-1])))
}

// voice is one publisher whose messages must arrive in order.
type voice struct {
	lane   uint32
	target int
	stream string
	cl     *client // that performs; may be nil when we publish over HTTP

	mu      sync.Mutex // guards what follows
	seq     uint32
	refused []uint32
}

// voice returns a voice with a lane of its own.
func (b *bench) voice(stream string, target int, cl *client) *voice {
	return &voice{lane: b.nextLane.Add(1) & maxLane, target: target, stream: stream, cl: cl}
}

// say publishes the next message of a voice; done may be nil and is called with
// the outcome, when there is one, from any goroutine. It returns its number.
func (b *bench) say(v *voice, due time.Time, s shape, done func(error)) uint32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seq++
	seq := v.seq
	payload := s.payload(make([]byte, 0, s.size()), mark{at: b.clk.micros(due), lane: v.lane, seq: seq})
	if len(b.pubs) == 0 {
		data := []byte(strings.Replace(b.o.Perform, "{payload}", string(payload), 1))
		v.cl.loop.post(func() { v.cl.perform(data) })
		return seq
	}
	// In the order of the numbers, so under the lock; a refusal at once is told
	// by done from here.
	b.pubs[v.target].publish(int(v.lane), post{stream: v.stream, payload: payload, done: func(err error) {
		if err != nil {
			go v.note(seq)
		}
		if done != nil {
			done(err)
		}
	}})
	return seq
}

func (v *voice) note(seq uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refused = append(v.refused, seq)
}

// sent is how many messages the voice has published.
func (v *voice) sent() uint32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seq
}

// calm waits a moment for the answers to what was published: a subscriber can
// have a message before its publisher knows that it is stored, and each message
// belongs to the step it was published in.
func (b *bench) calm() { lookFor(context.Background(), 2*time.Second, b.settled) }

// begin begins a step.
func (b *bench) begin(number int, label string, clients int, lasts time.Duration) {
	b.calm()
	b.collect(true)
	s := &step{row: Row{Label: label, Clients: clients}, began: time.Now(), lasts: lasts, number: number}
	for _, p := range b.pubs {
		f := p.figures()
		s.refused += f.failed
		s.acked += f.acked
	}
	for _, pid := range b.pids {
		forgetPeak(pid)
	}
	s.server = b.measureServer()
	b.mu.Lock()
	defer b.mu.Unlock()
	s.own.cpu = ownCPU() + b.others
	b.step = s
}

// measureServer adds up what the servers have used; zero when none is known.
func (b *bench) measureServer() (sum usage) {
	for _, pid := range b.pids {
		if u, err := measure(pid); err == nil {
			sum.cpu += u.cpu
			sum.rss += u.rss
			sum.peak += u.peak
		}
	}
	return sum
}

// end ends the step and lets edit add to its row.
func (b *bench) end(edit func(*Row)) Row {
	b.calm()
	b.collect(true)
	now := b.measureServer()
	var acked, refused uint64
	var last error
	for _, p := range b.pubs {
		f := p.figures()
		acked += f.acked
		refused += f.failed
		last = f.lastError
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.step
	b.step = nil
	r := s.row
	took := time.Since(s.began)
	r.Seconds = round(took.Seconds())
	r.Delivered, r.Doubled, r.Inverted = s.tally.Delivered, s.tally.Doubled, s.tally.Inverted
	r.Published = acked - s.acked
	if r.Refused = refused - s.refused; r.Refused > 0 && last != nil {
		s.tally.fail(last)
	}
	r.PerSecond = round(float64(r.Delivered) / took.Seconds())
	r.Latency = s.tally.Latency.Summary()
	r.Errors = s.tally.Errors
	if r.Delivered > 0 {
		r.FrameBytes = round(float64(s.tally.Bytes) / float64(r.Delivered))
	}
	if len(b.pids) > 0 {
		used := now.cpu - s.server.cpu
		r.ServerCPU = round(100 * used.Seconds() / took.Seconds())
		if r.Delivered > 0 {
			r.Cost = round(float64(used.Microseconds()) / float64(r.Delivered))
		}
		r.RSS, r.PeakRSS = now.rss, now.peak
	}
	r.OwnCPU = round(100 * (ownCPU() + b.others - s.own.cpu).Seconds() / took.Seconds())
	if edit != nil {
		edit(&r)
	}
	b.res.Rows = append(b.res.Rows, r)
	return r
}

// collect takes what the loops have counted and adds it to the step, and
// returns it. settle waits for loops that are busy.
func (b *bench) collect(settle bool) tally {
	var sum tally
	for _, l := range b.loops {
		l.do(func() {
			l.pings += l.tally.Pings
			sum.take(&l.tally)
		})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.step != nil {
		part := sum
		part.Latency = Histogram{}
		part.Latency.Add(&sum.Latency)
		b.step.tally.take(&part)
	}
	return sum
}

// sample adds a point to the series once a second, until ctx ends.
func (b *bench) sample(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, lastOwn, lastServer := time.Now(), ownCPU(), b.measureServer().cpu
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		t := b.collect(false)
		now, server := time.Now(), b.measureServer()
		own := ownCPU()
		span := now.Sub(last).Seconds()
		p := Point{
			At: round(now.Sub(b.clk.began).Seconds()), PerSecond: round(float64(t.Delivered) / span),
			P50: millis(t.Latency.Quantile(.5)), P95: millis(t.Latency.Quantile(.95)), P99: millis(t.Latency.Quantile(.99)),
			OwnCPU: round(100 * (own - lastOwn).Seconds() / span), RSS: server.rss,
		}
		if len(b.pids) > 0 {
			p.ServerCPU = round(100 * max(server.cpu-lastServer, 0).Seconds() / span)
		}
		last, lastOwn, lastServer = now, own, server.cpu
		b.mu.Lock()
		var live Progress
		p.Clients = b.clients
		if s := b.step; s != nil {
			p.Step = s.number
			live = Progress{Step: s.number, Label: s.row.Label}
			if s.lasts > 0 {
				live.Done = min(now.Sub(s.began).Seconds()/s.lasts.Seconds(), 1)
			}
		}
		b.res.Series = append(b.res.Series, p)
		b.mu.Unlock()
		if live.Point = p; b.o.Live != nil {
			live.Steps = b.o.steps()
			b.o.Live(live)
		}
	}
}

// note adds a remark to the result.
func (b *bench) note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if text := fmt.Sprintf(format, args...); !slices.Contains(b.res.Notes, text) {
		b.res.Notes = append(b.res.Notes, text)
	}
}

// setting notes a parameter of the run for the report.
func (b *bench) setting(name string, v any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.res.Settings[name] = fmt.Sprint(v)
}

// lookFor waits until cond holds, looking every few milliseconds. false: it did not in
// time, or ctx ended.
func lookFor(ctx context.Context, within time.Duration, cond func() bool) bool {
	limit := time.NewTimer(within)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return false
		case <-limit.C:
			return cond()
		case <-tick.C:
		}
	}
	return true
}

// sleep waits. false: ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// pace calls f for each message that is due at a rate, for d. f is told when
// it was due, however late it is called.
func pace(ctx context.Context, rate float64, d time.Duration, f func(i int, due time.Time)) {
	began := time.Now()
	total := int(rate * d.Seconds())
	due := func(i int) time.Time { return began.Add(time.Duration(float64(i) / rate * float64(time.Second))) }
	for i := 0; i < total; {
		if wait := time.Until(due(i)); wait > 0 {
			if !sleep(ctx, max(wait, time.Millisecond)) {
				return
			}
		}
		for now := time.Now(); i < total && !due(i).After(now); i++ {
			f(i, due(i))
		}
		if ctx.Err() != nil {
			return
		}
	}
}
