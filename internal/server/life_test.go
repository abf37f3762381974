package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

// TestB140_NothingIsDeliveredAfterTheTokenIsOver: on every level, while
// messages come ten times a second.
func TestB140_NothingIsDeliveredAfterTheTokenIsOver(t *testing.T) {
	s := newStack(t, secured(t, nil))
	exp := time.Now().Add(time.Second).Truncate(time.Second)
	key := []string{"Authorization", "Bearer " + publishKey.Reveal()}
	var clients []*cable
	for _, level := range levels {
		ws, _ := s.connect(level, "?token="+goodToken(t, "exp", exp.Unix(), "streams", []string{"a"}))
		if got := ws.subscribeTo(identifier("a")); !strings.Contains(got, `"confirm_subscription"`) {
			t.Fatal(got)
		}
		clients = append(clients, ws)
	}
	stop := make(chan struct{})
	var publishing sync.WaitGroup
	publishing.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.publish("a", "1", key...)
			case <-stop:
				return
			}
		}
	})
	for i, ws := range clients {
		delivered := 0
		for {
			f := string(ws.raw())
			if strings.Contains(f, `"disconnect"`) {
				if !strings.Contains(f, `"reason":"token_expired"`) || !strings.Contains(f, `"reconnect":true`) {
					t.Errorf("%s: %s", levels[i], f)
				}
				break
			}
			delivered++
			if time.Now().After(exp.Add(5 * time.Second)) {
				t.Fatalf("%s: a message %v after the token was over", levels[i], time.Since(exp))
			}
		}
		if code := ws.closeCodeOf(); code != websocket.ClosePolicyViolation {
			t.Errorf("%s: closed with %d", levels[i], code)
		}
		if delivered == 0 {
			t.Errorf("%s: nothing was delivered while the token was good", levels[i])
		}
	}
	close(stop)
	publishing.Wait()
	if after := time.Since(exp); after > 5*time.Second {
		t.Errorf("the connections lived for %v after their tokens", after)
	}
}

// TestCable_WhereATokenMayStand.
func TestCable_WhereATokenMayStand(t *testing.T) {
	s := newStack(t, secured(t, nil))
	token := goodToken(t, "streams", []string{"a"})
	for name, tt := range map[string]struct {
		query  string
		header []string
	}{
		"header": {"", []string{"Authorization", "Bearer " + token}}, "AnyCable's header": {"", []string{"X-JID", token}},
		"token": {"?token=" + token, nil}, "jid": {"?jid=" + token, nil},
	} {
		ws, first := s.connect(protocol.SubprotocolExtended, tt.query, tt.header...)
		if !strings.Contains(first, `"welcome"`) {
			t.Errorf("%s: %s", name, first)
		}
		if got := ws.subscribeTo(identifier("a")); !strings.Contains(got, `"confirm_subscription"`) {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, offer := range [][]string{{protocol.SubprotocolPlain, auth.TokenSubprotocol + token}, {auth.TokenSubprotocol + token, protocol.SubprotocolPlain}} {
		d := websocket.Dialer{Subprotocols: offer}
		ws, resp, err := d.DialContext(t.Context(), "ws://"+s.addr+"/cable", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		c := &cable{t, ws}
		if first := string(c.raw()); ws.Subprotocol() != protocol.SubprotocolPlain || !strings.Contains(first, `"welcome"`) {
			t.Errorf("%q was chosen, then %s", ws.Subprotocol(), first)
		}
		if got := c.subscribeTo(identifier("a")); !strings.Contains(got, `"confirm_subscription"`) {
			t.Errorf("subprotocol: %s", got)
		}
		ws.Close()
	}
	// In the URL of anything else it is not even looked at.
	if a := s.do("GET", "/streams/a?token="+token, ""); a.status != 401 {
		t.Errorf("a token in the URL of a request: %d %s", a.status, a.body)
	}
}

// TestCable_TheFirstFrameMayCarryTheToken: where one is required.
func TestCable_TheFirstFrameMayCarryTheToken(t *testing.T) {
	s := newStack(t, secured(t, func(c *auth.Config, o *Options) { c.RequireToken = true; o.PingEvery = 64 * time.Millisecond }))
	dial := func(level string) *cable {
		d := websocket.Dialer{Subprotocols: []string{level}}
		ws, resp, err := d.DialContext(t.Context(), "ws://"+s.addr+"/cable", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		t.Cleanup(func() { ws.Close() })
		return &cable{t, ws}
	}
	say := func(token string) string { return `{"command":"token","token":"` + token + `"}` }
	ws := dial(protocol.SubprotocolChronocast)
	ws.send(say(goodToken(t, "streams", []string{"a"})))
	if f, err := ws.read(); err != nil || !strings.Contains(string(f), `"welcome"`) {
		t.Fatalf("after the token: %s, %v; a ping before the welcome?", f, err)
	}
	if got := ws.subscribeTo(identifier("a")); !strings.Contains(got, `"confirm_subscription"`) {
		t.Error(got)
	}
	ws.send(say("again"))
	if got := string(ws.raw()); !strings.Contains(got, `"error"`) || !strings.Contains(got, `"unsupported"`) {
		t.Errorf("a second token: %s", got)
	}
	for name, tt := range map[string]struct{ level, frame, reason string }{
		"a wrong token":       {protocol.SubprotocolChronocast, say("a.b.c"), "unauthorized"},
		"an old token":        {protocol.SubprotocolChronocast, say(goodToken(t, "exp", 1)), "token_expired"},
		"a subscribe":         {protocol.SubprotocolChronocast, command("subscribe", "a", ""), "unauthorized"},
		"no JSON":             {protocol.SubprotocolChronocast, "x", "unauthorized"},
		"plain, nothing":      {protocol.SubprotocolPlain, "", "unauthorized"},
		"extended, nothing":   {protocol.SubprotocolExtended, "", "unauthorized"},
		"a token of no words": {protocol.SubprotocolChronocast, `{"command":"token"}`, "unauthorized"},
	} {
		ws := dial(tt.level)
		if tt.frame != "" {
			ws.send(tt.frame)
		}
		if f, err := ws.read(); err != nil || !strings.Contains(string(f), `"disconnect"`) || !strings.Contains(string(f), tt.reason) {
			t.Errorf("%s: %s, %v", name, f, err)
		}
		if code := ws.closeCodeOf(); code != websocket.ClosePolicyViolation {
			t.Errorf("%s: closed with %d", name, code)
		}
	}
}

// TestDisconnect_EndsThoseThatAreNamed and no others.
func TestDisconnect_EndsThoseThatAreNamed(t *testing.T) {
	var told []string
	s := newStack(t, secured(t, nil))
	s.srv.opts.Announce = func(_ context.Context, text []byte) error { told = append(told, string(text)); return nil }
	const ext = `{"current_user":"gid://app/User/1"}`
	type client struct {
		*cable
		sid string
	}
	connect := func(token string, streams ...string) client {
		ws, first := s.connect(protocol.SubprotocolPlain, "?jid="+token)
		var welcome struct{ Sid string }
		if err := json.Unmarshal([]byte(first), &welcome); err != nil {
			t.Fatal(err)
		}
		for _, stream := range streams {
			if got := ws.subscribeTo(identifier(stream)); !strings.Contains(got, `"confirm_subscription"`) {
				t.Fatal(got)
			}
		}
		return client{ws, welcome.Sid}
	}
	end := func(path, body string, want int) {
		t.Helper()
		a := s.do("POST", path, body, "Authorization", "Bearer "+publishKey.Reveal())
		if a.status != 200 || a.body != fmt.Sprintf(`{"disconnected":%d}`, want) {
			t.Errorf("%s %s: %d %s, want %d ended", path, body, a.status, a.body, want)
		}
	}
	gone := func(c client, reconnect bool) {
		t.Helper()
		if f := string(c.raw()); !strings.Contains(f, `"reason":"remote"`) || strings.Contains(f, `"reconnect":true`) != reconnect {
			t.Errorf("disconnected by %s", f)
		}
		if code := c.closeCodeOf(); code != websocket.CloseNormalClosure {
			t.Errorf("closed with %d", code)
		}
	}
	one := connect(goodToken(t, "streams", []string{"a"}), "a")
	two := connect(goodToken(t))
	bob := connect(goodToken(t, "sub", "bob", "ext", ext, "streams", []string{"a", "b"}), "a", "b")
	carol := connect(goodToken(t, "sub", "carol"))
	end("/disconnect", `{"sub":"nobody"}`, 0)
	end("/disconnect", `{"sub":"alice","reconnect":false}`, 2)
	gone(one, false)
	gone(two, false)
	eventually(t, "they are gone", func() bool { return s.srv.Connections() == 2 })
	end("/disconnect", `{"stream":"b","reconnect":true}`, 1)
	gone(bob, true)
	end("/disconnect", `{"sid":"`+carol.sid+`"}`, 1)
	gone(carol, false)
	bob = connect(goodToken(t, "sub", "bob", "ext", ext))
	end("/broadcast", `{"command":"disconnect","payload":{"identifier":`+fmt.Sprintf("%q", ext)+`}}`, 1)
	gone(bob, true)
	bob = connect(goodToken(t, "sub", "bob", "ext", ext))
	s.srv.Announced([]byte(`{"sub":"bob","reconnect":true}`))
	gone(bob, true)
	s.srv.Announced([]byte(`{"sub":"bob"`)) // another version's, perhaps
	if len(told) != 5 || told[1] != `{"sub":"alice","reconnect":false}` {
		t.Errorf("the other nodes were told %q", told)
	}
	for _, body := range []string{``, `{}`, `[]`, `{"sub":""}`, `{"sub":"a","sid":"b"}`, `{"sub":1}`} {
		if a := s.do("POST", "/disconnect", body, "Authorization", "Bearer "+publishKey.Reveal()); a.status != 422 {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	if a := s.do("POST", "/broadcast", `{"command":"restart","payload":{}}`, "Authorization", "Bearer "+publishKey.Reveal()); a.status != 422 {
		t.Errorf("another command: %d %s", a.status, a.body)
	}
	if a := s.do("POST", "/broadcast", `{"command":"disconnect","payload":{"identifier":"x"}}`, "Authorization", "Bearer "+blogKey.Reveal()); a.status != 403 {
		t.Errorf("a key with prefixes: %d %s", a.status, a.body)
	}
}

// backend is an application that decides.
type backend struct {
	*httptest.Server
	mu     sync.Mutex // guards what follows
	status int
	answer string
	asked  int
}

func newBackend(t *testing.T) *backend {
	b := &backend{status: 200, answer: `{"allow":true}`}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.asked++
		w.WriteHeader(b.status)
		_, _ = io.WriteString(w, b.answer)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *backend) says(status int, answer string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.answer = status, answer
}

// TestCallback_ChannelsOfTheApplication: one identifier leads to several
// streams, is renewed while the application says so, and ends when it does not.
func TestCallback_ChannelsOfTheApplication(t *testing.T) {
	app := newBackend(t)
	s := newStack(t, secured(t, func(c *auth.Config, _ *Options) { c.Callback.URL = app.URL }))
	key := []string{"Authorization", "Bearer " + publishKey.Reveal()}
	s.publish("room/7", "1", key...)
	const id = `{"channel":"RoomChannel","id":7}`
	for _, level := range levels {
		app.says(200, `{"allow":true}`)
		ws, first := s.connect(level, "", "Cookie", "session="+level)
		if !strings.Contains(first, `"welcome"`) {
			t.Fatal(first)
		}
		app.says(200, `{"allow":true,"streams":["room/7","everybody"],"expires_in":0.2}`)
		ws.send(`{"command":"subscribe","identifier":` + fmt.Sprintf("%q", id) + `,"history":{"since":1}}`)
		var confirmed struct {
			Type    string
			Streams map[string]struct{ Offset uint64 }
		}
		if err := json.Unmarshal(ws.raw(), &confirmed); err != nil || confirmed.Type != "confirm_subscription" || len(confirmed.Streams) != 2 {
			t.Fatalf("%s: %+v, %v", level, confirmed, err)
		}
		s.publish("room/7", "2", key...)
		s.publish("everybody", "3", key...)
		got := map[string]bool{}
		for len(got) < 2 {
			f := string(ws.raw())
			for _, stream := range []string{"room/7", "everybody"} {
				if strings.Contains(f, `"stream_id":"`+stream+`"`) && (strings.Contains(f, `"message":2`) || strings.Contains(f, `"message":3`)) {
					got[stream] = true
				}
			}
		}
		before := app.count()
		eventually(t, "the permission was renewed", func() bool { return app.count() > before })
		app.says(200, `{"allow":true,"streams":["everybody"]}`)
		for { // what is left of the replay, then the end
			if f := string(ws.raw()); strings.Contains(f, `"reject_subscription"`) {
				if !strings.Contains(f, `"reason":"unauthorized"`) || !strings.Contains(f, `RoomChannel`) {
					t.Errorf("%s: %s", level, f)
				}
				break
			}
		}
		s.publish("everybody", "4", key...)
		app.says(200, `{"allow":true,"streams":["everybody"]}`)
		if f := ws.subscribeTo(id); !strings.Contains(f, `"confirm_subscription"`) || !strings.Contains(f, `everybody`) {
			t.Errorf("%s: something came after the end: %s", level, f)
		}

		// An application that is away permits nothing, in the words of the level.
		app.says(500, "")
		ws.send(`{"command":"subscribe","identifier":"{\"channel\":\"Other\"}"}`)
		want := `"reason":"server_restart"`
		if level == protocol.SubprotocolChronocast {
			want = `"reason":"authorizer_unavailable"`
		}
		if f := string(ws.raw()); !strings.Contains(f, want) {
			t.Errorf("%s: the application is away: %s", level, f)
		}
		app.says(200, `{"allow":true}`) // once, so that it is not given a rest
		s.connect(level, "", "Cookie", "session=again"+level)
	}
	app.says(200, `{"allow":false}`)
	if _, first := s.connect(protocol.SubprotocolPlain, "", "Cookie", "session=no"); !strings.Contains(first, `"reason":"unauthorized"`) {
		t.Errorf("the application says no: %s", first)
	}
	app.says(500, "")
	a := s.do("GET", "/cable", "", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	if a.status != 503 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "authorizer_unavailable") {
		t.Errorf("the application is away: %d %s", a.status, a.body)
	}
	if a := s.do("GET", "/streams/x", ""); a.status != 503 || !strings.Contains(a.body, "authorizer_unavailable") {
		t.Errorf("read while the application is away: %d %s", a.status, a.body)
	}
}

func (b *backend) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

// TestB143_ASubscriptionEndsWithItsSignedName.
func TestB143_ASubscriptionEndsWithItsSignedName(t *testing.T) {
	s := newStack(t, secured(t, nil))
	ws, _ := s.connect(protocol.SubprotocolPlain, "")
	id := signedIdentifier(auth.ChannelPubSub, sign(t, signKey, auth.ChannelPubSub, auth.Signed{Stream: "a", Expires: time.Now().Add(300 * time.Millisecond)}))
	if got := ws.subscribeTo(id); !strings.Contains(got, `"confirm_subscription"`) {
		t.Fatal(got)
	}
	if f := string(ws.raw()); !strings.Contains(f, `"reject_subscription"`) || !strings.Contains(f, `"reason":"token_expired"`) {
		t.Error(f)
	}
	s.publish("a", "1", "Authorization", "Bearer "+publishKey.Reveal())
	if got := ws.subscribeTo(identifier("x")); !strings.Contains(got, `"reject_subscription"`) {
		t.Errorf("something came after the end: %s", got)
	}
	if n := s.srv.all()[0].sess.Subscriptions(); n != 0 {
		t.Errorf("%d subscriptions are left", n)
	}
}

// TestDoor_Limits: how many there may be, and how long they may be silent.
func TestDoor_Limits(t *testing.T) {
	proxies, err := auth.ParseProxies("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	s := newStack(t, secured(t, func(_ *auth.Config, o *Options) {
		o.MaxConnections, o.MaxAddressConnections, o.Proxies, o.FirstCommandTimeout = 3, 2, proxies, 400*time.Millisecond
	}))
	upgrade := func(from string) answer {
		return s.do("GET", "/cable", "", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13",
			"Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==", "X-Forwarded-For", from)
	}
	one, _ := s.connect(protocol.SubprotocolPlain, "", "X-Forwarded-For", "198.51.100.7")
	one.subscribeTo(identifier("a")) // it has said something
	s.connect(protocol.SubprotocolPlain, "", "X-Forwarded-For", "198.51.100.7")
	if a := upgrade("198.51.100.7"); a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "too_many_connections") {
		t.Errorf("a third of one address: %d %s", a.status, a.body)
	}
	three, _ := s.connect(protocol.SubprotocolPlain, "", "X-Forwarded-For", "10.1.1.1, 198.51.100.8")
	if a := upgrade("198.51.100.9"); a.status != 503 || !strings.Contains(a.body, "too_many_connections") {
		t.Errorf("a fourth of all: %d %s", a.status, a.body)
	}
	if f := string(three.raw()); !strings.Contains(f, `"idle_timeout"`) || !strings.Contains(f, `"reconnect":true`) {
		t.Errorf("a client that says nothing: %s", f)
	}
	three.closeCodeOf()
	eventually(t, "the silent ones are gone", func() bool { return s.srv.Connections() == 1 })
	if got := one.subscribeTo(identifier("b")); !strings.Contains(got, "reject_subscription") {
		t.Errorf("the one that has spoken: %s", got)
	}
	for range 2 { // places are free again, whatever becomes of a handshake
		upgrade("198.51.100.10")
		if a := s.do("GET", "/cable", "", "Connection", "Upgrade", "Upgrade", "websocket", "X-Forwarded-For", "198.51.100.10"); a.status != 400 {
			t.Fatalf("a bad handshake: %d %s", a.status, a.body)
		}
	}
	eventually(t, "their places are free", func() bool {
		s.srv.door.mu.Lock()
		defer s.srv.door.mu.Unlock()
		return len(s.srv.door.seats) == 1 && len(s.srv.door.each) == 1
	})
}

// TestAuth_TooManyFailures: told apart by address, and on a socket, too.
func TestAuth_TooManyFailures(t *testing.T) {
	s := newStack(t, secured(t, func(c *auth.Config, _ *Options) { c.MaxFailures = 3 }))
	wrong := []string{"Authorization", "Bearer planted-wrong-key-00008"}
	for i := range 5 {
		a := s.do("GET", "/streams/a", "", wrong...)
		if want := map[bool]int{false: 401, true: 429}[i >= 3]; a.status != want {
			t.Errorf("failure %d: %d %s", i, a.status, a.body)
		}
	}
	a := s.do("GET", "/cable", "", append(wrong, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")...)
	if a.status != 429 || !strings.Contains(a.body, "too_many_failures") || a.header.Get("Retry-After") == "" {
		t.Errorf("a socket: %d %s", a.status, a.body)
	}
	s.publish("a", "1", "Authorization", "Bearer "+publishKey.Reveal())
}

// TestCORS: pages of admitted origins read heads and history, nothing else.
func TestCORS(t *testing.T) {
	origins, err := auth.ParseOrigins("https://app.example")
	if err != nil {
		t.Fatal(err)
	}
	s := newStack(t, secured(t, func(c *auth.Config, _ *Options) { c.Origins = origins; c.PublicStreams = []string{""} }))
	const allowed = "Access-Control-Allow-Origin"
	for _, path := range []string{"/streams/a", "/streams/a/messages"} {
		a := s.do("GET", path, "", "Origin", "https://app.example")
		if a.status != 200 || a.header.Get(allowed) != "https://app.example" || a.header.Get("Vary") != "Origin" || a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
		a = s.do("OPTIONS", path, "", "Origin", "https://app.example", "Access-Control-Request-Method", "GET", "Access-Control-Request-Headers", "authorization")
		if a.status != 204 || !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "Authorization") || strings.Contains(a.header.Get("Access-Control-Allow-Methods"), "POST") {
			t.Errorf("OPTIONS %s: %d %v", path, a.status, a.header)
		}
	}
	for _, origin := range []string{"https://evil.example", "http://app.example", "null", "https://x.app.example", "http://" + s.addr} {
		for _, r := range [][2]string{{"GET", "/streams/a"}, {"GET", "/streams/a/messages"}, {"GET", "/cable"}, {"OPTIONS", "/streams/a"}, {"GET", "/signed/x"}} {
			if a := s.do(r[0], r[1], "", "Origin", origin); a.status != 403 || a.header.Get(allowed) != "" {
				t.Errorf("%s %s from %s: %d %v", r[0], r[1], origin, a.status, a.header)
			}
		}
	}
	key := []string{"Origin", "https://app.example", "Authorization", "Bearer " + publishKey.Reveal()}
	for _, r := range [][2]string{{"POST", "/streams/a/messages"}, {"POST", "/broadcast"}, {"POST", "/disconnect"}, {"GET", "/streams/a"}, {"GET", "/metrics"}} {
		if a := s.do(r[0], r[1], `{"stream":"a","data":"1"}`, key...); a.status != 403 {
			t.Errorf("%s %s with a publish key from a page: %d %s", r[0], r[1], a.status, a.body)
		}
	}
	for _, path := range []string{"/broadcast", "/metrics", "/disconnect"} {
		if a := s.do("OPTIONS", path, "", "Origin", "https://app.example"); a.header.Get(allowed) != "" {
			t.Errorf("%s may be read by pages: %v", path, a.header)
		}
	}
	if s.last("a") != 0 {
		t.Error("a page has published")
	}
	// The client's code is for every page (there is none in this server).
	if a := s.do("GET", "/client.js", "", "Origin", "https://evil.example"); a.status != 404 {
		t.Errorf("the client's code: %d %s", a.status, a.body)
	}
}
