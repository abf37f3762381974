package load

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

var rateSteps = []float64{1, 10, 100, 1000, 2000, 5000, 10_000}

// rates has one user publish to itself. When the server is ours, or says so by
// confirming, commands go up the socket as fast as messages come down.
func rates(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 100)
	if err != nil {
		return err
	}
	lasts := cmp.Or(b.o.For, 5*time.Second)
	b.begin(1, "connecting", 1, 0)
	g := b.newCrowd(1, func(int) string { return "rate" })
	err = g.connect(ctx, 0)
	b.drop(err)
	if err != nil {
		return err
	}
	cl := g.clients[0]
	var answers atomic.Int64
	cl.loop.do(func() {
		cl.control = func(_ *client, f *wireFrame) {
			if f.Type == "confirm_subscription" {
				answers.Add(1)
			}
		}
	})
	for i, rate := range or(b.o.Rates, rateSteps...) {
		var commands int64
		var up sync.WaitGroup
		answered := answers.Load()
		if len(b.pubs) > 0 {
			up.Go(func() {
				pace(ctx, rate, lasts, func(int, time.Time) {
					commands++
					cl.loop.post(func() {
						if cl.state == clientLive {
							cl.subscribe()
						}
					})
				})
			})
		}
		row, err := b.talk(ctx, i+1, fmt.Sprintf("%g/s", rate), g, rate, lasts, s, func(r *Row, _ []*voice) {
			up.Wait()
			lookFor(ctx, 5*time.Second, func() bool { return answers.Load()-answered >= commands })
			r.add("commands sent", float64(commands), "")
			r.add("commands answered", float64(answers.Load()-answered), "")
		})
		up.Wait()
		if err != nil {
			return err
		}
		if g.failed.Load() > 0 {
			b.note("the connection ended at %g messages a second", rate)
			return nil
		}
		if rate >= 10_000 {
			b.res.check("rate of 10,000/s both ways: lost", float64(row.Lost), 0, "")
		}
	}
	return ctx.Err()
}

// tokens has answers written at 50 to 200 tokens a second, each with readers of
// its own who reload.
func tokens(ctx context.Context, b *bench) error {
	s, err := b.shapeOr("text", 24)
	if err != nil {
		return err
	}
	answers, readers := or(b.o.Clients, defaultAnswers)[0], cmp.Or(b.o.Readers, 3)
	lasts := cmp.Or(b.o.For, 20*time.Second)
	low, high := 50.0, 200.0
	if len(b.o.Rates) > 0 {
		low, high = b.o.Rates[0], b.o.Rates[len(b.o.Rates)-1]
	}
	resumes := b.o.Protocol != "actioncable-v1-json"
	b.setting("answers", answers)
	b.setting("readers of each", readers)
	b.setting("tokens a second", fmt.Sprintf("%g to %g", low, high))
	b.setting("readers resume", resumes)
	if !resumes {
		b.note("clients of %s cannot resume: what is written while they reload counts as lost", b.o.Protocol)
	}
	b.begin(1, "connecting", answers*readers, 0)
	var crowds []*crowd
	var voices [][]*voice
	var speaking []*crowd
	for i := range answers {
		name := fmt.Sprintf("answer/%d", i)
		g := b.newCrowd(readers, func(int) string { return name })
		for _, cl := range g.clients {
			cl.target = b.targets[i%len(b.targets)]
			cl.place, cl.resume = true, resumes
		}
		if err := g.connect(ctx, 0); err != nil {
			return err
		}
		v, speakers, err := b.voices(ctx, 1, name, i%len(b.targets))
		if err != nil {
			return err
		}
		if speakers != nil {
			speaking = append(speaking, speakers)
		}
		g.watch(v)
		crowds, voices = append(crowds, g), append(voices, v)
	}
	b.drop(nil)
	b.begin(1, fmt.Sprintf("%d answers, %d readers each", answers, readers), answers*readers, lasts)
	var reloads atomic.Int64
	until := time.Now().Add(lasts - min(2*time.Second, lasts/4))
	for _, g := range crowds {
		g.each(func(cl *client) { reload(cl, until, lasts, &reloads) })
	}
	var writing sync.WaitGroup
	for _, v := range voices {
		rate := low + rand.Float64()*(high-low)
		writing.Go(func() { pace(ctx, rate, lasts, func(_ int, due time.Time) { b.say(v[0], due, s, nil) }) })
	}
	writing.Wait()
	lookFor(ctx, b.o.Timeout, func() bool {
		back := true
		for _, g := range crowds {
			g.each(func(cl *client) { back = back && (cl.state == clientLive || cl.state == clientOver) })
		}
		return back
	})
	for i, g := range crowds {
		g.settle(ctx, voices[i])
	}
	b.end(func(r *Row) {
		for i, g := range crowds {
			r.Lost += g.lost(voices[i])
			if len(b.pubs) == 0 {
				r.Published += uint64(voices[i][0].sent())
			}
		}
		r.add("reloads", float64(reloads.Load()), "")
		r.add("tokens written", float64(r.Published), "")
	})
	for _, g := range append(crowds, speaking...) {
		g.leave()
	}
	return ctx.Err()
}

// reload has a client leave and come back, now and then.
func reload(cl *client, until time.Time, lasts time.Duration, count *atomic.Int64) {
	var later func()
	first := true
	later = func() {
		mean := min(5*time.Second, lasts/3)
		wait := time.Duration(rand.ExpFloat64() * float64(mean))
		if time.Now().Add(wait + time.Second).After(until) {
			return
		}
		cl.loop.after(wait, func() {
			if cl.state != clientLive {
				return
			}
			count.Add(1)
			cl.stop()
			cl.loop.after(50*time.Millisecond+rand.N(250*time.Millisecond), func() {
				if err := cl.start(); err != nil {
					cl.loop.tally.fail(err)
				}
			})
		})
	}
	cl.live = func(*client) {
		if !first {
			later()
		}
		first = false
	}
	first = false
	later()
}
