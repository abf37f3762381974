package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

const turboKey = "a-verifier-key-of-Turbo-for-these-tests-as-long-as-one"

// turboName signs a stream's name as Rails does for turbo_stream_from.
func turboName(stream string) string {
	text, _ := json.Marshal(stream)
	data := base64.StdEncoding.EncodeToString(text)
	mac := hmac.New(sha256.New, []byte(turboKey))
	mac.Write([]byte(data))
	return data + "--" + hex.EncodeToString(mac.Sum(nil))
}

// jwt makes a token for one stream, signed with the secret, good for so long.
func jwt(secret, sub, stream string, good time.Duration) string {
	part := func(v any) string {
		b, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	text := part(map[string]any{"alg": "HS256", "typ": "JWT"}) + "." + part(map[string]any{
		"sub": sub, "exp": float64(time.Now().Add(good).UnixMilli()) / 1000,
		"streams": []string{stream},
	})
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// openSecured starts a server that lets nobody in without a key, and an
// application for it that has one.
func openSecured(t *testing.T, flags ...string) *site {
	t.Helper()
	s := unstartedServer(t, append(flags, "--publish-key", "a-key-to-publish-with")...)
	a := openSite(t, s, s.ws())
	s.extra = append(s.extra, "--origins", a.http.URL)
	for _, client := range []*http.Client{s.http, a.p.client} {
		client.Transport = keyed{client.Transport.(*http.Transport), "a-key-to-publish-with"}
	}
	s.start()
	return a
}

// keyed sends a key along with every request.
type keyed struct {
	*http.Transport
	key string
}

func (b keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.key)
	return b.Transport.RoundTrip(r)
}

// B16 with signed names, as Rails writes them: the unmodified tag of turbo-rails,
// read by its own client and by ours, and our element.
func TestB16_SignedPagesAreNotBornStale(t *testing.T) {
	t.Parallel()
	a := openSecured(t, "--turbo-key", turboKey)
	for _, kind := range []string{"ours", "takeover", "stock"} {
		stream := "signed/" + kind
		a.addSome(stream, 4)
		b := a.open(kind, stream, "born", "3", "name", turboName(stream))
		b.connected()
		b.shows(a.all(stream), 10*time.Second)
		a.addSome(stream, 3)
		b.shows(a.all(stream), 10*time.Second)
		b.noComplaints(false)
	}
	// Any other name is refused, and the element says so.
	b := a.open("ours", "signed/other", "name", strings.Replace(turboName("signed/other"), "--", "--0", 1))
	b.until(10*time.Second, `source().getAttribute("state") === "rejected" && told.some(([name, code]) => name === "error" && code === "rejected")`)
}

// B140, B142: a token runs out every few seconds, while the page is hidden too.
// The page asks the application for another and goes on where it was. When the
// application gives none, nothing is delivered after the end, the page says that
// it is offline, and it comes back by itself when there are tokens again.
func TestB140_B142_AHiddenPageOutlivesItsTokens(t *testing.T) {
	t.Parallel()
	const secret, stream = "a secret that signs tokens, at least 32 bytes long", "private/1"
	a := openSecured(t, "--jwt-key", "HS256:"+secret)
	a.token = func() string { return jwt(secret, "alice", stream, 4*time.Second) }
	n := openTabs(t)
	b := inTab(t, n, a.url("ours", stream, "token", "1"))
	other := inTab(t, n, "about:blank")
	b.connected()
	other.call("front", nil, nil)
	b.until(10*time.Second, `document.hidden`)
	stop := a.steadily(stream, 100*time.Millisecond)
	b.until(60*time.Second, `asked >= 3`)

	a.mu.Lock()
	a.token = nil
	a.mu.Unlock()
	b.until(20*time.Second, `source().getAttribute("state") === "offline"`)
	before := len(b.list())
	pause(6 * time.Second)
	if after := len(b.list()); after != before {
		t.Errorf("%d items came without a token", after-before)
	}
	a.mu.Lock()
	a.token = func() string { return jwt(secret, "alice", stream, time.Hour) }
	a.mu.Unlock()
	b.until(40*time.Second, `source().getAttribute("state") === "live"`)
	stop()
	b.shows(a.all(stream), 10*time.Second)
	var hidden bool
	if b.eval(`document.hidden`, &hidden); !hidden {
		t.Error("the page was not hidden throughout")
	}
}
