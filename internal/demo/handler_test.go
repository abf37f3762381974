package demo

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// setup serves a Demo whose publish blocks until the test ends, so that an
// answer once begun goes on.
func setup(t *testing.T, opts Options) (*httptest.Server, *Demo) {
	t.Helper()
	l := newLedger()
	d := New(l.publish, opts)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	srv := httptest.NewServer(d.Handler())
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	for running := false; !running; {
		d.mu.Lock()
		running = d.running
		d.mu.Unlock()
	}
	return srv, d
}

func do(t *testing.T, srv *httptest.Server, method, target, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, srv.URL+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func TestPageAndAssets(t *testing.T) {
	srv, d := setup(t, Options{})
	res, page := do(t, srv, "GET", "/", "")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("/: %d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	csp := res.Header.Get("Content-Security-Policy")
	if !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("policy %q", csp)
	}
	// What the policy forbids must not be in the page, or it would be dead.
	if m := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|<script>|https?://[^"]*\.(js|css|woff)`).FindString(page); m != "" {
		t.Errorf("the page holds %q", m)
	}
	found := 0
	for _, m := range regexp.MustCompile(`(?:src|href)="(/demo/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		found++
		res, _ := do(t, srv, "GET", m[1], "")
		want := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}[path.Ext(m[1])]
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != want {
			t.Errorf("%s: %d %s", m[1], res.StatusCode, res.Header.Get("Content-Type"))
		}
		if res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s may be sniffed", m[1])
		}
		again, body := do(t, srv, "GET", m[1], "", "If-None-Match", res.Header.Get("ETag"))
		if again.StatusCode != 304 || body != "" {
			t.Errorf("%s again: %d, %d bytes", m[1], again.StatusCode, len(body))
		}
	}
	if found < 3 {
		t.Errorf("the page names %d assets", found)
	}
	// Modules the scripts import must be there too.
	imports := regexp.MustCompile(`(?m)(?:from|import)\s+"\./([^"]+)"`)
	for name, f := range d.files() {
		for _, m := range imports.FindAllStringSubmatch(string(f.body), -1) {
			if _, ok := d.files()[path.Join(path.Dir(name), m[1])]; path.Ext(name) == ".js" && !ok {
				t.Errorf("%s imports %s, which is not served", name, m[1])
			}
		}
	}
	if res, body := do(t, srv, "HEAD", "/", ""); res.StatusCode != 200 || body != "" || res.ContentLength != int64(len(page)) {
		t.Errorf("HEAD /: %d, length %d", res.StatusCode, res.ContentLength)
	}
}

func TestTextIsServedByteForByte(t *testing.T) {
	srv, d := setup(t, Options{})
	res, body := do(t, srv, "GET", "/demo/text", "")
	if body != answerText || res.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%d bytes of %s", len(body), res.Header.Get("Content-Type"))
	}
	if got := res.Header.Get("Chronocast-Tokens"); got != strconv.Itoa(len(d.tokens)) {
		t.Errorf("tokens %q", got)
	}
}

func TestOrderIsAnswered(t *testing.T) {
	srv, d := setup(t, Options{})
	for name, body := range map[string]string{
		"nothing":      "",
		"white space":  " \n",
		"empty object": "{}",
		"rate":         `{"rate":400}`,
		"lowest rate":  `{"rate":5}`,
		"broken rate":  `{"rate":7.5}`,
		"stream":       `{"stream":"demo/größe 順序","rate":30,"from":0}`,
		"last token":   `{"stream":"demo/end","from":1}`,
	} {
		res, got := do(t, srv, "POST", "/demo/answers", body)
		var o ordered
		if err := json.Unmarshal([]byte(got), &o); err != nil || res.StatusCode != http.StatusAccepted {
			t.Fatalf("%s: %d %s", name, res.StatusCode, got)
		}
		if !strings.HasPrefix(o.Stream, "demo/") || o.Tokens != len(d.tokens) || o.Bytes != len(answerText) {
			t.Errorf("%s: %+v", name, o)
		}
	}
	// curl -d '' names a form, and still sends nothing.
	if res, got := do(t, srv, "POST", "/demo/answers", "", "Content-Type", "application/x-www-form-urlencoded"); res.StatusCode == http.StatusUnsupportedMediaType {
		t.Errorf("an empty form: %s", got)
	}
}

func TestOrderForTheSameStreamJoins(t *testing.T) {
	srv, _ := setup(t, Options{Answers: 1})
	if res, got := do(t, srv, "POST", "/demo/answers", `{"stream":"demo/one","rate":5}`); res.StatusCode != http.StatusAccepted {
		t.Fatalf("first: %d %s", res.StatusCode, got)
	}
	if res, got := do(t, srv, "POST", "/demo/answers", `{"stream":"demo/one","rate":6}`); res.StatusCode != http.StatusOK || !strings.Contains(got, `"demo/one"`) {
		t.Errorf("again: %d %s", res.StatusCode, got)
	}
	res, got := do(t, srv, "POST", "/demo/answers", `{"stream":"demo/two"}`)
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" || !strings.Contains(got, `"too_many_answers"`) {
		t.Errorf("another: %d %s", res.StatusCode, got)
	}
}

func TestBadInputIsRefusedInJSON(t *testing.T) {
	srv, d := setup(t, Options{})
	const post, answers = "POST", "/demo/answers"
	for _, tt := range []struct {
		name, method, target, body string
		header                     []string
		status                     int
		code                       string
	}{
		{"no such page", "GET", "/demo", "", nil, 404, "not_found"},
		{"no such asset", "GET", "/demo/assets/none.js", "", nil, 404, "not_found"},
		{"folder", "GET", "/demo/assets/", "", nil, 404, "not_found"},
		{"out of the folder", "GET", "/demo/assets/../answer.txt", "", nil, 404, "not_found"},
		{"post to the page", post, "/", "x", nil, 405, "method_not_allowed"},
		{"get an order", "GET", answers, "", nil, 405, "method_not_allowed"},
		{"not JSON", post, answers, "rate=5", nil, 400, "malformed"},
		{"cut JSON", post, answers, `{"rate":5`, nil, 400, "malformed"},
		{"array", post, answers, `[]`, nil, 400, "malformed"},
		{"two objects", post, answers, `{}{}`, nil, 400, "malformed"},
		{"unknown field", post, answers, `{"speed":5}`, nil, 400, "malformed"},
		{"rate as text", post, answers, `{"rate":"5"}`, nil, 400, "malformed"},
		{"broken from", post, answers, `{"from":1.5}`, nil, 400, "malformed"},
		{"form", post, answers, "rate=5", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"},
		{"large", post, answers, `{"stream":"` + strings.Repeat("a", maxOrderBytes) + `"}`, nil, 413, "too_large"},
		{"rate too low", post, answers, `{"rate":4.9}`, nil, 422, "invalid_rate"},
		{"rate zero", post, answers, `{"rate":0}`, nil, 422, "invalid_rate"},
		{"rate below zero", post, answers, `{"rate":-5}`, nil, 422, "invalid_rate"},
		{"rate too high", post, answers, `{"rate":401}`, nil, 422, "invalid_rate"},
		{"foreign stream", post, answers, `{"stream":"chat/42"}`, nil, 422, "invalid_stream"},
		{"bare prefix", post, answers, `{"stream":"demo/"}`, nil, 422, "invalid_stream"},
		{"control character", post, answers, `{"stream":"demo/a\u0000"}`, nil, 422, "invalid_stream"},
		{"long name", post, answers, `{"stream":"demo/` + strings.Repeat("é", 126) + `"}`, nil, 422, "invalid_stream"},
		{"from below zero", post, answers, `{"from":-1}`, nil, 422, "invalid_from"},
		{"from past the end", post, answers, `{"from":` + strconv.Itoa(len(d.tokens)+1) + `}`, nil, 422, "invalid_from"},
		{"other site", post, answers, "", []string{"Origin", "https://example.com", "Sec-Fetch-Site", "cross-site"}, 403, "forbidden_origin"},
		{"other origin, old browser", post, answers, "", []string{"Origin", "https://example.com"}, 403, "forbidden_origin"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, got := do(t, srv, tt.method, tt.target, tt.body, tt.header...)
			var e struct{ Error, Message string }
			if err := json.Unmarshal([]byte(got), &e); err != nil || res.Header.Get("Content-Type") != "application/json" {
				t.Fatalf("%d %s: %v", res.StatusCode, got, err)
			}
			if res.StatusCode != tt.status || e.Error != tt.code || e.Message == "" {
				t.Errorf("%d %s, want %d %s", res.StatusCode, got, tt.status, tt.code)
			}
			if res.StatusCode == 405 && res.Header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.answers) != 0 {
		t.Errorf("%d answers were begun by refused orders", len(d.answers))
	}
}

func TestOrderOutsideRunIsUnavailable(t *testing.T) {
	d := New(newLedger().publish, Options{})
	srv := httptest.NewServer(d.Handler())
	defer srv.Close()
	res, got := do(t, srv, "POST", "/demo/answers", "")
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !strings.Contains(got, `"unavailable"`) {
		t.Errorf("%d %s", res.StatusCode, got)
	}
	srv.CloseClientConnections()
}
