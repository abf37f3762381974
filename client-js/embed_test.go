package clientjs

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, method, target string, header http.Header) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var imports = regexp.MustCompile(`(?m)^(?:import|export) [^'"=]*['"]([^'"]+)['"];?$`)

// Every import reachable from the entry must lead to a served module: a page
// has no resolver that could make up for a wrong path.
func TestHandler_EveryImportOfTheEntryIsServed(t *testing.T) {
	seen := map[string]bool{}
	var visit func(target string)
	visit = func(target string) {
		if seen[target] {
			return
		}
		seen[target] = true
		res := get(t, http.MethodGet, target, nil)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s", target, res.Status)
		}
		if got := res.Header.Get("Content-Type"); got != "text/javascript; charset=utf-8" {
			t.Errorf("GET %s: content type %q", target, got)
		}
		for _, m := range imports.FindAllStringSubmatch(body(t, res), -1) {
			if !strings.HasPrefix(m[1], "./") {
				t.Errorf("%s imports %q, which a browser cannot find", target, m[1])
			}
			visit(path.Join(path.Dir(target), m[1]))
		}
	}
	visit("/client.js")
	for _, want := range []string{"/client/index.js", "/client/stream-machine.js", "/client/connection.js", "/client/platform.js"} {
		if !seen[want] {
			t.Errorf("%s is not reached from the entry", want)
		}
	}
	if seen["/client/testing.js"] {
		t.Error("the client imports its test helpers")
	}
}

func TestHandler_TheMinifiedClientStandsAlone(t *testing.T) {
	text := body(t, get(t, http.MethodGet, "/client.min.js", nil))
	if !strings.Contains(text, "createClient") || imports.MatchString(text) {
		t.Errorf("/client.min.js is not the whole client: %.80q", text)
	}
}

func TestHandler_BrowsersAskAgainAndAreToldNothingChanged(t *testing.T) {
	for _, target := range []string{"/client.js", "/client/index.js", "/client.min.js"} {
		first := get(t, http.MethodGet, target, nil)
		tag := first.Header.Get("ETag")
		if tag == "" || first.Header.Get("Cache-Control") != "no-cache" {
			t.Fatalf("GET %s: ETag %q, Cache-Control %q", target, tag, first.Header.Get("Cache-Control"))
		}
		again := get(t, http.MethodGet, target, http.Header{"If-None-Match": {tag}})
		if again.StatusCode != http.StatusNotModified || body(t, again) != "" {
			t.Errorf("GET %s with its own ETag: %s", target, again.Status)
		}
		if changed := get(t, http.MethodGet, target, http.Header{"If-None-Match": {`"other"`}}); changed.StatusCode != http.StatusOK {
			t.Errorf("GET %s with another ETag: %s", target, changed.Status)
		}
	}
}

func TestHandler_OtherPathsAndMethods(t *testing.T) {
	for target, want := range map[string]int{
		"/client/":                        http.StatusNotFound,
		"/client/none.js":                 http.StatusNotFound,
		"/client/testing.js":              http.StatusNotFound,
		"/client/../embed.go":             http.StatusNotFound,
		"/client/%2e%2e/package.json":     http.StatusNotFound,
		"/src/index.js":                   http.StatusNotFound,
		"/client.js?version=irrelevant":   http.StatusOK,
		"/client/index.js?v=1":            http.StatusOK,
		"/dist/chronocast.min.js":         http.StatusNotFound,
		"/client/index.js/something-else": http.StatusNotFound,
	} {
		if res := get(t, http.MethodGet, target, nil); res.StatusCode != want {
			t.Errorf("GET %s: %s, want %d", target, res.Status, want)
		}
	}
	refused := map[string]*http.Response{
		"not_found":          get(t, http.MethodGet, "/client/none.js", nil),
		"method_not_allowed": get(t, http.MethodPut, "/client.js", nil),
	}
	for code, res := range refused {
		var e struct{ Error, Message string }
		text := body(t, res)
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Error != code || e.Message == "" || res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %q %s", code, res.Header.Get("Content-Type"), text)
		}
	}
	if res := get(t, http.MethodPut, "/client/none.js", nil); res.StatusCode != http.StatusNotFound {
		t.Errorf("PUT of nothing: %s", res.Status)
	}
	res := get(t, http.MethodPost, "/client.js", nil)
	if res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST /client.js: %s, Allow %q", res.Status, res.Header.Get("Allow"))
	}
	if res := get(t, http.MethodHead, "/client.js", nil); res.StatusCode != http.StatusOK || body(t, res) != "" {
		t.Errorf("HEAD /client.js: %s", res.Status)
	}
}
