package load

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// scenarios are what can be run, by name.
var scenarios map[string]scenario

func init() {
	scenarios = map[string]scenario{
		"constant": {about: "Users connect, subscribe, 20 times trigger a message and wait for it, pause 500 to 1,000 ms, disconnect, and begin again.", run: constant},
		"herd":     {about: "All users connect at once, subscribe, make one round trip and disconnect.", run: herd},
		"lecture":  {about: "All users listen to one stream, on which messages are published at a steady rate.", run: lecture},
		"rtt":      {about: "All users listen to one stream; the time from a publish until the last of them has the message.", run: rtt},
		"payload":  {about: "Ten streams with 100 users each; messages of several sizes, one at a time on each stream.", run: payloads},
		"hold":     {about: "Idle, subscribed connections are opened at a steady rate and held.", run: hold},
		"rate":     {about: "One user publishes and receives at growing rates, and sends as many commands on its socket meanwhile.", run: rates},
		"tokens":   {about: "Answers are written token by token, each with its own readers, who reload at random.", run: tokens},
		"floor":    {about: "One message at a time to all users, in turns with a bare loop of one write for each socket.", run: floor},
		"storm":    {about: "1,000 users on one stream with 1,000 messages a second, beside one message at a time.", run: storm},
		"fair":     {about: "A stream with few users beside one with very many, in turns with a bare loop that serves in the order of arrival.", run: fair},
		"stuck":    {about: "Some users stop reading while messages go on; what the others notice, and what becomes of them.", run: stuck},
		"flood":    {about: "Some connections send commands without end and read nothing; what the others notice.", run: flood},
	}
}

// Scenarios returns the names in the order help lists them, with a sentence
// each.
func Scenarios() [][2]string {
	var list [][2]string
	for _, name := range []string{"constant", "herd", "lecture", "rtt", "payload", "hold", "rate", "tokens", "floor", "storm", "fair", "stuck", "flood"} {
		list = append(list, [2]string{name, scenarios[name].about})
	}
	return list
}

// steps is how many steps the run has, as far as that is known.
func (o Options) steps() int {
	switch o.Scenario {
	case "constant":
		return len(or(o.Clients, 250, 500, 750, 1000))
	case "herd":
		return len(or(o.Clients, 250, 500, 1000, 10_000))
	case "lecture":
		return len(lectureSteps(o))
	case "rtt":
		return len(rttSteps(o))
	case "rate":
		return len(or(o.Rates, rateSteps...))
	case "payload":
		return len(payloadSteps(o))
	case "floor", "storm", "fair":
		return 2 * cmp.Or(o.Rounds, 5)
	case "stuck", "flood":
		return 2 * cmp.Or(o.Rounds, 3)
	}
	return 1
}

func or[T any](given []T, defaults ...T) []T {
	if len(given) > 0 {
		return given
	}
	return defaults
}

// shapeOr is the shape the options ask for, or else this one.
func (b *bench) shapeOr(name string, size int) (shape, error) {
	if b.o.Size > 0 {
		name, size = b.o.Shape, b.o.Size
	}
	s, err := newShape(name, size)
	b.setting("payload", fmt.Sprintf("%s, %d B", name, size))
	return s, err
}

func constant(ctx context.Context, b *bench) error {
	rounds, lasts := cmp.Or(b.o.Rounds, 20), cmp.Or(b.o.For, 30*time.Second)
	s, err := b.shapeOr("text", 100)
	if err != nil {
		return err
	}
	b.setting("round trips of a visit", rounds)
	for i, n := range or(b.o.Clients, 250, 500, 750, 1000) {
		b.begin(i+1, fmt.Sprintf("%d users", n), n, lasts)
		u := &users{b: b, rounds: rounds, shape: s, until: time.Now().Add(lasts)}
		g := b.newCrowd(n, func(i int) string { return fmt.Sprintf("user/%d/%d", n, i) })
		for k, cl := range g.clients {
			u.add(cl, k%len(b.targets))
		}
		b.addClients(n)
		err := g.begin(ctx, cmp.Or(b.o.Ramp, float64(n)))
		if err == nil {
			lookFor(ctx, time.Until(u.until)+2*b.o.Timeout, func() bool { return u.over.Load() >= int64(n) })
		}
		b.addClients(-n)
		g.each((*client).stop)
		b.end(func(r *Row) {
			r.Lost = uint64(u.unanswered.Load())
			if len(b.pubs) == 0 {
				r.Published = uint64(u.said.Load())
			}
			r.add("visits", float64(u.visits.Load()), "")
			r.add("visits cut short", float64(u.broken.Load()), "")
			u.figure(r)
		})
		if err != nil {
			return err
		}
		if r := &b.res.Rows[len(b.res.Rows)-1]; r.Delivered == 0 && ctx.Err() == nil {
			return fmt.Errorf("no user got an answer: %s", someError(r))
		}
	}
	return ctx.Err()
}

func someError(r *Row) string {
	for text := range r.Errors {
		return text
	}
	return "nothing came back"
}

// users are clients that make round trips.
type users struct {
	b          *bench
	rounds     int
	shape      shape
	until      time.Time // no visit begins after it; zero: one visit each
	over       atomic.Int64
	visits     atomic.Int64
	broken     atomic.Int64
	unanswered atomic.Int64
	said       atomic.Int64
	confirmed  atomic.Int64 // clients that were live once
	lastLive   atomic.Int64 // when, in nanoseconds from the run's beginning
	lastHeard  atomic.Int64
	joining    []*Histogram // of each loop
}

// add has a client visit again and again.
func (u *users) add(cl *client, target int) {
	var (
		v     = u.b.voice(cl.stream, target, cl)
		round int
		want  uint32
		limit *timer
		visit func()
	)
	if len(u.joining) == 0 {
		for range u.b.loops {
			u.joining = append(u.joining, &Histogram{})
		}
	}
	joined := u.joining[0]
	for i, l := range u.b.loops {
		if l == cl.loop {
			joined = u.joining[i]
		}
	}
	cl.base, cl.tracks = v.lane, make([]track, 1)
	again := func() {
		limit.stop()
		round, want = 0, 0
		if u.until.IsZero() || time.Now().After(u.until) {
			u.over.Add(1)
			return
		}
		cl.loop.after(100*time.Millisecond, func() {
			if err := cl.start(); err != nil {
				cl.loop.tally.fail(err)
				u.over.Add(1)
			}
		})
	}
	next := func() {
		if round == u.rounds || !u.until.IsZero() && time.Now().After(u.until) {
			u.visits.Add(1)
			cl.stop()
			again()
			return
		}
		visit()
	}
	visit = func() {
		round++
		limit = cl.loop.after(u.b.o.Timeout, func() {
			u.unanswered.Add(1)
			next()
		})
		// A refusal is no answer: the limit ends the wait for it.
		u.said.Add(1)
		want = u.b.say(v, time.Now(), u.shape, nil)
	}
	cl.live = func(*client) {
		joined.Record(time.Since(cl.began))
		u.confirmed.Add(1)
		storeMax(&u.lastLive, int64(time.Since(u.b.clk.began)))
		cl.tracks[0].skip(v.sent())
		visit()
	}
	cl.heard = func(_ *client, m mark, _ verdict) {
		if m.lane != v.lane || m.seq != want || want == 0 {
			return
		}
		want = 0
		limit.stop()
		storeMax(&u.lastHeard, int64(time.Since(u.b.clk.began)))
		if u.until.IsZero() {
			next()
			return
		}
		limit = cl.loop.after(500*time.Millisecond+rand.N(500*time.Millisecond), next)
	}
	cl.over = func(_ *client, err error) {
		cl.loop.tally.fail(err)
		u.broken.Add(1)
		if want != 0 {
			u.unanswered.Add(1)
		}
		again()
	}
}

func storeMax(a *atomic.Int64, v int64) {
	for old := a.Load(); v > old && !a.CompareAndSwap(old, v); old = a.Load() {
	}
}

// figure adds how long joining took.
func (u *users) figure(r *Row) {
	var all Histogram
	for i, l := range u.b.loops {
		l.do(func() { all.Add(u.joining[i]) })
	}
	r.add("p50 of joining", millis(all.Quantile(.5)), "ms")
	r.add("p95 of joining", millis(all.Quantile(.95)), "ms")
	r.add("p99 of joining", millis(all.Quantile(.99)), "ms")
}

func herd(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 100)
	if err != nil {
		return err
	}
	for i, n := range or(b.o.Clients, 250, 500, 1000, 10_000) {
		if uint64(n)+200 > b.files {
			b.note("%d users need more open files than this process may have (%d)", n, b.files)
			continue
		}
		before := b.measureServer().rss
		b.begin(i+1, fmt.Sprintf("%d users at once", n), n, 0)
		u := &users{b: b, rounds: 1, shape: s}
		g := b.newCrowd(n, func(i int) string { return fmt.Sprintf("herd/%d/%d", n, i) })
		for k, cl := range g.clients {
			u.add(cl, k%len(b.targets))
		}
		b.addClients(n)
		began := time.Since(b.clk.began)
		err := g.begin(ctx, b.o.Ramp)
		if err == nil {
			lookFor(ctx, 3*b.o.Timeout, func() bool { return u.over.Load() >= int64(n) })
		}
		steady := b.measureServer()
		b.addClients(-n)
		g.each((*client).stop)
		row := b.end(func(r *Row) {
			r.Lost = uint64(u.unanswered.Load())
			if len(b.pubs) == 0 {
				r.Published = uint64(u.said.Load())
			}
			r.add("confirmed", float64(u.confirmed.Load()), "")
			r.add("answered", float64(u.visits.Load()), "")
			r.add("all confirmed after", millis(time.Duration(u.lastLive.Load())-began), "ms")
			r.add("all answered after", millis(time.Duration(u.lastHeard.Load())-began), "ms")
			u.figure(r)
			if len(b.pids) > 0 {
				r.add("RSS before", mib(before), "MiB")
				r.add("RSS at the end", mib(steady.rss), "MiB")
				r.add("peak RSS", mib(steady.peak), "MiB")
				if u.confirmed.Load() > 0 {
					r.add("server CPU per user", r.ServerCPU/100*r.Seconds*1e6/float64(u.confirmed.Load()), "µs")
				}
			}
		})
		if err != nil {
			return err
		}
		if row.Delivered == 0 && ctx.Err() == nil {
			return fmt.Errorf("no user got an answer: %s", someError(&row))
		}
		if n >= 10_000 {
			after, _ := row.Get("all answered after")
			b.res.check("herd of "+fmt.Sprint(n)+": confirmed and answered", after, 2000, "ms")
			b.res.checkLeast("herd of "+fmt.Sprint(n)+": users answered", float64(u.visits.Load()), float64(n), "")
		}
		if !sleep(ctx, time.Second) { // the server takes its connections down
			break
		}
	}
	return ctx.Err()
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// lectureStep is a number of users and a rate.
type lectureStep struct {
	users int
	rate  float64
}

func lectureSteps(o Options) (list []lectureStep) {
	if len(o.Clients) > 0 || len(o.Rates) > 0 {
		for _, n := range or(o.Clients, 1000) {
			for _, r := range or(o.Rates, 10) {
				list = append(list, lectureStep{n, r})
			}
		}
		return list
	}
	for _, r := range []float64{7, 10} {
		for _, n := range []int{250, 500, 750} {
			list = append(list, lectureStep{n, r})
		}
	}
	for _, r := range []float64{20, 100, 300, 1000} {
		list = append(list, lectureStep{1000, r})
	}
	return list
}

func lecture(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 300)
	if err != nil {
		return err
	}
	lasts := cmp.Or(b.o.For, 10*time.Second)
	var g *crowd
	for i, st := range lectureSteps(b.o) {
		if g == nil || len(g.clients) != st.users {
			if g != nil {
				g.leave()
			}
			b.begin(i+1, "connecting", st.users, 0)
			g = b.newCrowd(st.users, func(int) string { return fmt.Sprintf("lecture/%d", st.users) })
			err := g.connect(ctx, b.o.Ramp)
			b.drop(err)
			if err != nil {
				return err
			}
		}
		if _, err := b.talk(ctx, i+1, fmt.Sprintf("%d users, %g/s", st.users, st.rate), g, st.rate, lasts, s, nil); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// drop ends a step that is no row of the report. Its errors go to the notes.
func (b *bench) drop(err error) {
	b.collect(true)
	b.mu.Lock()
	s := b.step
	b.step = nil
	b.mu.Unlock()
	if err == nil {
		for text, n := range s.tally.Errors {
			b.note("%d × %s", n, text)
		}
	}
}

// talk has a crowd on one stream of each server listen to a steady rate, and
// ends the step with its row.
func (b *bench) talk(ctx context.Context, number int, label string, g *crowd, rate float64, lasts time.Duration, s shape, edit func(*Row, []*voice)) (Row, error) {
	name := g.clients[0].stream[len(b.name)+1:]
	voices, speakers, err := b.voices(ctx, b.o.Publishers, name, 0)
	if err != nil {
		return Row{}, err
	}
	g.watch(voices)
	b.begin(number, label, int(g.live.Load()), lasts)
	pace(ctx, rate, lasts, func(i int, due time.Time) { b.say(voices[i%len(voices)], due, s, nil) })
	g.settle(ctx, voices)
	row := b.end(func(r *Row) {
		r.Lost = g.lost(voices)
		var sent uint64
		for _, v := range voices {
			sent += uint64(v.sent())
		}
		if len(b.pubs) == 0 {
			r.Published = sent
		}
		r.add("offered", float64(sent), "")
		if edit != nil {
			edit(r, voices)
		}
	})
	if speakers != nil {
		speakers.leave()
	}
	return row, ctx.Err()
}

func rttSteps(o Options) []int {
	if len(o.Clients) > 0 {
		return o.Clients
	}
	var list []int
	for n := 200; n <= 2000; n += 200 {
		list = append(list, n)
	}
	return list
}

func rtt(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 100)
	if err != nil {
		return err
	}
	rounds := cmp.Or(b.o.Rounds, 40)
	b.setting("messages of a step", rounds)
	for i, n := range rttSteps(b.o) {
		b.begin(i+1, "connecting", n, 0)
		g := b.newCrowd(n, func(int) string { return fmt.Sprintf("rtt/%d", n) })
		err := g.connect(ctx, b.o.Ramp)
		b.drop(err)
		if err != nil {
			return err
		}
		_, err = b.oneAtATime(ctx, i+1, fmt.Sprintf("%d users", n), []*crowd{g}, rounds, s, nil)
		g.leave()
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// oneAtATime publishes one message at a time on the stream of each crowd, the
// next when the last user has got the one before, and ends the step.
func (b *bench) oneAtATime(ctx context.Context, number int, label string, crowds []*crowd, rounds int, s shape, edit func(*Row)) (Row, error) {
	type side struct {
		g      *crowd
		voices []*voice
	}
	var sides []side
	total := 0
	for i, g := range crowds {
		voices, speakers, err := b.voices(ctx, 1, g.clients[0].stream[len(b.name)+1:], i%len(b.targets))
		if err != nil {
			return Row{}, err
		}
		if speakers != nil {
			defer speakers.leave()
		}
		g.watch(voices)
		g.count()
		sides = append(sides, side{g, voices})
		total += int(g.live.Load())
	}
	b.begin(number, label, total, 0)
	whole := &Histogram{}
	results := make(chan time.Duration, rounds*len(sides))
	workers := make(chan struct{}, len(sides))
	for _, sd := range sides {
		go func() {
			defer func() { workers <- struct{}{} }()
			for range rounds {
				want := sd.g.hits.Load() + sd.g.live.Load()
				got := sd.g.arrive(want)
				began := time.Now()
				b.say(sd.voices[0], began, s, nil)
				select {
				case <-got:
					results <- time.Since(began)
				case <-time.After(b.o.Timeout):
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	for range sides {
		<-workers
	}
	close(results)
	for d := range results {
		whole.Record(d)
	}
	row := b.end(func(r *Row) {
		for _, sd := range sides {
			r.Lost += sd.g.lost(sd.voices)
		}
		if len(b.pubs) == 0 {
			r.Published = uint64(rounds * len(sides))
		}
		r.add("p50 until the last user", millis(whole.Quantile(.5)), "ms")
		r.add("p95 until the last user", millis(whole.Quantile(.95)), "ms")
		if edit != nil {
			edit(r)
		}
	})
	return row, ctx.Err()
}

// payloadStep is a shape by the name it has in the report.
type payloadStep struct {
	name  string
	shape string
	size  int
}

func payloadSteps(o Options) []payloadStep {
	if o.Size > 0 {
		shape := cmp.Or(o.Shape, "text")
		return []payloadStep{{fmt.Sprintf("%s %d B", shape, o.Size), shape, o.Size}}
	}
	return []payloadStep{{"19 B text", "text", 19}, {"2.95 KB Turbo Stream", "turbo", 2950}, {"80.5 KB JSON", "json", 80_500}}
}

func payloads(ctx context.Context, b *bench) error {
	streams, each := cmp.Or(b.o.Streams, 10), or(b.o.Clients, 100)[0]
	rounds := cmp.Or(b.o.Rounds, 20)
	b.setting("streams", streams)
	b.setting("users of each", each)
	var crowds []*crowd
	b.begin(1, "connecting", streams*each, 0)
	for i := range streams {
		g := b.newCrowd(each, func(int) string { return fmt.Sprint(i) })
		for _, cl := range g.clients {
			cl.target = b.targets[i%len(b.targets)]
		}
		if err := g.connect(ctx, b.o.Ramp); err != nil {
			return err
		}
		crowds = append(crowds, g)
	}
	b.drop(nil)
	for i, p := range payloadSteps(b.o) {
		s, err := newShape(p.shape, p.size)
		if err != nil {
			return err
		}
		row, err := b.oneAtATime(ctx, i+1, p.name, crowds, rounds, s, func(r *Row) {
			if r.Delivered > 0 {
				r.add("bytes around a payload", r.FrameBytes-float64(p.size), "B")
			}
		})
		if err != nil {
			return err
		}
		if over, ok := row.Get("bytes around a payload"); ok && p.shape == "turbo" {
			b.res.check("Turbo Stream: bytes around a payload", over, 150, "B")
		}
	}
	return ctx.Err()
}
