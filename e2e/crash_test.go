package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// ours starts the bundled client with one handle per stream, named as the
// stream.
func ours(t testing.TB, url, after string, streams ...string) *node {
	t.Helper()
	n := startNode(t, "ours.mjs")
	n.do("client", map[string]any{"url": url, "minDelay": 20, "maxDelay": 300})
	for _, s := range streams {
		n.do("stream", map[string]any{"id": s, "name": s, "after": after, "quiet": true})
	}
	return n
}

// liveHandle waits until a handle that is not quiet says it is live.
func (n *node) live(id string, within time.Duration) {
	n.t.Helper()
	n.waitFor(within, "state", id, func(e event) bool {
		var s struct{ State string }
		e.into(&s)
		return s.State == "live"
	})
}

// I4: 60 times kill -9 under 32 publishers. No acknowledged message is lost,
// offsets stay contiguous, the epoch is kept, and subscribers that live through
// all of it see everything once and in order.
func TestI4_60KillsLoseNothingAcknowledged(t *testing.T) {
	const publishers = 32
	kills := 60
	streams := []string{"kill/a", "kill/b", "kill/c"}
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	epochs := map[string]string{}
	for _, name := range streams {
		epochs[name] = p.must(name, `{"first":true}`).Epoch
	}
	cl := ours(t, s.ws(), "start", streams...)
	stock := startNode(t, "anycable.mjs")
	stock.do("connect", map[string]any{"url": s.ws(), "reconnect": 40})
	stock.do("subscribe", map[string]any{"id": "kill/a", "name": "kill/a"})
	stock.subscribed("kill/a", 10*time.Second)
	p.must("kill/a", `{"second":true}`)
	stock.awaitCount("kill/a", 1, 10*time.Second)
	stockFrom := stock.messages("kill/a")[0].Offset - 1

	ctx, stop := context.WithCancel(context.Background())
	publishing := make(chan error, 1)
	go func() {
		publishing <- p.pool(ctx, publishers, 0, func(w, i int) (string, string) {
			return streams[w%len(streams)], fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
		})
	}()
	for range kills {
		before := p.ledger.total()
		pause(time.Duration(rand.IntN(80)) * time.Millisecond)
		eventually(t, 20*time.Second, "publishing goes on", func() bool { return p.ledger.total() >= before+60 })
		stock.subscribed("kill/a", 20*time.Second)
		s.kill()
		s.start()
	}
	stop()
	if err := <-publishing; err != nil {
		t.Fatal(err)
	}
	delivered := 0
	for _, name := range streams {
		p.must(name, `{"last":true}`)
		log := s.log(name)
		if got := log[0].Epoch; got != epochs[name] {
			t.Errorf("%s: the epoch was %s and is %s after kill -9", name, epochs[name], got)
		}
		last := log[len(log)-1].Offset
		cl.awaitLast(name, last, 30*time.Second)
		v := judge(log, true).acknowledged(p.ledger.of(name)).delivered("bundled client "+name, cl.messages(name), 0, true)
		if name == "kill/a" {
			stock.awaitLast(name, last, 30*time.Second)
			v.delivered("@anycable/core", stock.messages(name), stockFrom, true)
		}
		v.report(t)
		delivered += len(cl.messages(name))
	}
	if !t.Failed() {
		throughOurClient.Add(int64(delivered))
	}
	if resets := cl.all("reset", ""); len(resets) != 0 {
		t.Errorf("%d resets although every epoch was kept: %s", len(resets), resets[0].raw)
	}
	figure(t, "%d x kill -9 under %d publishers: %d acknowledged, all there, contiguous, epoch kept; %d of %d requests were retries; %d messages through our client",
		kills, publishers, p.ledger.total(), p.tries.Load()-int64(p.ledger.total()), p.tries.Load(), delivered)
}

// B79, B35: deploys by SIGTERM under load. Everyone is told to come back, the
// process ends cleanly before its deadline, and nothing is lost, doubled or
// replayed that was seen before.
func TestB79_B35_DeploysLoseAndRepeatNothing(t *testing.T) {
	s := newServer(t, keepAll...)
	p := newPublisher(t, s.url(""))
	at := p.must("deploy", `{"n":0}`)
	cl := ours(t, s.ws(), "start", "deploy")
	stock := startNode(t, "anycable.mjs")
	stock.do("connect", map[string]any{"url": s.ws(), "reconnect": 40})
	stock.do("subscribe", map[string]any{"id": "deploy", "name": "deploy"})
	stock.subscribed("deploy", 10*time.Second)

	ctx, stop := context.WithCancel(context.Background())
	publishing := make(chan error, 1)
	go func() {
		publishing <- p.pool(ctx, 8, 0, func(w, i int) (string, string) {
			return "deploy", fmt.Sprintf(`{"p":%d,"n":%d}`, w, i+1)
		})
	}()
	rounds := scale(12, 60)
	var slowest time.Duration
	for round := range rounds {
		before := p.ledger.total()
		var socks []*socket
		for _, proto := range subprotocols {
			sock := dial(t, s.ws(), proto)
			sock.subscribe("deploy")
			sock.awaitMessages(2, 10*time.Second)
			socks = append(socks, sock)
		}
		eventually(t, 20*time.Second, "publishing goes on", func() bool { return p.ledger.total() >= before+150 })
		stock.subscribed("deploy", 20*time.Second)
		took, code := s.terminate(12 * time.Second)
		slowest = max(slowest, took)
		if code != 0 {
			t.Errorf("round %d: exit code %d", round, code)
		}
		for _, sock := range socks {
			if got := sock.awaitClose(5 * time.Second); got != 1012 {
				t.Errorf("round %d: %s: close code %d, want 1012 (%v)", round, sock.proto, got, sock.err)
			}
			f := sock.next(time.Second, "disconnect")
			if f.Reason != "server_restart" || f.Reconnect == nil || !*f.Reconnect {
				t.Errorf("round %d: %s: told %s", round, sock.proto, f.raw)
			}
			if got := sock.messages("deploy"); inversions(got) != 0 {
				t.Errorf("round %d: %s: %d inversions", round, sock.proto, inversions(got))
			}
		}
		s.start()
	}
	stop()
	if err := <-publishing; err != nil {
		t.Fatal(err)
	}
	p.must("deploy", `{"last":true}`)
	log := s.log("deploy")
	last := log[len(log)-1].Offset
	cl.awaitLast("deploy", last, 30*time.Second)
	stock.awaitLast("deploy", last, 30*time.Second)
	stockGot := stock.messages("deploy")
	judge(log, true).acknowledged(p.ledger.of("deploy")).
		delivered("bundled client", cl.messages("deploy"), 0, true).
		delivered("@anycable/core", stockGot, stockGot[0].Offset-1, true).report(t)
	if log[0].Epoch != at.Epoch {
		t.Errorf("a deploy changed the epoch from %s to %s", at.Epoch, log[0].Epoch)
	}
	if !t.Failed() {
		throughOurClient.Add(int64(len(log)))
	}
	figure(t, "%d deploys by SIGTERM under load: %d messages, exact; the slowest stop took %v", rounds, len(log), slowest.Round(time.Millisecond))
}

// B71: kill -9, start again after 3 s; the client goes on without any code of
// the application.
func TestB71_AServerThatComesBackAfter3sIsFoundAgain(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	p.numbered("hard", 5)
	cl := ours(t, s.ws(), "start", "hard")
	cl.awaitCount("hard", 5, 10*time.Second)
	s.kill()
	pause(3 * time.Second)
	s.start()
	p.numbered("hard", 5)
	cl.awaitCount("hard", 10, 10*time.Second)
	judge(s.log("hard"), false).delivered("bundled client", cl.messages("hard"), 0, true).report(t)
}

// B85, B89: keyed publishes while half of the replies are cut on the way and
// the server is killed again and again: 0 lost, 0 doubled.
func TestB85_B89_HalfTheRepliesCutAndKillsLoseAndDoubleNothing(t *testing.T) {
	s := newServer(t, keepAll...)
	px := newProxy(t, s.addr)
	var replies, cut atomic.Int64
	px.set(func(p *proxy) {
		p.lose = func() bool {
			replies.Add(1)
			if rand.IntN(2) == 0 {
				cut.Add(1)
				return true
			}
			return false
		}
	})
	p := newPublisher(t, px.url(""))
	const workers = 32
	each, kills := scale(100, 1600), scale(8, 20)
	done := make(chan error, 1)
	go func() {
		done <- p.pool(context.Background(), workers, each, func(w, i int) (string, string) {
			return fmt.Sprintf("keyed/%d", w%4), fmt.Sprintf(`{"p":%d,"n":%d}`, w, i)
		})
	}()
	step := workers * each / (kills + 1)
	for k := range kills {
		eventually(t, 60*time.Second, "publishing goes on", func() bool { return p.ledger.total() >= (k+1)*step })
		s.kill()
		s.start()
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	stored := 0
	for i := range 4 {
		name := fmt.Sprintf("keyed/%d", i)
		log := s.log(name)
		stored += len(log)
		judge(log, true).acknowledged(p.ledger.of(name)).report(t)
	}
	if stored != workers*each {
		t.Errorf("%d stored, %d published", stored, workers*each)
	}
	figure(t, "%d keyed publishes, %d of %d replies cut, %d kills, %d requests, %d answered as repeats: %d stored, 0 lost, 0 doubled",
		workers*each, cut.Load(), replies.Load(), kills, p.tries.Load(), p.repeat.Load(), stored)
}

// B43: an action whose acknowledgement is cut off is sent again: one effect,
// the first place. B53: the repeat leaves the head alone, and no subscriber sees
// a hole. Another body under the key is a conflict.
func TestB43_B53_ARepeatedKeyHasOneEffect(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	px := newProxy(t, s.addr)
	direct, cutOff := newPublisher(t, s.url("")), newPublisher(t, px.url(""))
	cl := ours(t, s.ws(), "start", "action")
	sock := dial(t, s.ws(), extended)
	sock.subscribe("action")
	var n atomic.Int64
	px.set(func(p *proxy) { p.lose = func() bool { return n.Add(1) == 1 } })
	first, err := cutOff.sendKeyed(t.Context(), "action", "order-7", `{"n":1}`)
	if err != nil {
		t.Fatal(err)
	}
	if cutOff.repeat.Load() != 1 {
		t.Errorf("the retry was not answered as a repeat")
	}
	for range 5 {
		a, err := direct.once(t.Context(), "action", "order-7", "application/json", []byte(`{"n":1}`))
		if err != nil || a.status != http.StatusOK || a.place != first {
			t.Errorf("repeat: %d %v %v, want 200 %v", a.status, a.place, err, first)
		}
	}
	if a, err := direct.once(t.Context(), "action", "order-7", "application/json", []byte(`{"n":2}`)); err != nil || a.status != http.StatusConflict {
		t.Errorf("another body under the key: %d %v, want 409", a.status, err)
	}
	if h := s.head("action"); h.Last != first.Offset {
		t.Errorf("the head moved to %d", h.Last)
	}
	next := direct.must("action", `{"n":2}`)
	if next.Offset != first.Offset+1 {
		t.Errorf("the next message stands at %v after %v", next, first)
	}
	cl.awaitLast("action", next.Offset, 10*time.Second)
	sock.awaitOffset("action", next.Offset, 10*time.Second)
	judge(s.log("action"), true).delivered("bundled client", cl.messages("action"), 0, true).
		delivered(sock.name, sock.messages("action"), 0, true).report(t)
	if gaps := cl.all("gap", ""); len(gaps) != 0 {
		t.Errorf("the client saw a gap: %s", gaps[0].raw)
	}
}

// B86: no key, twice: both stored; an empty or blank key is refused rather than
// shared; one key on two streams: both stored.
func TestB86_AnAbsentKeyNeverMakesDuplicates(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	post := func(stream, key string, blank bool) int {
		req, _ := http.NewRequest(http.MethodPost, s.url(messagesPath(stream)), bodyOf(`{"same":1}`))
		req.Header.Set("Content-Type", "application/json")
		if key != "" || blank {
			req.Header["Idempotency-Key"] = []string{key}
		}
		resp, err := p.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, c := range []struct {
		stream, key string
		blank       bool
		want        int
	}{{"nokey", "", false, 201}, {"nokey", "", false, 201}, {"nokey", "", true, 422}, {"nokey", "   ", true, 422},
		{"one", "k", false, 201}, {"two", "k", false, 201}, {"one", "k", false, 200}} {
		if got := post(c.stream, c.key, c.blank); got != c.want {
			t.Errorf("%s with key %q: %d, want %d", c.stream, c.key, got, c.want)
		}
	}
	if a, b, c := s.head("nokey").Last, s.head("one").Last, s.head("two").Last; a != 2 || b != 1 || c != 1 {
		t.Errorf("heads %d %d %d, want 2 1 1", a, b, c)
	}
}
