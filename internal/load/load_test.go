package load

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// engines runs a test with each of the two pollers.
func engines(t *testing.T, f func(t *testing.T, o Options)) {
	for name, portable := range map[string]bool{"system": false, "portable": true} {
		t.Run(name, func(t *testing.T) { f(t, Options{Goroutines: portable, Timeout: 10 * time.Second}) })
	}
}

func mustRun(t *testing.T, o Options) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	r, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// faults is the fate of the messages of a lecture: of each ten one is lost, one
// doubled and one comes after its successor.
func faults(stream string, n int) fate {
	if !strings.Contains(stream, "lecture") {
		return deliver
	}
	return map[int]fate{3: lose, 5: double, 7: swap}[n%10]
}

func TestLecture_CountsExactlyWhatAFaultyServerDoes(t *testing.T) {
	engines(t, func(t *testing.T, o Options) {
		for _, way := range []string{PublishAPI, PublishAnyCable, PublishPerform} {
			f := newFake(t, fakeOptions{fate: faults})
			o := o
			o.Scenario, o.URL, o.Publish, o.Publishers = "lecture", f.url(), way, 1
			o.Clients, o.Rates, o.For = []int{7}, []float64{100}, 500*time.Millisecond
			r := mustRun(t, o).Rows[0]
			// 50 messages: 5 lost, 5 doubled, 5 out of order, for each of 7; who performs
			// is one more listener.
			clients := uint64(7)
			listeners := clients
			if way == PublishPerform {
				listeners++
			}
			if r.Published != 50 || r.Lost != 5*clients || r.Doubled != 5*clients || r.Inverted != 5*clients || r.Delivered != 50*listeners || r.errorCount() != 0 {
				t.Errorf("%s: %+v", way, r)
			}
		}
	})
}

func TestLecture_SeveralPublishersAreNoDisorder(t *testing.T) {
	f := newFake(t, fakeOptions{})
	r := mustRun(t, Options{Scenario: "lecture", URL: f.url(), Clients: []int{3}, Rates: []float64{400}, For: 500 * time.Millisecond}).Rows[0]
	if r.Published != 200 || r.Delivered != 600 || r.Lost+r.Doubled+r.Inverted != 0 {
		t.Errorf("%+v", r)
	}
}

func TestLecture_RefusedMessagesAreNotLost(t *testing.T) {
	f := newFake(t, fakeOptions{refuse: func(n int) bool { return n > 1 && n%5 == 0 }})
	r := mustRun(t, Options{Scenario: "lecture", URL: f.url(), Clients: []int{3}, Rates: []float64{100}, For: 500 * time.Millisecond}).Rows[0]
	if r.Published != 40 || r.Refused != 10 || r.Delivered != 120 || r.Lost != 0 || len(r.Errors) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestLatency_IsNotShorterThanItWas(t *testing.T) {
	engines(t, func(t *testing.T, o Options) {
		f := newFake(t, fakeOptions{delay: 40 * time.Millisecond})
		o.Scenario, o.URL, o.Clients, o.Rounds = "rtt", f.url(), []int{5}, 6
		r := mustRun(t, o).Rows[0]
		last, _ := r.Get("p50 until the last user")
		if r.Latency.P50 < 40 || last < 40 || r.Delivered != 30 || r.Lost != 0 {
			t.Errorf("p50 %v ms, until the last %v ms, %d delivered", r.Latency.P50, last, r.Delivered)
		}
		f = newFake(t, fakeOptions{delay: 40 * time.Millisecond})
		o.Scenario, o.URL, o.Rounds = "herd", f.url(), 0
		if r := mustRun(t, o).Rows[0]; r.Latency.P50 < 40 || r.Delivered != 5 {
			t.Errorf("herd: p50 %v ms of %d", r.Latency.P50, r.Delivered)
		}
	})
}

func TestScenarios_AgainstAnyActionCableServer(t *testing.T) {
	for name, o := range map[string]Options{
		"constant": {Clients: []int{5}, Rounds: 2, For: 3 * time.Second},
		"herd":     {Clients: []int{20}},
		"rtt":      {Clients: []int{10}, Rounds: 3},
		"payload":  {Streams: 2, Clients: []int{5}, Rounds: 2},
		"rate":     {Rates: []float64{200}, For: 400 * time.Millisecond},
		"tokens":   {Clients: []int{2}, Readers: 2, Rates: []float64{50, 60}, For: time.Second},
		"hold":     {Clients: []int{30}, Ramp: 300, For: 300 * time.Millisecond},
		"storm":    {Clients: []int{20}, Rounds: 1, Rates: []float64{200}, For: 500 * time.Millisecond, Publish: PublishAPI},
		"fair":     {Clients: []int{5, 50}, Rates: []float64{50, 20}, Rounds: 1, For: 500 * time.Millisecond},
		"stuck":    {Clients: []int{20}, Rounds: 1, Rates: []float64{40}, For: time.Second, Size: 300, Shape: "text"},
		"flood":    {Clients: []int{20}, Rounds: 1, Rates: []float64{20}, For: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, fakeOptions{})
			o.Scenario, o.URL, o.Timeout, o.Child = name, f.url(), 10*time.Second, childCommand(t)
			r := mustRun(t, o)
			if len(r.Rows) == 0 {
				t.Fatal("no rows")
			}
			for _, row := range r.Rows {
				if row.Lost+row.Doubled+row.Inverted+row.Refused > 0 || row.errorCount() > 0 {
					t.Errorf("%s: %+v", row.Label, row)
				}
				if name != "hold" && row.Delivered == 0 {
					t.Errorf("%s: nothing delivered", row.Label)
				}
			}
			var text, page strings.Builder
			if err := errors.Join(r.WriteText(&text), r.WriteHTML(&page)); err != nil {
				t.Error(err)
			}
			if !strings.Contains(text.String(), r.Rows[0].Label) || !strings.Contains(page.String(), r.Rows[0].Label) {
				t.Error("a report without its first step")
			}
		})
	}
}

// childCommand starts this test binary as a worker.
func childCommand(t *testing.T) []string {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"/usr/bin/env", childVariable + "=1", self}
}

func TestHold_WorkersShareTheConnections(t *testing.T) {
	f := newFake(t, fakeOptions{})
	b := &bench{o: Options{Protocol: "actioncable-v1-json", Channel: defaultChannel, Timeout: 10 * time.Second, Child: childCommand(t)}, name: "b/test"}
	u, err := parseTarget(f.url())
	if err != nil {
		t.Fatal(err)
	}
	tgt, err := newTarget(u, b.o)
	if err != nil {
		t.Fatal(err)
	}
	b.targets = []*target{tgt}
	team, err := b.hire(t.Context(), 30, 3, 300)
	if err != nil {
		t.Fatal(err)
	}
	defer team.stop()
	if !lookFor(t.Context(), 20*time.Second, func() bool { return team.sum().Live == 30 }) {
		t.Errorf("%+v, %v", team.sum(), team.broken())
	}
	if h := team.sum(); h.Failed != 0 || h.Pings != 30 || len(h.Errors) != 0 {
		t.Errorf("%+v", h)
	}
}

// hostile runs a listener that treats every connection badly.
func hostile(t *testing.T, treat func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	g.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			g.Go(func() { treat(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		g.Wait()
	})
	return "ws://" + l.Addr().String() + "/cable"
}

func TestHostileServers_AreToldInASentence(t *testing.T) {
	swallow := func(c net.Conn) {
		buf := make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
		}
	}
	upgraded := func(frames string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: actioncable-v1-json\r\nSec-WebSocket-Accept: " + acceptKey(r.Header.Get("Sec-WebSocket-Key")) + "\r\n\r\n" + frames))
			swallow(c)
		}))
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		return "ws" + strings.TrimPrefix(s.URL, "http") + "/cable"
	}
	engines(t, func(t *testing.T, o Options) {
		o.Scenario, o.Clients, o.Timeout = "lecture", []int{2}, 300*time.Millisecond
		text := func(s string) string { return string(appendHeader(nil, len(s))) + s }
		for name, c := range map[string]struct{ url, want string }{
			"silent":            {hostile(t, swallow), "the handshake was not answered within 300ms"},
			"closes":            {hostile(t, func(c net.Conn) { c.Close() }), "c"}, // closed or reset
			"garbage":           {hostile(t, func(c net.Conn) { c.Write([]byte("\x00\x01garbage\r\n\r\n")); swallow(c) }), "did not answer in HTTP"},
			"refuses":           {hostile(t, func(c net.Conn) { c.Write([]byte("HTTP/1.1 404 Not Found\r\n\r\n")); swallow(c) }), "status 404"},
			"no welcome":        {upgraded(""), "no welcome came within 300ms"},
			"no confirmation":   {upgraded(text(`{"type":"welcome"}`)), "the subscription was not confirmed within 300ms"},
			"rejects":           {upgraded(text(`{"type":"welcome"}`) + text(`{"type":"reject_subscription","identifier":"x","reason":"unauthorized"}`)), "rejects the subscription (unauthorized)"},
			"no JSON":           {upgraded(text("hello")), "no JSON object: hello"},
			"malformed frame":   {upgraded("\xff\xff\xff\xff"), "malformed WebSocket frame"},
			"huge frame":        {upgraded("\x81\x7f\x00\x00\x7f\xff\xff\xff\xff\xff"), "more than 64 MiB"},
			"binary":            {upgraded("\x82\x01x"), "binary message"},
			"not UTF-8":         {upgraded(text("\xff")), "not UTF-8"},
			"half a frame":      {upgraded("\x81\x20{"), "no welcome came"},
			"close frame":       {upgraded("\x88\x06\x03\xf0stop"), "1008 stop"},
			"publish not found": {upgraded(text(`{"type":"welcome"}`) + text(`{"type":"confirm_subscription","identifier":"x"}`)), "publish: "},
		} {
			o.URL = c.url
			began := time.Now()
			r, err := Run(t.Context(), o)
			if err == nil || r != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, %v", name, r, err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s took %v", name, took)
			}
		}
	})
}

func TestNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	engines(t, func(t *testing.T, o Options) {
		o.Scenario, o.URL = "herd", "ws://"+l.Addr().String()
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v", err)
		}
	})
}

func TestRun_EndsInOrderWhenInterrupted(t *testing.T) {
	f := newFake(t, fakeOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	seen := 0
	r, err := Run(ctx, Options{Scenario: "lecture", URL: f.url(), Clients: []int{5}, Rates: []float64{50}, For: time.Hour, Live: func(p Progress) {
		if seen++; seen == 2 {
			cancel()
		}
	}})
	if err != nil || r == nil || !r.Interrupted || len(r.Rows) != 1 || r.Rows[0].Delivered == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	b, err := json.Marshal(r)
	if err != nil || !json.Valid(b) {
		t.Error(err)
	}
}

func TestValidate_NamesTheFlag(t *testing.T) {
	for want, o := range map[string]Options{
		`no scenario "herds"`: {Scenario: "herds"},
		"ws://":               {Scenario: "herd", URL: "ftp://x"},
		"user name":           {Scenario: "herd", URL: "ws://a:b@x/"},
		"--publish ":          {Scenario: "herd", Publish: "smtp"},
		"--publish-url":       {Scenario: "herd", PublishURL: "127.0.0.1"},
		"--channel":           {Scenario: "herd", Channel: "chat"},
		"--perform":           {Scenario: "herd", Perform: "{}"},
		"--header":            {Scenario: "herd", Headers: []string{"Cookie: a\r\nHost: b"}},
		"--clients":           {Scenario: "herd", Clients: []int{0}},
		"--rate":              {Scenario: "herd", Rates: []float64{-1}},
		"at least 18":         {Scenario: "herd", Size: 17},
		"--rounds":            {Scenario: "herd", Rounds: -1},
		"--for":               {Scenario: "herd", For: -1},
		"one line":            {Scenario: "herd", Key: "a\nb"},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
