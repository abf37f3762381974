// Package clientjs carries the JavaScript client and serves it to browsers.
package clientjs

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed src/*.js src/turbo/*.js
var sources embed.FS

//go:embed dist/chronocast.min.js
var bundle []byte

//go:embed dist/chronocast-turbo.min.js
var turboBundle []byte

// entry is what a page imports. The modules lie one level deeper, so that
// their relative imports of each other hold.
const (
	entry      = `export * from "./client/index.js"` + "\n"
	turboEntry = `export * from "./client/turbo/index.js"` + "\n"
)

// Paths are the patterns to serve [Handler] under.
func Paths() []string {
	return []string{"/client.js", "/client.min.js", "/turbo.js", "/turbo.min.js", "/client/"}
}

// Handler serves the client as ES modules: /client.js is what pages import,
// /client/*.js are the modules behind it, and /client.min.js is all of it in
// one minified file; /turbo.js and /turbo.min.js are the same with the elements
// for Turbo. Pages of every origin may load them. A browser may keep them but
// asks each time whether they are still the ones of this server. Other paths
// are answered 404, other methods than GET and HEAD 405.
func Handler() http.Handler {
	files := map[string]file{
		"/client.js":     newFile([]byte(entry)),
		"/client.min.js": newFile(bundle),
		"/turbo.js":      newFile([]byte(turboEntry)),
		"/turbo.min.js":  newFile(turboBundle),
	}
	for _, dir := range []string{"src", "src/turbo"} {
		modules, err := sources.ReadDir(dir)
		if err != nil {
			panic("clientjs: " + err.Error()) // embedded at build time, so it is there
		}
		for _, m := range modules {
			if m.IsDir() || m.Name() == "testing.js" {
				continue // for tests, which import it from npm
			}
			name := path.Join(dir, m.Name())
			text, err := sources.ReadFile(name)
			if err != nil {
				panic("clientjs: " + err.Error())
			}
			files["/client"+strings.TrimPrefix(name, "src")] = newFile(text)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files[r.URL.Path]
		if !ok {
			refuse(w, http.StatusNotFound, "not_found", "there is nothing at this address")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, "method_not_allowed", "the methods here are GET, HEAD")
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/javascript; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.etag)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Access-Control-Allow-Origin", "*") // a page loads modules of another origin only so
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(f.text))
	})
}

// refuse answers like every other address of the server: a code and a sentence.
func refuse(w http.ResponseWriter, status int, code, message string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "{\"error\":%q,\"message\":%q}\n", code, message)
}

// file is one served text with its entity tag.
type file struct {
	text string
	etag string
}

func newFile(text []byte) file {
	sum := sha256.Sum256(text)
	return file{text: string(text), etag: `"` + hex.EncodeToString(sum[:8]) + `"`}
}
