package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/gorilla/websocket"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

// The keys of the servers in these tests.
var (
	publishKey = auth.NewSecret(plant("the publish key", "planted-publish-key-0001"))
	blogKey    = auth.NewSecret(plant("a publish key with prefixes", "planted-publish-key-0002"))
	signKey    = auth.NewSecret(plant("the signing key", "planted-signing-key-0003"))
	turboKey   = auth.NewSecret(plant("the Turbo key", "planted-turbo-key-00004"))
	oldKey     = auth.NewSecret(plant("a signing key of the past", "planted-signing-key-0005"))
	sharedKey  = plant("the shared secret of tokens", "planted-shared-secret-06")
)

var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func rsaPublic() string {
	der, err := x509.MarshalPKIXPublicKey(&rsaKey().PublicKey)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// secured changes a stack into one with a policy.
func secured(t *testing.T, change func(*auth.Config, *Options)) func(*Options) {
	t.Helper()
	keys, err := auth.ParseJWTKeys("HS256/shared:" + sharedKey + ";RS256/main:" + rsaPublic())
	if err != nil {
		t.Fatal(err)
	}
	c := auth.Config{
		PublishKeys: []auth.PublishKey{{Key: publishKey}, {Key: blogKey, Prefixes: []string{"blog/"}}},
		SignKeys:    []auth.Secret{signKey},
		TurboKeys:   []auth.Secret{turboKey},
		Tokens:      auth.Tokens{Keys: keys},
		Log:         shownLog,
	}
	return func(o *Options) {
		if change != nil {
			change(&c, o)
		}
		policy, err := auth.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(policy.Close)
		o.Authorizer = policy
	}
}

// claims are those of a token for alice, good for a while, with changes.
func claims(more ...any) jwt.MapClaims {
	c := jwt.MapClaims{"sub": "alice", "exp": time.Now().Add(time.Hour).Unix()}
	for i := 0; i < len(more); i += 2 {
		c[more[i].(string)] = more[i+1]
	}
	return c
}

func makeToken(t testing.TB, method jwt.SigningMethod, key any, kid string, c jwt.MapClaims) string {
	t.Helper()
	made := jwt.NewWithClaims(method, c)
	if kid != "" {
		made.Header["kid"] = kid
	}
	text, err := made.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return plant("a token", text)
}

func goodToken(t testing.TB, more ...any) string {
	return makeToken(t, jwt.SigningMethodHS256, []byte(sharedKey), "shared", claims(more...))
}

func sign(t testing.TB, key auth.Secret, channel string, s auth.Signed) string {
	t.Helper()
	text, err := auth.Sign(key, channel, s)
	if err != nil {
		t.Fatal(err)
	}
	return plant("a signed name", text)
}

// connect opens a WebSocket with a header and returns its first frame, too.
func (s *stack) connect(level, query string, header ...string) (*cable, string) {
	s.t.Helper()
	h := make(http.Header)
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	d := websocket.Dialer{Subprotocols: []string{level}, HandshakeTimeout: patience}
	ws, resp, err := d.DialContext(s.t.Context(), "ws://"+s.addr+"/cable"+query, h)
	if err != nil {
		s.t.Fatalf("dial: %v", err)
	}
	resp.Body.Close()
	s.t.Cleanup(func() { ws.Close() })
	c := &cable{s.t, ws}
	return c, string(c.raw())
}

// subscribeTo sends a subscribe for an identifier and returns the answer.
func (c *cable) subscribeTo(identifier string) string {
	c.t.Helper()
	c.send(`{"command":"subscribe","identifier":` + strconv.Quote(identifier) + `}`)
	return string(c.raw())
}

func signedIdentifier(channel, name string) string {
	b, err := json.Marshal(map[string]string{"channel": channel, "signed_stream_name": name})
	if err != nil {
		panic(err)
	}
	return string(b)
}

var levels = []string{protocol.SubprotocolPlain, protocol.SubprotocolExtended, protocol.SubprotocolChronocast}

// TestB145_B146_B148_EveryWayInRefusesTheSame: each transport and operation with
// each kind of credentials, for a stream that exists and one that does not.
func TestB145_B146_B148_EveryWayInRefusesTheSame(t *testing.T) {
	s := newStack(t, secured(t, nil))
	const there, nowhere = "room/there", "room/nowhere"
	s.publish(there, `"`+plant("a payload", "planted-payload-0007")+`"`, "Authorization", "Bearer "+publishKey.Reveal())

	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	grant := func(names ...string) []any { return []any{"streams", names} }
	all := grant(there, nowhere)
	credentials := []struct {
		name  string
		token string
		// what is said over HTTP to reading and publishing, and first on a socket
		read, publish int
		first         string
	}{
		{"none", "", 401, 401, "welcome"},
		{"wrong", plant("a wrong key", "planted-wrong-key-00008"), 401, 401, "unauthorized"},
		{"wrong stream", goodToken(t, grant("elsewhere")...), 403, 403, "welcome"},
		{"wrong stream, key", blogKey.Reveal(), 403, 403, "welcome"},
		{"expired", goodToken(t, append(all, "exp", time.Now().Add(-time.Hour).Unix())...), 401, 401, "token_expired"},
		{"not yet", goodToken(t, append(all, "nbf", time.Now().Add(time.Hour).Unix())...), 401, 401, "unauthorized"},
		{"none as algorithm", makeToken(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "", claims(all...)), 401, 401, "unauthorized"},
		{"HS256 with the public key", makeToken(t, jwt.SigningMethodHS256, []byte(rsaPublic()), "main", claims(all...)), 401, 401, "unauthorized"},
		{"another algorithm of the key", makeToken(t, jwt.SigningMethodRS512, rsaKey(), "main", claims(all...)), 401, 401, "unauthorized"},
		{"unknown kid", makeToken(t, jwt.SigningMethodRS256, rsaKey(), "unknown", claims(all...)), 401, 401, "unauthorized"},
		{"unknown key", makeToken(t, jwt.SigningMethodES256, ec, "", claims(all...)), 401, 401, "unauthorized"},
		{"revoked key", makeToken(t, jwt.SigningMethodHS256, []byte(oldKey.Reveal()), "shared", claims(all...)), 401, 401, "unauthorized"},
	}
	requests := []struct {
		method, path, body string
		publish            bool
	}{
		{"GET", "/streams/%", "", false},
		{"HEAD", "/streams/%", "", false},
		{"GET", "/streams/%/messages", "", false},
		{"GET", "/streams/%/messages?after=1:0", "", false},
		{"POST", "/streams/%/messages", "1", true},
		{"POST", "/broadcast", `{"stream":"@","data":"1"}`, true},
		{"POST", "/_broadcast", `[{"stream":"@","data":"1"}]`, true},
		{"POST", "/disconnect", `{"stream":"@"}`, true},
		{"GET", "/metrics", "", true},
	}
	for _, c := range credentials {
		var header []string
		if c.token != "" {
			header = []string{"Authorization", "Bearer " + c.token}
		}
		for _, r := range requests {
			ask := func(stream string) answer {
				return s.do(r.method, strings.ReplaceAll(r.path, "%", url.PathEscape(stream)), strings.ReplaceAll(r.body, "@", stream), header...)
			}
			want := c.read
			if r.publish {
				want = c.publish
			}
			a, b := ask(there), ask(nowhere)
			if a.status != want {
				t.Errorf("%s: %s %s: %d %s, want %d", c.name, r.method, r.path, a.status, a.body, want)
			}
			for _, h := range []http.Header{a.header, b.header} {
				h.Del("Date")
			}
			if a.status != b.status || a.body != b.body || len(a.header) != len(b.header) {
				t.Errorf("%s: %s %s tells them apart: %d %s %v, and %d %s %v", c.name, r.method, r.path, a.status, a.body, a.header, b.status, b.body, b.header)
			}
			if strings.Contains(a.body, "room") {
				t.Errorf("%s: %s %s names the stream: %s", c.name, r.method, r.path, a.body)
			}
		}
		for _, level := range levels {
			ws, first := s.connect(level, "", header...)
			if c.first != "welcome" {
				if !strings.Contains(first, `"type":"disconnect"`) || !strings.Contains(first, `"reason":"`+c.first+`"`) ||
					strings.Contains(first, `"reconnect":true`) != (c.first == "token_expired") {
					t.Errorf("%s on %s: %s", c.name, level, first)
				}
				if code := ws.closeCodeOf(); code != websocket.ClosePolicyViolation {
					t.Errorf("%s on %s: closed with %d", c.name, level, code)
				}
				continue
			}
			if !strings.Contains(first, `"welcome"`) {
				t.Fatalf("%s on %s: %s", c.name, level, first)
			}
			a, b := ws.subscribeTo(identifier(there)), ws.subscribeTo(identifier(nowhere))
			if !strings.Contains(a, `"reject_subscription"`) || !strings.Contains(a, `"reason":"unauthorized"`) || strings.ReplaceAll(a, "there", "nowhere") != b {
				t.Errorf("%s on %s: %s, and %s", c.name, level, a, b)
			}
		}
	}
	if last := s.last(there); last != 1 {
		t.Errorf("%d messages, something was published without right", last)
	}

	// And with right ones everything opens.
	reader := goodToken(t, all...)
	for _, r := range requests[:3] {
		for _, stream := range []string{there, nowhere} {
			if a := s.do(r.method, strings.ReplaceAll(r.path, "%", url.PathEscape(stream)), "", "Authorization", "Bearer "+reader); a.status != 200 {
				t.Errorf("%s %s: %d %s", r.method, r.path, a.status, a.body)
			}
		}
	}
	publisher := goodToken(t, "streams", []any{map[string]any{"prefix": "room/", "can": []string{"publish"}}})
	s.publish(there, "2", "Authorization", "Bearer "+publisher)
	if a := s.do("POST", "/broadcast", `[{"stream":"room/there","data":"3"},{"stream":"other","data":"3"}]`, "Authorization", "Bearer "+publisher); a.status != 403 || s.last(there) != 2 {
		t.Errorf("one item too many: %d %s, %d stored", a.status, a.body, s.last(there))
	}
	if a := s.do("GET", "/metrics", "", "Authorization", "Bearer "+publishKey.Reveal()); a.status != 200 {
		t.Errorf("metrics: %d %s", a.status, a.body)
	}
}

// TestB143_SignedNamesOnEveryWayIn.
func TestB143_SignedNamesOnEveryWayIn(t *testing.T) {
	s := newStack(t, secured(t, nil))
	key := []string{"Authorization", "Bearer " + publishKey.Reveal()}
	s.publish("a", "1", key...)
	s.publish("b", "2", key...)
	alice, bob := goodToken(t), goodToken(t, "sub", "bob")
	for _, tt := range []struct {
		name, channel, signed, token string
		opens                        bool
		code                         string // of the refusal
	}{
		{"for anybody", auth.ChannelPubSub, sign(t, signKey, auth.ChannelPubSub, auth.Signed{Stream: "a"}), "", true, ""},
		{"for a while", auth.ChannelPubSub, sign(t, signKey, auth.ChannelPubSub, auth.Signed{Stream: "a", Expires: time.Now().Add(time.Hour)}), "", true, ""},
		{"for Turbo", auth.ChannelTurbo, sign(t, turboKey, auth.ChannelTurbo, auth.Signed{Stream: "a"}), "", true, ""},
		{"for alice", auth.ChannelPubSub, sign(t, signKey, auth.ChannelPubSub, auth.Signed{Stream: "a", Subject: "alice"}), alice, true, ""},
		{"for alice, shown by bob", auth.ChannelPubSub, sign(t, signKey, auth.ChannelPubSub, auth.Signed{Stream: "a", Subject: "alice"}), bob, false, "unauthorized"},
		{"for alice, shown by nobody", auth.ChannelPubSub, sign(t, signKey, auth.ChannelPubSub, auth.Signed{Stream: "a", Subject: "alice"}), "", false, "unauthorized"},
		{"expired", auth.ChannelPubSub, sign(t, signKey, auth.ChannelPubSub, auth.Signed{Stream: "a", Expires: time.Now().Add(-time.Minute)}), "", false, "token_expired"},
		{"of a key that was taken away", auth.ChannelPubSub, sign(t, oldKey, auth.ChannelPubSub, auth.Signed{Stream: "a"}), "", false, "unauthorized"},
		{"of a stream that does not exist", auth.ChannelPubSub, sign(t, oldKey, auth.ChannelPubSub, auth.Signed{Stream: "nowhere"}), "", false, "unauthorized"},
		{"no signature at all", auth.ChannelPubSub, "a", "", false, "unauthorized"},
	} {
		var header []string
		if tt.token != "" {
			header = []string{"Authorization", "Bearer " + tt.token}
		}
		head := s.do("GET", "/signed/"+url.PathEscape(tt.signed), "", header...)
		page := s.do("GET", "/signed/"+url.PathEscape(tt.signed)+"/messages?limit=10", "", header...)
		for _, a := range []answer{head, page} {
			if tt.opens != (a.status == 200) || !strings.Contains(a.body, map[bool]string{true: `"stream":"a"`, false: `"error":"` + tt.code + `"`}[tt.opens]) {
				t.Errorf("%s: %d %s", tt.name, a.status, a.body)
			}
		}
		if tt.opens && !strings.Contains(page.body, `"data":1`) {
			t.Errorf("%s: %s", tt.name, page.body)
		}
		if a := s.do("POST", "/signed/"+url.PathEscape(tt.signed)+"/messages", "1", header...); a.status != 405 {
			t.Errorf("%s: published: %d %s", tt.name, a.status, a.body)
		}
		for _, level := range levels {
			ws, _ := s.connect(level, "", header...)
			got := ws.subscribeTo(signedIdentifier(tt.channel, tt.signed))
			if tt.opens != strings.Contains(got, `"confirm_subscription"`) || !tt.opens && !strings.Contains(got, `"reason":"`+tt.code+`"`) {
				t.Errorf("%s on %s: %s", tt.name, level, got)
			}
			// What opens a opens b under no name.
			if got := ws.subscribeTo(identifier("b")); !strings.Contains(got, `"reject_subscription"`) {
				t.Errorf("%s opens another stream: %s", tt.name, got)
			}
			other := map[string]string{auth.ChannelPubSub: auth.ChannelTurbo, auth.ChannelTurbo: auth.ChannelPubSub}[tt.channel]
			if got := ws.subscribeTo(signedIdentifier(other, tt.signed)); !strings.Contains(got, `"reason":"unauthorized"`) {
				t.Errorf("%s opens under another class: %s", tt.name, got)
			}
		}
	}
	if a := s.do("GET", "/streams/b/messages", "", "Authorization", "Bearer "+alice); a.status != 403 {
		t.Errorf("a token without streams reads b: %d %s", a.status, a.body)
	}
}
