package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// bare is the child that serves sockets in a bare loop: nothing but one
// write(2) of the same bytes for each.
type bare struct {
	b     *bench
	child *child
	addrs []netip.AddrPort // of its groups of sockets
}

// startBare starts the child. Each group of sockets has a port of its own.
func (b *bench) startBare(groups int) (*bare, error) {
	c, err := startChild(b.o.Child, "floor")
	if err != nil {
		return nil, err
	}
	f := &bare{b: b, child: c}
	for range groups {
		if err := f.tell("listen"); err != nil {
			c.stop()
			return nil, err
		}
		line, err := c.read()
		if err == nil {
			var addr netip.AddrPort
			if addr, err = netip.ParseAddrPort(line); err == nil {
				f.addrs = append(f.addrs, addr)
			}
		}
		if err != nil {
			c.stop()
			return nil, err
		}
	}
	return f, nil
}

func (f *bare) tell(format string, args ...any) error {
	if _, err := fmt.Fprintf(f.child.in, format+"\n", args...); err != nil {
		return fmt.Errorf("load: the bare loop ended: %s", f.child.log.line())
	}
	return nil
}

// cpu is the processor time the child has used, once it has done what it was
// told.
func (f *bare) cpu() (time.Duration, error) {
	if err := f.tell("cpu"); err != nil {
		return 0, err
	}
	line, err := f.child.read()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(line, 10, 64)
	return time.Duration(n), err
}

// crowd connects n bare clients to a group and waits until the child has them.
func (f *bare) crowd(ctx context.Context, group, n int) (*crowd, error) {
	t := &target{addr: f.addrs[group], host: f.addrs[group].String(), patience: f.b.o.Timeout}
	g := &crowd{b: f.b}
	for i := range n {
		cl := &client{loop: f.b.loops[i%len(f.b.loops)], target: t}
		cl.live = func(*client) { g.live.Add(1) }
		cl.over = g.lose
		g.clients = append(g.clients, cl)
	}
	if err := f.tell("await %d %d", group, n); err != nil { // it accepts while they connect
		return nil, err
	}
	if err := g.connect(ctx, 0); err != nil {
		return nil, err
	}
	line, err := f.child.read()
	if err != nil || line != "ok" {
		return nil, errors.Join(errors.New("load: the bare loop has not all connections"), err)
	}
	return g, nil
}

// frame tells the child what to write to a group: the text of a frame with our
// mark in it.
func (f *bare) frame(group int, text []byte) error {
	before, after, ok := strings.Cut(string(text), string(markStart))
	if !ok || len(after) < markBytes-len(markStart) {
		return errors.New("load: no message to take as a pattern")
	}
	return f.tell("frame %d %x %x", group, appendHeader(nil, len(text)), before+"\x00"+after[markBytes-len(markStart):])
}

// appendHeader appends the header of a server's text frame.
func appendHeader(b []byte, n int) []byte {
	switch {
	case n < 126:
		return append(b, 0x80|opText, byte(n))
	case n < 1<<16:
		return append(b, 0x80|opText, 126, byte(n>>8), byte(n))
	}
	return append(b, 0x80|opText, 127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func (f *bare) write(group int, v *voice, due time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seq++
	return f.tell("write %d %d %d %d", group, v.lane, v.seq, f.b.clk.micros(due))
}

// pattern is a frame as the server sends it to this crowd.
func (b *bench) pattern(ctx context.Context, g *crowd, s shape) ([]byte, error) {
	got := make(chan []byte, 1)
	cl := g.clients[0]
	cl.loop.do(func() { cl.sample = func(text []byte) { got <- slices.Clone(text) } })
	v, speakers, err := b.voices(ctx, 1, cl.stream[len(b.name)+1:], 0)
	if err != nil {
		return nil, err
	}
	if speakers != nil {
		defer speakers.leave()
	}
	b.say(v[0], time.Now(), s, nil)
	select {
	case text := <-got:
		return text, nil
	case <-time.After(b.o.Timeout):
		return nil, errors.New("a message that was published did not arrive")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// spread words the range of a list.
func spread(v []float64) string {
	if len(v) == 0 {
		return "none"
	}
	return fmt.Sprintf("median %.3g, %.3g to %.3g", median(v), slices.Min(v), slices.Max(v))
}

// floor compares the processor time of one message at a time with a bare loop
// of one write for each socket, in turns.
func floor(ctx context.Context, b *bench) error {
	if len(b.pids) == 0 {
		return errors.New("floor measures processor time: leave out the URL, or give the server's --pid")
	}
	s, err := b.shapeOr("text", 300)
	if err != nil {
		return err
	}
	n, rounds := or(b.o.Clients, 1000)[0], cmp.Or(b.o.Rounds, 5)
	messages := max(20, 200_000/n)
	b.setting("messages of a round", messages)
	b.begin(1, "connecting", n, 0)
	g := b.newCrowd(n, func(int) string { return "floor" })
	if err := g.connect(ctx, b.o.Ramp); err != nil {
		return err
	}
	text, err := b.pattern(ctx, g, s)
	if err != nil {
		return err
	}
	f, err := b.startBare(1)
	if err != nil {
		return err
	}
	defer f.child.stop()
	bareCrowd, err := f.crowd(ctx, 0, n)
	if err != nil {
		return err
	}
	if err := f.frame(0, text); err != nil {
		return err
	}
	b.drop(nil)
	v := b.voice("bare", 0, nil)
	bareCrowd.watch([]*voice{v})
	bareCrowd.count()
	var ours, theirs, ratios []float64
	for i := range rounds {
		row, err := b.oneAtATime(ctx, 2*i+1, fmt.Sprintf("server, round %d", i+1), []*crowd{g}, messages, s, nil)
		if err != nil {
			return err
		}
		cost, err := f.round(ctx, 2*i+2, fmt.Sprintf("bare loop, round %d", i+1), bareCrowd, v, messages)
		if err != nil {
			return err
		}
		ours, theirs = append(ours, row.Cost), append(theirs, cost)
		if cost > 0 {
			ratios = append(ratios, row.Cost/cost)
		}
	}
	b.note("server, µs of a delivery: %s; bare loop: %s; ratios of the rounds: %s", spread(ours), spread(theirs), spread(ratios))
	b.res.check("processor time of a delivery, as a multiple of a bare write loop (median of rounds)", median(ratios), 1.2, "×")
	return ctx.Err()
}

// round writes one message at a time in the bare loop and returns what a
// delivery cost it, in microseconds.
func (f *bare) round(ctx context.Context, number int, label string, g *crowd, v *voice, messages int) (float64, error) {
	f.b.begin(number, label, int(g.live.Load()), 0)
	before, err := f.cpu()
	if err != nil {
		return 0, err
	}
	for range messages {
		got := g.arrive(g.hits.Load() + g.live.Load())
		if err := f.write(0, v, time.Now()); err != nil {
			return 0, err
		}
		select {
		case <-got:
		case <-time.After(f.b.o.Timeout):
			return 0, errors.New("load: a message of the bare loop did not arrive")
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	after, err := f.cpu()
	if err != nil {
		return 0, err
	}
	row := f.b.end(func(r *Row) {
		r.Lost = g.lost([]*voice{v})
		r.Published = uint64(messages)
		r.ServerCPU, r.RSS, r.PeakRSS = round(100*(after-before).Seconds()/r.Seconds), 0, 0
		r.Cost = round(float64((after - before).Microseconds()) / float64(max(r.Delivered, 1)))
	})
	return row.Cost, nil
}

// storm compares a storm of messages with one message at a time, in turns.
func storm(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 80)
	if err != nil {
		return err
	}
	n, rate, rounds := or(b.o.Clients, 1000)[0], or(b.o.Rates, 1000)[0], cmp.Or(b.o.Rounds, 5)
	lasts := cmp.Or(b.o.For, 5*time.Second)
	b.begin(1, "connecting", n, 0)
	g := b.newCrowd(n, func(int) string { return "storm" })
	err = g.connect(ctx, b.o.Ramp)
	b.drop(err)
	if err != nil {
		return err
	}
	var perSecond, costs, alone, p99, lost []float64
	for i := range rounds {
		one, err := b.oneAtATime(ctx, 2*i+1, fmt.Sprintf("one at a time, round %d", i+1), []*crowd{g}, max(10, 60_000/n), s, nil)
		if err != nil {
			return err
		}
		g.each(func(cl *client) { cl.heard = nil })
		row, err := b.talk(ctx, 2*i+2, fmt.Sprintf("%g/s, round %d", rate, i+1), g, rate, lasts, s, nil)
		if err != nil {
			return err
		}
		perSecond, p99 = append(perSecond, row.PerSecond), append(p99, row.Latency.P99)
		costs, alone, lost = append(costs, row.Cost), append(alone, one.Cost), append(lost, float64(row.Lost))
	}
	b.note("deliveries a second: %s; p99 in ms: %s", spread(perSecond), spread(p99))
	asked := 0.95 * rate * float64(n)
	b.res.checkLeast("storm: deliveries a second", median(perSecond), asked, "/s")
	b.res.check("storm: lost", slices.Max(lost), 0, "")
	b.res.check("storm: p99", median(p99), 60, "ms")
	if len(b.pids) > 0 {
		b.note("server µs of a delivery in the storm: %s; one at a time: %s", spread(costs), spread(alone))
		b.res.check("storm: processor time of a delivery (or a fifth of one at a time)", median(costs), max(0.7, round(median(alone)/5)), "µs")
	}
	return ctx.Err()
}
