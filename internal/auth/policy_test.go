package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/chronocast/chronocast/protocol"
)

var (
	turboKey   = NewSecret("a key of turbo's own")
	publishKey = NewSecret("the publish key of everything")
	blogKey    = NewSecret("the publish key of the blog")
)

func newPolicy(t *testing.T, change func(*Config)) *Policy {
	t.Helper()
	c := Config{
		PublishKeys: []PublishKey{{Key: publishKey}, {Key: blogKey, Prefixes: []string{"blog/", "news/"}}},
		SignKeys:    []Secret{otherKey, testKey},
		TurboKeys:   []Secret{turboKey},
		Tokens:      Tokens{Keys: []JWTKey{NewHMACKey(NewSecret(hmacText))}},
		Now:         at(noon),
	}
	if change != nil {
		change(&c)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func get(header ...string) *http.Request {
	r := httptest.NewRequest("GET", "http://live.example.com/", nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func mustIdentify(t *testing.T, p *Policy, r *http.Request) *Identity {
	t.Helper()
	id, err := p.Identify(r)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func mustSign(t *testing.T, key Secret, channel string, s Signed) string {
	t.Helper()
	text, err := Sign(key, channel, s)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// reasonOf is why a subscription is refused, or "".
func reasonOf(err error) string {
	var no *protocol.CommandError
	if errors.As(err, &no) {
		return no.Reason
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return ""
}

// TestPolicy_Subscribe: what is signed for one class, one stream or one user is
// good for no other.
func TestPolicy_Subscribe(t *testing.T) {
	p := newPolicy(t, func(c *Config) { c.PublicStreams = []string{"status/"} })
	nobody := mustIdentify(t, p, get())
	bearer := func(more ...any) *Identity {
		return mustIdentify(t, p, get("Authorization", "Bearer "+token(t, jwt.SigningMethodHS256, []byte(hmacText), "", alice(more...))))
	}
	granted := bearer("streams", []any{"chat/42", map[string]any{"prefix": "user/7/"}, map[string]any{"name": "out", "can": []string{"publish"}}})
	bob := bearer("sub", "bob")
	forA := mustSign(t, testKey, ChannelPubSub, Signed{Stream: "a"})
	bound := mustSign(t, testKey, ChannelPubSub, Signed{Stream: "a", Subject: "alice"})
	turbo := mustSign(t, turboKey, ChannelTurbo, Signed{Stream: "a"})
	crossed := mustSign(t, testKey, ChannelTurbo, Signed{Stream: "a", Expires: noon.Add(time.Hour)}) // right key, other purpose
	old := mustSign(t, testKey, ChannelPubSub, Signed{Stream: "a", Expires: noon.Add(-time.Second)})
	for _, tt := range []struct {
		name   string
		who    *Identity
		id     protocol.Identifier
		stream string
		reason string
	}{
		{"signed", nobody, protocol.Identifier{Channel: ChannelPubSub, SignedStreamName: forA}, "a", ""},
		{"signed, with another plain name", nobody, protocol.Identifier{Channel: ChannelPubSub, StreamName: "b", SignedStreamName: forA}, "a", ""},
		{"signed for turbo", nobody, protocol.Identifier{Channel: ChannelTurbo, SignedStreamName: turbo}, "a", ""},
		{"signed for turbo, used for pubsub", nobody, protocol.Identifier{Channel: ChannelPubSub, SignedStreamName: turbo}, "", ReasonUnauthorized},
		{"signed for pubsub, used for turbo", nobody, protocol.Identifier{Channel: ChannelTurbo, SignedStreamName: forA}, "", ReasonUnauthorized},
		{"signed for another purpose", nobody, protocol.Identifier{Channel: ChannelPubSub, SignedStreamName: crossed}, "", ReasonUnauthorized},
		{"B143 expired", nobody, protocol.Identifier{Channel: ChannelPubSub, SignedStreamName: old}, "", ReasonTokenExpired},
		{"B143 bound to its user", granted, protocol.Identifier{Channel: ChannelPubSub, SignedStreamName: bound}, "a", ""},
		{"B143 bound to another", bob, protocol.Identifier{Channel: ChannelPubSub, SignedStreamName: bound}, "", ReasonUnauthorized},
		{"B143 bound, shown by nobody", nobody, protocol.Identifier{Channel: ChannelPubSub, SignedStreamName: bound}, "", ReasonUnauthorized},
		{"not signed", nobody, protocol.Identifier{Channel: ChannelPubSub, StreamName: "a"}, "", ReasonUnauthorized},
		{"B146 guessed", bob, protocol.Identifier{Channel: ChannelPubSub, StreamName: "user/7/inbox"}, "", ReasonUnauthorized},
		{"public", nobody, protocol.Identifier{Channel: ChannelPubSub, StreamName: "status/x"}, "status/x", ""},
		{"almost public", nobody, protocol.Identifier{Channel: ChannelPubSub, StreamName: "status"}, "", ReasonUnauthorized},
		{"granted", granted, protocol.Identifier{Channel: ChannelPubSub, StreamName: "chat/42"}, "chat/42", ""},
		{"granted by prefix", granted, protocol.Identifier{Channel: ChannelPubSub, StreamName: "user/7/x"}, "user/7/x", ""},
		{"granted another", granted, protocol.Identifier{Channel: ChannelPubSub, StreamName: "chat/421"}, "", ReasonUnauthorized},
		{"granted to publish only", granted, protocol.Identifier{Channel: ChannelPubSub, StreamName: "out"}, "", ReasonUnauthorized},
		{"turbo without a signature", granted, protocol.Identifier{Channel: ChannelTurbo, StreamName: "chat/42"}, "", ReasonUnauthorized},
		{"a channel nobody knows", granted, protocol.Identifier{Channel: "ChatChannel"}, "", ReasonUnknownChannel},
		{"a bad name", granted, protocol.Identifier{Channel: ChannelPubSub, StreamName: "a\nb"}, "", ReasonMalformed},
	} {
		access, err := p.Subscribe(t.Context(), tt.who, "", tt.id)
		if got := strings.Join(access.Streams, " "); got != tt.stream || reasonOf(err) != tt.reason {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
}

// TestPolicy_OverHTTP: the same for requests.
func TestPolicy_OverHTTP(t *testing.T) {
	p := newPolicy(t, func(c *Config) { c.PublicStreams = []string{"status/"} })
	jwtFor := func(more ...any) string {
		return "Bearer " + token(t, jwt.SigningMethodHS256, []byte(hmacText), "", alice(more...))
	}
	granted := jwtFor("streams", []any{"a", map[string]any{"prefix": "p/", "can": []string{"publish"}}})
	for _, tt := range []struct {
		name                 string
		authorization        string
		stream               string
		read, publish, admin error
	}{
		{"nobody", "", "a", ErrUnauthorized, ErrUnauthorized, ErrUnauthorized},
		{"nobody, public", "", "status/x", nil, ErrUnauthorized, ErrUnauthorized},
		{"another scheme", "Basic YTpi", "a", ErrUnauthorized, ErrUnauthorized, ErrUnauthorized},
		{"the key", "Bearer " + publishKey.Reveal(), "a", nil, nil, nil},
		{"the key, the scheme in small", "bearer  " + publishKey.Reveal(), "a", nil, nil, nil},
		{"the blog's key", "Bearer " + blogKey.Reveal(), "blog/1", nil, nil, ErrForbidden},
		{"the blog's key elsewhere", "Bearer " + blogKey.Reveal(), "a", ErrForbidden, ErrForbidden, ErrForbidden},
		{"a token", jwtFor(), "a", ErrForbidden, ErrForbidden, ErrForbidden},
		{"a token that grants", granted, "a", nil, ErrForbidden, ErrForbidden},
		{"a token that grants publishing", granted, "p/1", ErrForbidden, nil, ErrForbidden},
	} {
		var header []string
		if tt.authorization != "" {
			header = []string{"Authorization", tt.authorization}
		}
		who := mustIdentify(t, p, get(header...))
		if err := p.Read(t.Context(), who, tt.stream); !errors.Is(err, tt.read) || (err == nil) != (tt.read == nil) {
			t.Errorf("%s: read: %v", tt.name, err)
		}
		if err := p.Publish(who, tt.stream); !errors.Is(err, tt.publish) || (err == nil) != (tt.publish == nil) {
			t.Errorf("%s: publish: %v", tt.name, err)
		}
		if err := p.Administer(who); !errors.Is(err, tt.admin) || (err == nil) != (tt.admin == nil) {
			t.Errorf("%s: administer: %v", tt.name, err)
		}
	}
	for name, header := range map[string][]string{
		"a wrong key":            {"Authorization", "Bearer " + publishKey.Reveal() + "x"},
		"an empty key":           {"Authorization", "Bearer "},
		"the beginning of a key": {"Authorization", "Bearer " + publishKey.Reveal()[:10]},
		"two keys":               {"Authorization", "Bearer " + publishKey.Reveal(), "Authorization", "Bearer " + publishKey.Reveal()},
		"a forged token":         {"X-Jid", "a.b.c"},
		"two tokens":             {"Sec-Websocket-Protocol", TokenSubprotocol + "a, " + TokenSubprotocol + "b"},
	} {
		if id, err := p.Identify(get(header...)); !errors.Is(err, ErrUnauthorized) || id != nil {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	if _, err := p.Identify(get("Authorization", "Bearer "+publishKey.Reveal(), "Origin", "http://live.example.com")); !errors.Is(err, ErrForbidden) {
		t.Errorf("the key in a browser: %v", err)
	}
	if _, err := p.Identify(get("Authorization", jwtFor("exp", 1))); !errors.Is(err, ErrExpired) {
		t.Errorf("an old token: %v", err)
	}
}

func TestPolicy_WhereATokenMayStand(t *testing.T) {
	text := token(t, jwt.SigningMethodHS256, []byte(hmacText), "", alice())
	query := func(q string) *http.Request {
		r := get()
		r.URL.RawQuery = q
		return r
	}
	for _, tt := range []struct {
		name          string
		r             *http.Request
		always, query bool // whether it counts for plain requests, without and with QueryTokens
	}{
		{"header", get("Authorization", "Bearer "+text), true, true},
		{"AnyCable's header", get("X-JID", text), true, true},
		{"subprotocol", get("Sec-WebSocket-Protocol", "chronocast-v1-json, anycable-token."+text), true, true},
		{"token", query("token=" + text), false, true},
		{"jid", query("jid=" + text), false, true},
	} {
		for _, on := range []bool{false, true} {
			p := newPolicy(t, func(c *Config) { c.QueryTokens = on })
			id, err := p.Identify(tt.r)
			if err != nil || (id.Subject == "alice") != (tt.always || on && tt.query) {
				t.Errorf("%s, query tokens %v: %+v, %v", tt.name, on, id, err)
			}
			if id, err := p.Connect(t.Context(), tt.r, "sid"); err != nil || id.Subject != "alice" {
				t.Errorf("%s on a socket: %+v, %v", tt.name, id, err)
			}
		}
	}
	p := newPolicy(t, func(c *Config) { c.RequireToken = true })
	nobody, err := p.Connect(t.Context(), get(), "sid")
	if !errors.Is(err, ErrNoToken) || !errors.Is(err, ErrUnauthorized) {
		t.Fatalf("a token is required: %v", err)
	}
	if id, err := p.Present(t.Context(), nobody, text); err != nil || id.Subject != "alice" {
		t.Errorf("shown later: %+v, %v", id, err)
	}
	if id, err := p.Present(t.Context(), nobody, text+"x"); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("a wrong one shown later: %+v, %v", id, err)
	}
	signed := mustSign(t, testKey, ChannelPubSub, Signed{Stream: "a"})
	who := mustIdentify(t, p, get())
	if _, err := p.Signed(who, signed); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("a signed name in place of a token: %v", err)
	}
	if s, err := p.Signed(mustIdentify(t, p, get("X-JID", text)), signed); err != nil || s.Stream != "a" {
		t.Errorf("a signed name beside a token: %+v, %v", s, err)
	}
}

func TestPolicy_Admit(t *testing.T) {
	p := newPolicy(t, nil)
	for _, tt := range []struct {
		method, origin string
		admitted       bool
	}{
		{"GET", "", true}, {"POST", "", true}, {"DELETE", "", true},
		{"GET", "http://live.example.com", true}, {"OPTIONS", "http://live.example.com", true},
		{"POST", "http://live.example.com", false}, // not even its own pages publish
		{"GET", "http://evil.example", false}, {"POST", "null", false},
	} {
		r := httptest.NewRequest(tt.method, "http://live.example.com/", nil)
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		if err := p.Admit(r); (err == nil) != tt.admitted || err != nil && !errors.Is(err, ErrForbidden) {
			t.Errorf("%s from %q: %v", tt.method, tt.origin, err)
		}
	}
}

func TestNew_RefusesOneKeyForTwoClasses(t *testing.T) {
	if _, err := New(Config{SignKeys: []Secret{testKey}, TurboKeys: []Secret{otherKey, testKey}}); err == nil || strings.Contains(err.Error(), testKey.Reveal()) {
		t.Errorf("New: %v", err)
	}
	if _, err := New(Config{RequireToken: true}); err == nil {
		t.Error("tokens are required and nothing can check them")
	}
	if _, err := New(Config{Tokens: Tokens{JWKS: "/nowhere"}}); err == nil {
		t.Error("a missing key set is no fault")
	}
	if _, err := New(Config{Callback: Callback{URL: "ftp://user:planted@x"}}); err == nil || strings.Contains(err.Error(), "planted") {
		t.Errorf("a bad URL: %v", err)
	}
}

// TestPolicy_FailuresAreCounted: and never lock out what is right.
func TestPolicy_FailuresAreCounted(t *testing.T) {
	now := noon
	p := newPolicy(t, func(c *Config) { c.MaxFailures = 3; c.Now = func() time.Time { return now } })
	from := func(addr string, header ...string) error {
		r := get(header...)
		r.RemoteAddr = addr + ":1"
		_, err := p.Identify(r)
		return err
	}
	wrong := []string{"Authorization", "Bearer wrong"}
	for i := range 3 {
		if err := from("198.51.100.7", wrong...); !errors.Is(err, ErrUnauthorized) {
			t.Fatalf("failure %d: %v", i, err)
		}
	}
	if err := from("198.51.100.7", wrong...); !errors.Is(err, ErrTooManyFailures) {
		t.Errorf("one too many: %v", err)
	}
	if err := from("198.51.100.8", wrong...); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("another address: %v", err)
	}
	if err := from("198.51.100.7", "Authorization", "Bearer "+publishKey.Reveal()); err != nil {
		t.Errorf("right ones of the same address: %v", err)
	}
	now = now.Add(time.Minute)
	if err := from("198.51.100.7", wrong...); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("a minute later: %v", err)
	}
	for i := range 5 { // an IPv6 client has a network of its own
		if err := from(fmt.Sprintf("[2001:db8::%d]", i+1), wrong...); errors.Is(err, ErrTooManyFailures) != (i >= 3) {
			t.Errorf("address %d of a network: %v", i, err)
		}
	}
}

// app is an application that answers what it is told to.
type app struct {
	*httptest.Server
	mu     sync.Mutex // guards what follows
	asked  []question
	header http.Header
	status int
	body   string
	wait   chan struct{}
}

func newApp(t *testing.T) *app {
	a := &app{status: 200, body: `{"allow":true}`}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q question
		data, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(data, &q) != nil || r.Method != "POST" {
			t.Errorf("asked by %s %s, %v", r.Method, data, err)
		}
		a.mu.Lock()
		a.asked = append(a.asked, q)
		a.header = r.Header
		status, body, wait := a.status, a.body, a.wait
		a.mu.Unlock()
		if wait != nil {
			<-wait
		}
		if status >= 300 && status < 400 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *app) says(status int, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status, a.body = status, body
}

func (a *app) questions() []question {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]question(nil), a.asked...)
}

func TestCallback_DecidesWhoConnectsAndWhatAnIdentifierLeadsTo(t *testing.T) {
	a := newApp(t)
	p := newPolicy(t, func(c *Config) {
		c.Callback = Callback{URL: a.URL, Key: NewSecret("the application's own"), Headers: []string{"Cookie", "x-team"}}
	})
	r := get("Cookie", "session=1", "X-Team", "blue", "X-Other", "no business of the application's",
		"X-JID", token(t, jwt.SigningMethodHS256, []byte(hmacText), "", alice("ext", "{}")))
	r.RemoteAddr = "198.51.100.7:1"
	a.says(200, `{"allow":true,"sub":"not alice","expires_in":60}`)
	who, err := p.Connect(t.Context(), r, "sid-1")
	if err != nil || who.Subject != "alice" || !who.Expires.Equal(noon.Add(time.Minute)) {
		t.Fatalf("%+v, %v", who, err)
	}
	q := a.questions()[0]
	if q.Event != "connect" || q.SID != "sid-1" || q.Identity == nil || q.Identity.Sub != "alice" || q.Identity.Ext != "{}" || q.Remote != "198.51.100.7" ||
		fmt.Sprint(q.Headers) != "map[Cookie:session=1 X-Team:blue]" || a.header.Get("Authorization") != "Bearer the application's own" {
		t.Errorf("asked %+v with %v", q, a.header)
	}
	const identifier = `{"channel":"RoomChannel","id":7}`
	id := protocol.Identifier{Channel: "RoomChannel"}
	a.says(200, `{"allow":true,"streams":["room/7","room/7","all"]}`)
	access, err := p.Subscribe(t.Context(), who, identifier, id)
	if err != nil || strings.Join(access.Streams, " ") != "all room/7" || !access.Expires.IsZero() {
		t.Errorf("%+v, %v", access, err)
	}
	if q := a.questions()[1]; q.Event != "subscribe" || q.Identifier != identifier || q.SID != "sid-1" || q.Stream != "" {
		t.Errorf("asked %+v", q)
	}
	for name, tt := range map[string]struct {
		status int
		body   string
		reason string
	}{
		"no":                 {200, `{"allow":false,"streams":["x"]}`, ReasonUnauthorized},
		"yes to nothing":     {200, `{"allow":true}`, ReasonUnauthorized},
		"a refusal by 403":   {403, `whatever`, ReasonUnauthorized},
		"a refusal by 401":   {401, ``, ReasonUnauthorized},
		"a page":             {200, `<html>`, "unavailable"},
		"an empty object":    {200, `{}`, "unavailable"},
		"a redirect":         {302, ``, "unavailable"},
		"an error":           {500, `{"allow":true,"streams":["x"]}`, "unavailable"},
		"another status":     {201, `{"allow":true,"streams":["x"]}`, "unavailable"},
		"a bad stream":       {200, `{"allow":true,"streams":["a\nb"]}`, "unavailable"},
		"an answer too long": {200, `{"allow":true,"streams":["x"],"more":"` + strings.Repeat("x", maxAnswerBytes) + `"}`, "unavailable"},
	} {
		a.says(tt.status, tt.body)
		access, err := p.Subscribe(t.Context(), who, identifier, id)
		got := reasonOf(err)
		if errors.Is(err, ErrUnavailable) {
			got = "unavailable"
		}
		if got != tt.reason || len(access.Streams) > 0 {
			t.Errorf("%s: %+v, %v", name, access, err)
		}
		a.says(200, `{"allow":false}`) // so that failures do not add up
		if _, err := p.Subscribe(t.Context(), who, identifier, id); reasonOf(err) != ReasonUnauthorized {
			t.Fatalf("%s, afterwards: %v", name, err)
		}
	}
	if len(a.questions()) != 2+2*11 {
		t.Errorf("%d questions, the redirect was followed or an answer kept that was for once", len(a.questions()))
	}

	// What is signed or granted needs no question, and what is read over HTTP is
	// the question of subscribing.
	before := len(a.questions())
	if _, err := p.Subscribe(t.Context(), who, "", protocol.Identifier{Channel: ChannelPubSub, SignedStreamName: mustSign(t, testKey, ChannelPubSub, Signed{Stream: "a"})}); err != nil || len(a.questions()) != before {
		t.Errorf("a signed name: %v, %d questions", err, len(a.questions())-before)
	}
	a.says(200, `{"allow":true}`)
	if err := p.Read(t.Context(), who, "a"); err != nil {
		t.Errorf("read: %v", err)
	}
	if q := a.questions()[before]; q.Stream != "a" || q.Identifier != `{"channel":"$pubsub","stream_name":"a"}` {
		t.Errorf("asked %+v", q)
	}
	a.says(200, `{"allow":true,"streams":["b"]}`)
	if err := p.Read(t.Context(), who, "a"); !errors.Is(err, ErrForbidden) {
		t.Errorf("read of one stream with another: %v", err)
	}
	a.says(200, `{"allow":false}`)
	r.Header.Set("Cookie", "session=2")
	if _, err := p.Connect(t.Context(), r, "sid-2"); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("connect: %v", err)
	}
}

// TestCallback_AnswersAreKeptUntilTheyExpire and shared by who asks the same at
// once.
func TestCallback_AnswersAreKeptUntilTheyExpire(t *testing.T) {
	a := newApp(t)
	now := noon
	p := newPolicy(t, func(c *Config) { c.Callback.URL = a.URL; c.Now = func() time.Time { return now } })
	who := mustIdentify(t, p, get("Cookie", "session=1"))
	other := mustIdentify(t, p, get("Cookie", "session=2"))
	ask := func(who *Identity, identifier string) string {
		access, err := p.Subscribe(t.Context(), who, identifier, protocol.Identifier{Channel: "X"})
		return strings.Join(access.Streams, " ") + reasonOf(err)
	}
	a.says(200, fmt.Sprintf(`{"allow":true,"streams":["one"],"expires_at":%d}`, noon.Add(time.Minute).Unix()))
	for range 3 {
		if got := ask(who, "1"); got != "one" {
			t.Fatal(got)
		}
	}
	a.says(200, `{"allow":false,"expires_in":60}`)
	for range 3 {
		if got := ask(other, "1") + ask(who, "2"); got != ReasonUnauthorized+ReasonUnauthorized {
			t.Fatal(got)
		}
	}
	if n := len(a.questions()); n != 3 {
		t.Errorf("%d questions, want one for each user and identifier", n)
	}
	now = now.Add(time.Minute)
	if got := ask(who, "1"); got != ReasonUnauthorized {
		t.Errorf("the old answer outlived itself: %s", got)
	}

	wait := make(chan struct{})
	a.mu.Lock()
	a.asked, a.wait = nil, wait
	a.mu.Unlock()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { ask(who, "3") })
	}
	wait <- struct{}{} // somebody has asked; the others join it, or find its answer
	close(wait)
	wg.Wait()
	if n := len(a.questions()); n != 1 {
		t.Errorf("%d questions for the same, want 1", n)
	}
}

// slow is an application that is away, as a transport.
type slow struct{ asked int }

func (s *slow) RoundTrip(r *http.Request) (*http.Response, error) {
	s.asked++
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestCallback_FailsClosedAndRests: an application that is away costs nobody
// more than its deadline, and soon not even that.
func TestCallback_FailsClosedAndRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		away := &slow{}
		c := newCallback(Callback{URL: "http://app.example/secret-path", Timeout: time.Second}, time.Now, zap.New(core))
		c.http.Transport = away
		began := time.Now()
		for i := range 20 {
			if _, err := c.ask(t.Context(), nil, "subscribe", fmt.Sprint(i), ""); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("question %d: %v", i, err)
			}
		}
		if took := time.Since(began); away.asked != maxFailures || took != maxFailures*time.Second {
			t.Errorf("asked %d times in %v, want %d", away.asked, took, maxFailures)
		}
		time.Sleep(2 * time.Second) // one finds out whether it is back
		for i := range 3 {
			_, _ = c.ask(t.Context(), nil, "subscribe", fmt.Sprint(i), "")
		}
		if away.asked != maxFailures+1 {
			t.Errorf("asked %d times after the rest, want once more", away.asked)
		}
		c.http.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(`{"allow":true}`))}, nil
		})
		time.Sleep(longestRest)
		for i := range 3 {
			if a, err := c.ask(t.Context(), nil, "subscribe", fmt.Sprint(i), ""); err != nil || !a.allow {
				t.Errorf("it is back: %+v, %v", a, err)
			}
		}
		if n := logs.Len(); n < 1 || n > 3 {
			t.Errorf("%d lines in the log", n)
		}
		for _, line := range logs.All() {
			if strings.Contains(fmt.Sprint(line), "secret-path") {
				t.Errorf("the log shows the URL: %v", line)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.ask(ended, nil, "subscribe", "x", ""); !errors.Is(err, ErrUnavailable) {
			t.Errorf("asked by somebody who has gone: %v", err)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"allow":true,"streams":["a","b"],"expires_in":60,"sub":"x"}`))
	f.Add([]byte(`{"allow":false,"expires_at":1e300}`))
	f.Add([]byte(`{"allow":true,"expires_in":-1e300}`))
	f.Add([]byte(`{"allow":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseAnswer(data, noon)
		if err != nil && (a.allow || len(a.streams) > 0) {
			t.Errorf("%q permits something beside its error %v", data, err)
		}
		for _, s := range a.streams {
			if protocol.CheckStream(s) != nil {
				t.Errorf("%q names %q", data, s)
			}
		}
	})
}
