package demo

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/chronocast/chronocast/protocol"
)

//go:embed assets
var assetFiles embed.FS

// maxOrderBytes bounds the body of an order.
const maxOrderBytes = 4 << 10

// contentPolicy lets the page load what this server serves and talk to this
// server, and nothing else: no inline script or style, no frame, no form.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is one thing served as it is.
type file struct {
	body        []byte
	contentType string
	etag        string
}

func newFile(name string, body []byte) file {
	sum := sha256.Sum256(body)
	return file{body: body, contentType: contentType(name), etag: `"` + hex.EncodeToString(sum[:12]) + `"`}
}

// contentType does not ask the operating system's table, so that a module is
// served as JavaScript wherever the binary runs.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	default:
		return "text/plain; charset=utf-8"
	}
}

// files reads what is embedded, by URL path.
func (d *Demo) files() map[string]file {
	files := map[string]file{"/demo/text": newFile("answer.txt", []byte(d.text))}
	// The tree is part of the binary: reading it cannot fail.
	_ = fs.WalkDir(assetFiles, "assets", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		body, err := assetFiles.ReadFile(name)
		if name == "assets/index.html" {
			files["/"] = newFile(name, body)
		} else {
			files["/demo/"+name] = newFile(name, body)
		}
		return err
	})
	return files
}

// Handler serves the page at /, its files under /demo/assets/, the source text
// at /demo/text and takes orders at POST /demo/answers. Any other path is 404.
func (d *Demo) Handler() http.Handler {
	files := d.files()
	// A page of another site must not make the demo write. Requests without
	// an Origin (curl, other programs) pass.
	guard := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Content-Security-Policy", contentPolicy)
		if r.URL.Path == "/demo/answers" {
			if r.Method != http.MethodPost {
				methodNotAllowed(w, "POST")
				return
			}
			if err := guard.Check(r); err != nil {
				writeError(w, http.StatusForbidden, "forbidden_origin", "answers are ordered from the demo's own page, or without an Origin header")
				return
			}
			d.serveOrder(w, r)
			return
		}
		f, ok := files[r.URL.Path]
		if !ok {
			writeError(w, http.StatusNotFound, "not_found", "no such page")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			methodNotAllowed(w, "GET, HEAD")
			return
		}
		if r.URL.Path == "/demo/text" {
			h.Set("Chronocast-Tokens", strconv.Itoa(len(d.tokens)))
		}
		f.serve(w, r)
	})
}

// serve answers with the file. A browser keeps it but asks each time whether
// it is still good: the page must never run with the scripts of another version.
func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.etag)
	for tag := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(tag), "W/") == f.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	h.Set("Content-Length", strconv.Itoa(len(f.body)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		// A reader that has gone away is no concern of ours.
		_, _ = w.Write(f.body)
	}
}

// order is the body of POST /demo/answers. All of it may be left out.
type order struct {
	Stream string   `json:"stream"` // must begin with StreamPrefix; default a fresh one
	Rate   *float64 `json:"rate"`   // tokens a second
	From   *int     `json:"from"`   // index of the first token, to finish an answer that was cut off
}

// ordered answers an order.
type ordered struct {
	Stream string `json:"stream"`
	Tokens int    `json:"tokens"`
	Bytes  int    `json:"bytes"`
}

// serveOrder begins an answer: 202. An order for a stream whose answer is being
// written changes its rate: 200.
func (d *Demo) serveOrder(w http.ResponseWriter, r *http.Request) {
	o, refusal := readOrder(w, r)
	if refusal == nil {
		refusal = d.check(o)
	}
	if refusal != nil {
		writeError(w, refusal.status, refusal.code, refusal.message)
		return
	}
	rate, from := 0.0, 0
	if o.Rate != nil {
		rate = *o.Rate
	}
	if o.From != nil {
		from = *o.From
	}
	stream, begun, err := d.order(o.Stream, rate, from)
	switch {
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", "5")
		writeError(w, http.StatusTooManyRequests, "too_many_answers",
			fmt.Sprintf("%d answers are being written already", d.opts.Answers))
		return
	case err != nil:
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, "unavailable", "the demo is starting or stopping")
		return
	}
	status := http.StatusOK
	if begun {
		status = http.StatusAccepted
	}
	writeJSON(w, status, ordered{Stream: stream, Tokens: len(d.tokens), Bytes: len(d.text)})
}

// refusal is why an order is not taken.
type refusal struct {
	status        int
	code, message string
}

func readOrder(w http.ResponseWriter, r *http.Request) (order, *refusal) {
	var o order
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxOrderBytes))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return o, &refusal{http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("an order is at most %d bytes", maxOrderBytes)}
	}
	if err != nil {
		return o, &refusal{http.StatusBadRequest, "malformed", "the body could not be read to its end"}
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return o, nil
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return o, &refusal{http.StatusUnsupportedMediaType, "unsupported_media_type", "send the order as application/json"}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&o); err != nil {
		return o, &refusal{http.StatusBadRequest, "malformed", `an order is a JSON object with "stream", "rate" and "from", each optional`}
	}
	if _, err := dec.Token(); err != io.EOF {
		return o, &refusal{http.StatusBadRequest, "malformed", "there is more after the JSON object"}
	}
	return o, nil
}

func (d *Demo) check(o order) *refusal {
	unprocessable := func(code, message string) *refusal {
		return &refusal{http.StatusUnprocessableEntity, code, message}
	}
	if o.Stream != "" {
		if err := protocol.CheckStream(o.Stream); err != nil {
			return unprocessable("invalid_stream", "a stream name is 1 to 255 bytes of UTF-8 without control characters")
		}
		if !strings.HasPrefix(o.Stream, StreamPrefix) || o.Stream == StreamPrefix {
			return unprocessable("invalid_stream", "the demo publishes only to streams named "+StreamPrefix+"…")
		}
	}
	if o.Rate != nil && !(*o.Rate >= MinRate && *o.Rate <= MaxRate) {
		return unprocessable("invalid_rate", fmt.Sprintf("rate is a number from %d to %d tokens a second", MinRate, MaxRate))
	}
	if o.From != nil && (*o.From < 0 || *o.From > len(d.tokens)) {
		return unprocessable("invalid_from", fmt.Sprintf("from is the index of a token, 0 to %d", len(d.tokens)))
	}
	return nil
}

func methodNotAllowed(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	writeError(w, http.StatusMethodNotAllowed, "method_not_allowed", "this path answers to "+allow)
}

func writeError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, struct {
		Error   string `json:"error"`
		Message string `json:"message"`
	}{code, message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	// Only plain structs of strings and numbers come here; they always encode.
	_ = e.Encode(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}
