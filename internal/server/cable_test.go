package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// TestB125_Subprotocols: every order of what a client may offer ends with one
// name echoed, the best of those offered; what nobody knows is refused once
// and for all.
func TestB125_Subprotocols(t *testing.T) {
	s := newStack(t, nil)
	known := []string{protocol.SubprotocolChronocast, protocol.SubprotocolExtended, protocol.SubprotocolPlain}
	all := append([]string{"actioncable-unsupported", "graphql-ws"}, known...)
	offers := [][]string{nil}
	for range 3 {
		for _, o := range offers {
			for _, p := range all {
				offers = append(offers, append(append([]string(nil), o...), p))
			}
		}
		if len(offers) > 300 {
			break
		}
	}
	seen := make(map[string]bool)
	for _, offer := range offers {
		if key := strings.Join(offer, ","); seen[key] {
			continue
		} else {
			seen[key] = true
		}
		want := ""
		for i := len(known) - 1; i >= 0; i-- {
			for _, o := range offer {
				if o == known[i] {
					want = known[i]
				}
			}
		}
		d := websocket.Dialer{Subprotocols: offer}
		ws, resp, err := d.Dial("ws://"+s.addr+"/cable", nil)
		if len(offer) > 0 && want == "" {
			if err == nil || resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%q: %v, want a refusal", offer, err)
			}
			body, _ := io.ReadAll(resp.Body)
			if !bytes.Contains(body, []byte("unsupported_subprotocol")) {
				t.Errorf("%q: %s", offer, body)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%q: %v", offer, err)
		}
		if echoed := resp.Header.Values("Sec-WebSocket-Protocol"); len(echoed) > 1 || ws.Subprotocol() != want || (want == "") != (len(echoed) == 0) {
			t.Errorf("%q: echoed %q, want %q", offer, echoed, want)
		}
		ws.Close()
	}
}

// TestCable_NoCompression: offering it changes nothing.
func TestCable_NoCompression(t *testing.T) {
	s := newStack(t, nil)
	d := websocket.Dialer{EnableCompression: true}
	ws, resp, err := d.Dial("ws://"+s.addr+"/cable", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	if ext := resp.Header.Get("Sec-WebSocket-Extensions"); ext != "" {
		t.Errorf("extensions %q", ext)
	}
	if _, f, err := ws.ReadMessage(); err != nil || !bytes.HasPrefix(f, []byte(`{"type":"welcome","sid":"`)) {
		t.Errorf("%s, %v", f, err)
	}
}

// TestCable_BadHandshakes: a defined answer to each.
func TestCable_BadHandshakes(t *testing.T) {
	s := newStack(t, nil)
	good := map[string]string{"Connection": "keep-alive, Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg=="}
	for name, value := range map[string]string{"Connection": "close", "Upgrade": "h2c", "Sec-WebSocket-Version": "8", "Sec-WebSocket-Key": "short"} {
		var header []string
		for n, v := range good {
			if n == name {
				v = value
			}
			header = append(header, n, v)
		}
		a := s.do("GET", "/cable", "", header...)
		if a.status != 400 && a.status != 426 || !strings.HasPrefix(a.body, `{"error":"`) {
			t.Errorf("%s %q: %d %s", name, value, a.status, a.body)
		}
	}
}

// TestB17_UnsubscribeSubscribePairs: B19 as well, both commands in one TCP
// segment, a thousand times. Every subscribe is answered and the end is one
// subscription.
func TestB17_UnsubscribeSubscribePairs(t *testing.T) {
	s := newStack(t, nil)
	c := s.dial(protocol.SubprotocolPlain)
	c.subscribe("a")
	const pairs = 1000
	pair := append(rawFrame(0x81, true, command("unsubscribe", "a", "")), rawFrame(0x81, true, command("subscribe", "a", ""))...)
	go func() {
		for range pairs {
			if _, err := c.ws.NetConn().Write(pair); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range pairs {
		c.confirmed()
	}
	s.publish("a", "1")
	s.publish("a", "2")
	ascending(t, 0, c.messages(2))
	if n, subs := s.srv.load(); n != 1 || subs != 1 {
		t.Errorf("%d connections, %d subscriptions", n, subs)
	}
}

// TestB22_SubscribeTwice: B25 as well, three times, in two spellings of time:
// at once and after messages.
func TestB22_SubscribeTwice(t *testing.T) {
	s := newStack(t, nil)
	s.publish("a", "1")
	c := s.dial(protocol.SubprotocolPlain)
	for range 3 {
		if at := c.subscribe("a"); at.Offset != 1 {
			t.Errorf("confirmed at %v", at)
		}
	}
	s.publish("a", "2")
	c.messages(1)
	if at := c.subscribe("a"); at.Offset != 2 {
		t.Errorf("confirmed at %v, want what was sent last", at)
	}
	s.publish("a", "3")
	ascending(t, 2, c.messages(1))
}

// TestB23_HistoryRightAfterConfirm is never refused.
func TestB23_HistoryRightAfterConfirm(t *testing.T) {
	s := newStack(t, nil)
	s.publish("a", "1")
	s.publish("a", "2")
	c := s.dial(protocol.SubprotocolExtended)
	at := protocol.Position{Epoch: s.store.Epoch(), Offset: 1}
	for range 300 {
		c.send(command("subscribe", "a", ""))
		c.send(command("history", "a", historyOf("a", at)))
		c.confirmed()
		ascending(t, 1, c.messages(1))
		if e := c.next(); e.Type != "confirm_history" {
			t.Fatalf("%+v", e)
		}
		c.send(command("unsubscribe", "a", ""))
	}
}

// TestB26_NothingOfThePast.
func TestB26_NothingOfThePast(t *testing.T) {
	s := newStack(t, nil)
	for i := range 5 {
		s.publish("a", strconv.Itoa(i+1))
	}
	for _, sub := range []string{protocol.SubprotocolPlain, protocol.SubprotocolExtended, protocol.SubprotocolChronocast} {
		c := s.dial(sub)
		at := c.subscribe("a")
		next := s.publish("a", "7")
		if at.Offset != next.Offset-1 {
			t.Errorf("%s: confirmed at %v before %v", sub, at, next)
		}
		ascending(t, at.Offset, c.messages(1))
	}
}

// TestB28_LiveOnlyBeginsAfterTheConfirm: subscribing in the middle of a storm,
// confirmed at k the first message is k+1. B44 is the other half of it.
func TestB28_LiveOnlyBeginsAfterTheConfirm(t *testing.T) {
	s := newStack(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var storm sync.WaitGroup
	for range 4 {
		storm.Go(func() {
			for ctx.Err() == nil {
				s.publish("a", `"storm"`)
			}
		})
	}
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			c := s.dial([]string{protocol.SubprotocolPlain, protocol.SubprotocolChronocast}[i%2])
			for range 12 {
				at := c.subscribe("a")
				ascending(t, at.Offset, c.messages(3))
				c.send(command("unsubscribe", "a", ""))
				// What was under way before the unsubscribe still comes.
				c.send(command("subscribe", "b"+strconv.Itoa(i), ""))
				for {
					if e := c.events()[0]; e.Type != "message" {
						break
					}
				}
				c.send(command("unsubscribe", "b"+strconv.Itoa(i), ""))
			}
		})
	}
	clients.Wait()
	cancel()
	storm.Wait()
}

// TestB44_PublishRightAfterTheConfirm is received, every time.
func TestB44_PublishRightAfterTheConfirm(t *testing.T) {
	s := newStack(t, nil)
	c := s.dial(protocol.SubprotocolExtended)
	for i := range 200 {
		stream := fmt.Sprintf("s%d", i)
		c.subscribe(stream)
		s.publish(stream, "1")
		if e := c.next(); e.Stream != stream || e.Position.Offset != 1 {
			t.Fatalf("stream %s: %+v", stream, e)
		}
	}
}

// TestB46_HistoryWhereNoneIsKept: refused in words on the extended protocol, a
// reset on ours, and live afterwards.
func TestB46_HistoryWhereNoneIsKept(t *testing.T) {
	s := newStack(t, nil)
	old := protocol.Position{Epoch: 1, Offset: 1}
	s.publish("a", "1")
	for sub, word := range map[string]string{protocol.SubprotocolExtended: "reject_history", protocol.SubprotocolChronocast: "reset"} {
		c := s.dial(sub)
		c.send(command("subscribe", "a", historyOf("a", old)))
		at := c.confirmed()
		if e := c.next(); e.Type != word || e.Reason != "epoch_changed" || e.Position != at {
			t.Errorf("%s: %+v, want %s at %v", sub, e, word, at)
		}
		s.publish("a", "2")
		ascending(t, at.Offset, c.messages(1))
	}
}

// TestB02_StalledReaderHoldsUpNobody: B127 as well. One client stops reading
// under a flood on all streams; the others get everything, in order.
func TestB02_StalledReaderHoldsUpNobody(t *testing.T) {
	s := newStack(t, func(o *Options) { o.QueueBytes, o.WriteStall = 64<<10, time.Second })
	const streams, each = 12, 40
	stalled := s.dial(protocol.SubprotocolPlain)
	if err := stalled.ws.NetConn().(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	clients := make([]*cable, streams)
	for i := range clients {
		clients[i] = s.dial(protocol.SubprotocolPlain)
		clients[i].subscribe(fmt.Sprint("s", i))
		stalled.subscribe(fmt.Sprint("s", i))
	}
	data := `"` + strings.Repeat("x", 8<<10) + `"`
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			for range each {
				s.publish(fmt.Sprint("s", i), data)
			}
		})
		wg.Go(func() { ascending(t, 0, c.messages(each)) })
	}
	wg.Wait()
	eventually(t, "the stalled client is cut", func() bool { return s.srv.Connections() == streams })
	if m := s.do("GET", "/metrics", "").body; !strings.Contains(m, `chronocast_connections_cut_total{reason="too_slow"} 1`) {
		t.Errorf("the cut is not counted:\n%s", m)
	}
	s.publish("s0", "1")
	ascending(t, each, clients[0].messages(1))
}

// TestB130_BurstToAHealthyClient: ten thousand small messages, in a frame or
// one by one, and it stays connected.
func TestB130_BurstToAHealthyClient(t *testing.T) {
	s := newStack(t, func(o *Options) { o.QueueBytes = 64 << 10 })
	const n = 10_000
	var clients []*cable
	for _, sub := range []string{protocol.SubprotocolPlain, protocol.SubprotocolChronocast} {
		c := s.dial(sub)
		c.subscribe("a")
		clients = append(clients, c)
	}
	items := make([]string, 1000)
	for i := range items {
		items[i] = `{"stream":"a","data":"\"token\""}`
	}
	body := "[" + strings.Join(items, ",") + "]"
	var wg sync.WaitGroup
	wg.Go(func() {
		for range n / len(items) {
			if a := s.do("POST", "/broadcast", body); a.status != 201 {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
	})
	for _, c := range clients {
		wg.Go(func() { ascending(t, 0, c.messages(n)) })
	}
	wg.Wait()
	if s.srv.Connections() != 2 {
		t.Error("a healthy client was cut")
	}
}

// TestB94_LargerThanTheQueue: a message larger than what may wait for a client
// is delivered all the same, and a replay larger than it comes in pieces.
func TestB94_LargerThanTheQueue(t *testing.T) {
	s := newStack(t, func(o *Options) { o.QueueBytes = 32 << 10 })
	large := `"` + strings.Repeat("x", 300<<10) + `"`
	for range 5 {
		s.publish("a", large)
	}
	for _, sub := range []string{protocol.SubprotocolExtended, protocol.SubprotocolChronocast} {
		c := s.dial(sub)
		c.send(command("subscribe", "a", historyOf("a", protocol.Position{Epoch: s.store.Epoch()})))
		at := c.confirmed()
		ascending(t, 0, c.messages(int(at.Offset)))
		if e := c.next(); e.Type != "confirm_history" {
			t.Fatalf("%s: %+v", sub, e)
		}
		s.publish("a", large)
		got := c.messages(1)
		ascending(t, at.Offset, got)
		if got[0].Data != large {
			t.Errorf("%s: %d bytes", sub, len(got[0].Data))
		}
	}
	if s.srv.Connections() != 2 {
		t.Error("a client was cut")
	}
}

// TestB32_PositionsNeverIssued: on the socket, an answer in words and a
// subscription that is live afterwards.
func TestB32_PositionsNeverIssued(t *testing.T) {
	s := newStack(t, nil)
	s.publish("a", "1")
	epoch := s.store.Epoch().String()
	tests := []struct{ epoch, offset, answer, reason string }{
		{`"1"`, `1`, "reset", "epoch_changed"},
		{`"nonsense"`, `1`, "reset", "epoch_changed"},
		{`"` + epoch + `"`, `500`, "reset", "ahead"},
		{`"` + epoch + `"`, `9007199254740991`, "reset", "ahead"},
		{`"` + epoch + `"`, `9007199254740992`, "error", "malformed"},
		{`"` + epoch + `"`, `-1`, "error", "malformed"},
		{`"` + epoch + `"`, `"1"`, "error", "malformed"},
		{`7`, `1`, "error", "malformed"},
		{`null`, `1`, "error", "malformed"},
	}
	c := s.dial(protocol.SubprotocolChronocast)
	last := c.subscribe("a").Offset
	for _, tt := range tests {
		c.send(command("history", "a", fmt.Sprintf(`,"history":{"streams":{"a":{"epoch":%s,"offset":%s}}}`, tt.epoch, tt.offset)))
		if e := c.next(); e.Type != tt.answer || e.Reason != tt.reason {
			t.Errorf("%s:%s: %+v, want %s %s", tt.epoch, tt.offset, e, tt.answer, tt.reason)
		}
		s.publish("a", "2")
		ascending(t, last, c.messages(1))
		last++
	}
}

// TestB134_ConnectAndAbort: whatever way connections end, none stays counted,
// and no goroutine stays behind.
func TestB134_ConnectAndAbort(t *testing.T) {
	s := newStack(t, nil)
	s.publish("a", "1")
	ways := map[string]func(c *cable){
		"close frame": func(c *cable) {
			_ = c.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(time.Second))
			c.closeCodeOf()
			c.ws.Close()
		},
		"FIN": func(c *cable) { c.ws.Close() },
		"RST": func(c *cable) {
			_ = c.ws.NetConn().(*net.TCPConn).SetLinger(0)
			c.ws.Close()
		},
		"half closed": func(c *cable) {
			_ = c.ws.NetConn().(*net.TCPConn).CloseWrite()
			c.ws.Close()
		},
		"in mid-frame": func(c *cable) {
			_, _ = c.ws.NetConn().Write(rawFrame(0x81, true, command("subscribe", "b", ""))[:20])
			c.ws.Close()
		},
		"right after a command": func(c *cable) {
			c.send(command("subscribe", "c", historyOf("c", protocol.Position{Epoch: 1, Offset: 1})))
			c.ws.Close()
		},
	}
	cycle := func() {
		for name, way := range ways {
			c := s.dial(protocol.SubprotocolExtended)
			c.subscribe("a")
			way(c)
			_ = name
		}
		// And before there is a WebSocket.
		for _, part := range []string{"", "GET /cable HTTP/1.1\r\nHost: localhost\r\n", "GET /cable HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"} {
			nc, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = nc.Write([]byte(part))
			nc.Close()
		}
	}
	gone := func() {
		eventually(t, "no connection is left", func() bool {
			conns, subs := s.srv.load()
			return conns == 0 && subs == 0 && s.hub.Stats().Subscriptions == 0
		})
	}
	cycle()
	gone()
	s.client.CloseIdleConnections()
	before := runtime.NumGoroutine()
	for range 40 {
		cycle()
	}
	gone()
	eventually(t, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= before })
	// The last of the aborted handshakes may still be on its way to the server.
	eventually(t, "the gauge is back at 0", func() bool {
		return strings.Contains(s.do("GET", "/metrics", "").body, "\nchronocast_connections 0\n")
	})
}

// TestB79_StopUnderLoad: what was acknowledged is in the log, every client is
// told to come back, nothing is answered with a broken connection, and the
// server is gone in time.
func TestB79_StopUnderLoad(t *testing.T) {
	s := newStack(t, nil)
	var clients []*cable
	for i := range 20 {
		c := s.dial([]string{protocol.SubprotocolPlain, protocol.SubprotocolChronocast}[i%2])
		c.subscribe("a")
		clients = append(clients, c)
	}
	var mu sync.Mutex
	acknowledged := uint64(0)
	running := make(chan struct{}, 8)
	var publishers sync.WaitGroup
	for range 8 {
		publishers.Go(func() {
			for n := 0; ; n++ {
				r, err := http.NewRequest("POST", "http://"+s.addr+"/streams/a/messages", strings.NewReader("1"))
				if err != nil {
					t.Error(err)
					return
				}
				w, err := s.client.Do(r)
				if err != nil {
					return // the listener is closed
				}
				body, err := io.ReadAll(w.Body)
				w.Body.Close()
				if err != nil {
					t.Errorf("an answer was cut off: %v", err)
				}
				if w.StatusCode == http.StatusCreated {
					mu.Lock()
					acknowledged = max(acknowledged, positionOf(t, string(body)).Offset)
					mu.Unlock()
				}
				if n == 3 {
					running <- struct{}{}
				}
			}
		})
	}
	for range 8 {
		<-running
	}
	var readers sync.WaitGroup
	for _, c := range clients {
		readers.Go(func() {
			told := false
			next := uint64(1)
			for {
				f, err := c.read()
				var closed *websocket.CloseError
				if errors.As(err, &closed) {
					if closed.Code != websocket.CloseServiceRestart || !told {
						t.Errorf("close code %d, told before: %t", closed.Code, told)
					}
					return
				}
				if err != nil {
					t.Errorf("connection broke: %v", err)
					return
				}
				events, err := hubtest.Decode(f)
				if err != nil {
					t.Error(err)
					return
				}
				for _, e := range events {
					switch e.Type {
					case "message":
						if e.Position.Offset != next {
							t.Errorf("offset %d where %d is due", e.Position.Offset, next)
							return
						}
						next++
					case "disconnect":
						told = string(f) == `{"type":"disconnect","reason":"server_restart","reconnect":true}`
					}
				}
			}
		})
	}
	began := time.Now()
	s.stopServer()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("stopping took %v", d)
	}
	readers.Wait()
	publishers.Wait()
	if last := s.last("a"); last < acknowledged {
		t.Errorf("acknowledged %d, stored %d", acknowledged, last)
	}
	if _, err := net.Dial("tcp", s.addr); err == nil {
		t.Error("the listener is still open")
	}
}

// TestServer_StopWithIdleAndHalfRequests: connections that have sent nothing,
// or half of a request, do not hold the stop up.
func TestServer_StopWithIdleAndHalfRequests(t *testing.T) {
	s := newStack(t, func(o *Options) { o.ShutdownTimeout = 500 * time.Millisecond })
	for _, part := range []string{"", "POST /streams/a/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf"} {
		nc, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	s.stopServer()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("stopping took %v", d)
	}
}
