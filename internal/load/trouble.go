package load

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// apart measures the latency of one crowd alone, for a step in which several
// are under way.
func (g *crowd) apart() func() Histogram {
	each := make([]Histogram, len(g.b.loops))
	for i, l := range g.b.loops {
		l.do(func() {
			for _, cl := range g.clients {
				if cl.loop == l {
					cl.heard = func(cl *client, m mark, _ verdict) { each[i].Record(l.clk.age(m, l.now)) }
				}
			}
		})
	}
	return func() (sum Histogram) {
		for i, l := range g.b.loops {
			l.do(func() { sum.Add(&each[i]) })
		}
		g.each(func(cl *client) { cl.heard = nil })
		return sum
	}
}

// fair has a small stream live beside a very large one, at the server and in a
// bare loop that serves in the order of arrival.
func fair(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 100)
	if err != nil {
		return err
	}
	sizes, given := or(b.o.Clients, 100, 9000), or(b.o.Rates, 20, 6)
	if len(sizes) < 2 || len(given) < 2 {
		return fmt.Errorf("fair needs two numbers of users and two rates, the small stream's first")
	}
	rounds, lasts := cmp.Or(b.o.Rounds, 5), cmp.Or(b.o.For, 5*time.Second)
	if need := 2*(sizes[0]+sizes[1]) + spareFiles; uint64(need) > b.files {
		return fmt.Errorf("fair needs %d open files, the limit is %d: give fewer --clients", need, b.files)
	}
	b.begin(1, "connecting", sizes[0]+sizes[1], 0)
	f, err := b.startBare(2)
	if err != nil {
		return err
	}
	defer f.child.stop()
	var served, loose [2]*crowd
	var served2, loose2 [2]*voice
	for k := range 2 {
		name := []string{"small", "large"}[k]
		served[k] = b.newCrowd(sizes[k], func(int) string { return name })
		if err := served[k].connect(ctx, cmp.Or(b.o.Ramp, 5000)); err != nil {
			return err
		}
		text, err := b.pattern(ctx, served[k], s)
		if err != nil {
			return err
		}
		v, speakers, err := b.voices(ctx, 1, name, 0)
		if err != nil {
			return err
		}
		if speakers != nil {
			defer speakers.leave()
		}
		served2[k] = v[0]
		if loose[k], err = f.crowd(ctx, k, sizes[k]); err != nil {
			return err
		}
		if err := f.frame(k, text); err != nil {
			return err
		}
		loose2[k] = b.voice("bare/"+name, 0, nil)
		served[k].watch(served2[k : k+1])
		loose[k].watch(loose2[k : k+1])
	}
	b.drop(nil)
	run := func(number int, label string, crowds [2]*crowd, voices [2]*voice, say func(k int, due time.Time)) float64 {
		small := crowds[0].apart()
		b.begin(number, label, sizes[0]+sizes[1], lasts)
		var g sync.WaitGroup
		for k := range 2 {
			g.Go(func() { pace(ctx, given[k], lasts, func(_ int, due time.Time) { say(k, due) }) })
		}
		g.Wait()
		for k := range 2 {
			crowds[k].settle(ctx, voices[k:k+1])
		}
		var p99 float64
		b.end(func(r *Row) {
			h := small()
			p99 = millis(h.Quantile(.99))
			r.add("small stream p50", millis(h.Quantile(.5)), "ms")
			r.add("small stream p99", p99, "ms")
			for k := range 2 {
				r.Lost += crowds[k].lost(voices[k : k+1])
			}
			if crowds == loose { // what the idle server used meanwhile says nothing
				r.ServerCPU, r.Cost, r.RSS, r.PeakRSS = 0, 0, 0, 0
			}
		})
		return p99
	}
	var ours, theirs, ratios []float64
	for i := range rounds {
		a := run(2*i+1, fmt.Sprintf("server, round %d", i+1), served, served2, func(k int, due time.Time) { b.say(served2[k], due, s, nil) })
		z := run(2*i+2, fmt.Sprintf("order of arrival, round %d", i+1), loose, loose2, func(k int, due time.Time) {
			if err := f.write(k, loose2[k], due); err != nil {
				b.note("%v", err)
			}
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		ours, theirs = append(ours, a), append(theirs, z)
		if z > 0 {
			ratios = append(ratios, a/z)
		}
	}
	b.note("p99 of the small stream in ms: server %s; in order of arrival %s", spread(ours), spread(theirs))
	b.res.check("p99 of the small stream, as a multiple of strict order of arrival (median of rounds)", median(ratios), 0.5, "×")
	return nil
}

// stuck has some users stop reading.
func stuck(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 3000)
	if err != nil {
		return err
	}
	n, rate, rounds := or(b.o.Clients, 1000)[0], or(b.o.Rates, 100)[0], cmp.Or(b.o.Rounds, 3)
	lasts := cmp.Or(b.o.For, 15*time.Second)
	bad := max(1, n/20)
	b.setting("users that stop reading", bad)
	var ratios, memory, silent []float64
	for i := range rounds {
		b.begin(2*i+1, "connecting", n, 0)
		healthy := b.newCrowd(n-bad, func(int) string { return fmt.Sprintf("stuck/%d", i) })
		ill := b.newCrowd(bad, func(int) string { return fmt.Sprintf("stuck/%d", i) })
		err := healthy.connect(ctx, b.o.Ramp)
		if err == nil {
			err = ill.connect(ctx, b.o.Ramp)
		}
		b.drop(err)
		if err != nil {
			return err
		}
		before, err := b.talk(ctx, 2*i+1, fmt.Sprintf("all read, round %d", i+1), healthy, rate, lasts/3, s, nil)
		if err != nil {
			return err
		}
		ends := ill.freeze()
		stop, most := b.watchMemory(ctx)
		row, err := b.talk(ctx, 2*i+2, fmt.Sprintf("%d stuck, round %d", bad, i+1), healthy, rate, lasts, s, func(r *Row, voices []*voice) {
			stop()
			told, cut, whole, lost := ends(ctx, voices)
			r.add("told to come back", float64(told), "")
			r.add("cut without a word", float64(cut), "")
			r.add("caught up", float64(whole), "")
			r.add("neither", float64(lost), "")
			silent = append(silent, float64(lost))
			if bytes, how := most(); how != "" {
				r.add("kernel send memory, most ("+how+")", mib(bytes), "MiB")
				memory = append(memory, mib(bytes))
			}
		})
		if err != nil {
			return err
		}
		if before.Latency.P99 > 0 {
			ratios = append(ratios, row.Latency.P99/before.Latency.P99)
		}
		healthy.leave()
		ill.leave()
	}
	b.note("p99 of those who read, beside stuck ones, as a multiple: %s", spread(ratios))
	b.res.check("p99 of healthy readers beside stuck ones (median of rounds)", median(ratios), 1.3, "×")
	b.res.check("stuck readers neither told, cut nor served in full", slices.Max(silent), 0, "")
	if len(memory) > 0 {
		b.res.check("kernel send memory (median of rounds)", median(memory), 20, "MiB")
	}
	return ctx.Err()
}

// freeze has a crowd stop reading. What it returns has them read again and
// tells what has become of them: told to come back, cut without a word, or
// live with everything.
func (g *crowd) freeze() func(context.Context, []*voice) (told, cut, whole, lost int) {
	var over atomic.Int64
	g.each(func(cl *client) {
		cl.heard = nil
		cl.over = func(cl *client, err error) { over.Add(1) }
		cl.tracks, cl.highest = nil, make(map[uint32]uint32)
		if cl.state == clientLive {
			cl.c.listen(false)
		}
	})
	return func(ctx context.Context, voices []*voice) (told, cut, whole, lost int) {
		g.each(func(cl *client) {
			if cl.state == clientLive {
				cl.c.listen(true)
			}
		})
		// Whoever is to be told has been by now; what was queued comes in.
		var last uint64
		quiet := time.Now()
		lookFor(ctx, 15*time.Second, func() bool {
			var n uint64
			g.each(func(cl *client) { n += cl.got })
			if n != last {
				last, quiet = n, time.Now()
			}
			return over.Load() >= int64(len(g.clients)) || time.Since(quiet) > 2500*time.Millisecond
		})
		g.each(func(cl *client) {
			switch {
			case cl.gone && cl.comeback:
				told++
			case cl.state == clientOver:
				cut++
			case !cl.holes && cl.reached(voices):
				whole++
			default:
				lost++
			}
		})
		return told, cut, whole, lost
	}
}

// reached reports whether a client has got the last message of each voice.
func (cl *client) reached(voices []*voice) bool {
	for _, v := range voices {
		if cl.highest[v.lane] != v.sent() {
			return false
		}
	}
	return true
}

// watchMemory looks at what the kernel holds for the server twice a second,
// until stop is called.
func (b *bench) watchMemory(ctx context.Context) (stop func(), most func() (uint64, string)) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	var top uint64
	var way string
	local := b.targets[0].addr.Addr().IsLoopback()
	go func() {
		defer close(done)
		for local && sleep(ctx, 500*time.Millisecond) {
			n, how := sendMemory(b.targets[0].addr.Port())
			top, way = max(top, n), how
		}
	}()
	stop = func() { cancel(); <-done }
	return stop, func() (uint64, string) { return top, way }
}

// flood has some connections send commands without end and read nothing.
func flood(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 300)
	if err != nil {
		return err
	}
	n, rate, rounds := or(b.o.Clients, 1000)[0], or(b.o.Rates, 20)[0], cmp.Or(b.o.Rounds, 3)
	lasts := cmp.Or(b.o.For, 6*time.Second)
	const flooders = 20
	b.setting("flooding connections", flooders)
	b.begin(1, "connecting", n, 0)
	g := b.newCrowd(n, func(int) string { return "flood" })
	err = g.connect(ctx, b.o.Ramp)
	b.drop(err)
	if err != nil {
		return err
	}
	var ratios, alive, grown []float64
	for i := range rounds {
		before, err := b.talk(ctx, 2*i+1, fmt.Sprintf("in peace, round %d", i+1), g, rate, lasts, s, nil)
		if err != nil {
			return err
		}
		bad := b.newCrowd(flooders, func(k int) string { return fmt.Sprintf("flooder/%d", k) })
		var sent atomic.Int64
		for _, cl := range bad.clients {
			cl.live = func(cl *client) { bad.live.Add(1); cl.flood(&sent) }
			cl.over = func(*client, error) { bad.failed.Add(1) }
		}
		if err := bad.connect(ctx, 0); err != nil {
			return err
		}
		row, err := b.talk(ctx, 2*i+2, fmt.Sprintf("%d flood, round %d", flooders, i+1), g, rate, lasts, s, func(r *Row, _ []*voice) {
			r.add("flooders cut", float64(bad.failed.Load()), "")
			r.add("commands sent", float64(sent.Load()), "")
		})
		bad.leave()
		if err != nil {
			return err
		}
		alive = append(alive, float64(g.live.Load()-g.failed.Load()))
		if before.Latency.P99 > 0 {
			ratios = append(ratios, row.Latency.P99/before.Latency.P99)
		}
		if before.RSS > 0 {
			grown = append(grown, mib(row.PeakRSS)-mib(before.RSS))
		}
	}
	b.note("p99 of the others beside flooders, as a multiple: %s", spread(ratios))
	if len(grown) > 0 {
		b.note("server RSS grown by the flood, MiB: %s", spread(grown))
	}
	b.res.check("p99 of others beside flooders (median of rounds)", median(ratios), 2, "×")
	b.res.checkLeast("others still connected", slices.Min(alive), float64(n), "")
	return ctx.Err()
}

// flood sends commands as long as the server takes them, and reads nothing.
func (cl *client) flood(sent *atomic.Int64) {
	const batch = 200
	command := append(append([]byte(`{"command":"subscribe","identifier":`), cl.ident...), '}')
	var frames []byte
	for range batch {
		frames = appendFrame(frames, opText, command)
	}
	cl.c.listen(false)
	var more func()
	more = func() {
		// A turn of the loop between two batches, or one connection would have
		// it all.
		if cl.state == clientLive {
			cl.loop.after(0, func() {
				if cl.state != clientLive || len(cl.c.out) > 0 {
					return
				}
				sent.Add(batch)
				cl.c.write(frames)
				if cl.c.state == connOpen && len(cl.c.out) == 0 {
					more()
				}
			})
		}
	}
	cl.c.room = more
	more()
}
