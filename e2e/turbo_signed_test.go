package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const turboKey = "a verifier key of Turbo for these tests, as long as one"

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
		"streams": map[string]any{"read": []string{stream}},
	})
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// B16 with signed names, as Rails writes them: the unmodified tag of turbo-rails,
// read by its own client and by ours, and our element.
func TestB16_SignedPagesAreNotBornStale(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--turbo-key", turboKey, "--publish-key", "publish-me", "--origins", "http://127.0.0.1:*")
	a := openSite(t, s, s.ws())
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
