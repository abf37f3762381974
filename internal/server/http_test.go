package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

const jsonType = "application/json"

// page is the answer of the history endpoint.
type page struct {
	Stream      string
	Epoch       string
	First, Last uint64
	More        bool
	Messages    []struct {
		Offset uint64
		Data   json.RawMessage
		At     int64
	}
}

func (s *stack) page(stream, query string) page {
	s.t.Helper()
	a := s.do("GET", "/streams/"+escape(stream)+"/messages"+query, "")
	if a.status != http.StatusOK {
		s.t.Fatalf("history of %q%s: %d %s", stream, query, a.status, a.body)
	}
	var p page
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// TestHTTP_AnswersAndRefusals: one table of requests, each refusal a JSON
// object with its code, and nothing stored by any of them.
func TestHTTP_AnswersAndRefusals(t *testing.T) {
	s := newStack(t, func(o *Options) {
		o.MaxPayloadBytes, o.MaxBroadcastBytes, o.MaxBroadcastItems = 2000, 5000, 3
		o.Pages = map[string]http.Handler{
			"/":      http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "home") }),
			"/demo/": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "demo ", r.URL.Path) }),
		}
	})
	s.publish("a", "1")
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	tests := []struct {
		method, path, body string
		header             []string
		status             int
		code               string
	}{
		{"POST", "/streams/a/messages", `{"a":1`, []string{"Content-Type", jsonType}, 422, "bad_payload"},
		{"POST", "/streams/a/messages", ``, []string{"Content-Type", jsonType}, 422, "bad_payload"},
		{"POST", "/streams/a/messages", "\"\xff\"", []string{"Content-Type", jsonType}, 422, "bad_payload"},
		{"POST", "/streams/a/messages", `1 2`, []string{"Content-Type", jsonType}, 422, "bad_payload"},
		{"POST", "/streams/a/messages", deep, []string{"Content-Type", jsonType}, 422, "bad_payload"},
		{"POST", "/streams/a/messages", `hello`, nil, 422, "bad_payload"},
		{"POST", "/streams/a/messages", "caf\xe9", []string{"Content-Type", "text/plain"}, 422, "bad_payload"},
		{"POST", "/streams/a/messages", "x", []string{"Content-Type", "text/plain; charset=iso-8859-1"}, 415, "unsupported_media_type"},
		{"POST", "/streams/a/messages", "a=b", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"},
		{"POST", "/streams/a/messages", "1", []string{"Content-Type", "application/octet-stream"}, 415, "unsupported_media_type"},
		{"POST", "/streams/a/messages", "1", []string{"Content-Type", ";;"}, 415, "unsupported_media_type"},
		{"POST", "/streams/a/messages", "1", []string{"Content-Type", jsonType, "Content-Encoding", "gzip"}, 415, "unsupported_media_type"},
		{"POST", "/streams/a/messages", `"` + strings.Repeat("x", 2000) + `"`, []string{"Content-Type", jsonType}, 413, "too_large"},
		{"POST", "/streams/a/messages", strings.Repeat(`"`, 1500), []string{"Content-Type", "text/plain"}, 413, "too_large"},
		// B86: a key that is none.
		{"POST", "/streams/a/messages", "1", []string{"Content-Type", jsonType, "Idempotency-Key", ""}, 422, "bad_key"},
		{"POST", "/streams/a/messages", "1", []string{"Content-Type", jsonType, "Idempotency-Key", "  "}, 422, "bad_key"},
		{"POST", "/streams/a/messages", "1", []string{"Content-Type", jsonType, "Idempotency-Key", strings.Repeat("k", 256)}, 422, "bad_key"},
		{"POST", "/streams/a/messages", "1", []string{"Content-Type", jsonType, "Idempotency-Key", "a", "Idempotency-Key", "b"}, 422, "bad_key"},
		{"POST", "/streams//messages", "1", []string{"Content-Type", jsonType}, 400, "malformed"},
		{"POST", "/streams/" + strings.Repeat("x", 256) + "/messages", "1", []string{"Content-Type", jsonType}, 400, "malformed"},
		{"POST", "/streams/%00/messages", "1", []string{"Content-Type", jsonType}, 400, "malformed"},
		{"POST", "/streams/%ff/messages", "1", []string{"Content-Type", jsonType}, 400, "malformed"},
		{"POST", "/streams/a%0Ab/messages", "1", []string{"Content-Type", jsonType}, 400, "malformed"},
		{"GET", "/streams/", "", nil, 400, "malformed"},
		{"GET", "/streams/a/b/messages", "", nil, 404, "not_found"},
		{"GET", "/streams/a/", "", nil, 404, "not_found"},
		{"GET", "/streams", "", nil, 404, "not_found"},
		{"GET", "/nowhere", "", nil, 404, "not_found"},
		{"GET", "/demo", "", nil, 404, "not_found"},
		{"PUT", "/streams/a/messages", "1", nil, 405, "method_not_allowed"},
		{"DELETE", "/streams/a", "", nil, 405, "method_not_allowed"},
		{"POST", "/streams/a", "", nil, 405, "method_not_allowed"},
		{"GET", "/broadcast", "", nil, 405, "method_not_allowed"},
		{"POST", "/cable", "", nil, 405, "method_not_allowed"},
		{"HEAD", "/cable", "", nil, 405, ""},
		{"GET", "/cable", "", nil, 426, "upgrade_required"},
		{"GET", "/streams/a/messages?limit=0", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?limit=-1", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?limit=%2B1", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?limit=10001", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?limit=99999999999999999999", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?limit=", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?limit=1&limit=2", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?after=%zz", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?after=1;limit=2", "", nil, 400, "malformed"},
		// B32: ids that were never given out.
		{"GET", "/streams/a/messages?after=", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?after=-1", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?after=x", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?after=01", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?after=9007199254740992", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?after=99999999999999999999999", "", nil, 400, "malformed"},
		{"GET", "/streams/a/messages?after=9007199254740991", "", nil, 410, "ahead"},
		{"GET", "/streams/a/messages?after=2", "", nil, 410, "ahead"},
		{"GET", "/streams/a/messages?after=1:1", "", nil, 410, "epoch_changed"},
		{"POST", "/broadcast", `{"stream":"a"}`, []string{"Content-Type", jsonType}, 422, "bad_broadcast"},
		{"POST", "/broadcast", `{"stream":"a","data":{"x":1}}`, []string{"Content-Type", jsonType}, 422, "bad_broadcast"},
		{"POST", "/broadcast", `[]`, []string{"Content-Type", jsonType}, 422, "bad_broadcast"},
		{"POST", "/broadcast", `7`, nil, 422, "bad_broadcast"},
		{"POST", "/broadcast", `nonsense`, nil, 422, "bad_broadcast"},
		{"POST", "/broadcast", `{"command":"disconnect","payload":{}}`, nil, 422, "unsupported"},
		{"POST", "/broadcast", `{"stream":"","data":"1"}`, nil, 400, "malformed"},
		{"POST", "/broadcast", `{"stream":"a","data":"\ud800"}`, nil, 422, "bad_payload"},
		{"POST", "/broadcast", `[{"stream":"a","data":"1"},{"stream":"a","data":"1"},{"stream":"a","data":"1"},{"stream":"a","data":"1"}]`, nil, 422, "too_many_broadcasts"},
		{"POST", "/broadcast", `{"stream":"a","data":"` + strings.Repeat("x", 2001) + `"}`, nil, 413, "too_large"},
		{"POST", "/broadcast", strings.Repeat(" ", 5001), nil, 413, "too_large"},
		{"POST", "/broadcast", `{"stream":"a","data":"1"}`, []string{"Content-Type", "text/plain"}, 415, "unsupported_media_type"},
		{"POST", "/broadcast", `{"stream":"a","data":"1"}`, []string{"Idempotency-Key", strings.Repeat("k", 255)}, 422, "bad_key"},
		{"GET", "/healthz", "", []string{"Host", "evil.example"}, 403, "forbidden"},
		{"GET", "/streams/a", "", []string{"Origin", "https://evil.example"}, 403, "forbidden"},

		{"GET", "/healthz", "", nil, 200, ""},
		{"HEAD", "/healthz", "", nil, 200, ""},
		{"GET", "/readyz", "", nil, 200, ""},
		{"GET", "/metrics", "", nil, 200, ""},
		{"GET", "/", "", nil, 200, ""},
		{"GET", "/demo/x/y.js", "", nil, 200, ""},
		{"GET", "/streams/a", "", nil, 200, ""},
		{"HEAD", "/streams/a/messages", "", nil, 200, ""},
		{"GET", "/streams/..", "", nil, 200, ""},
		{"GET", "/streams/%2e%2e/messages", "", nil, 200, ""},
		{"OPTIONS", "/streams/a/messages", "", nil, 204, ""},
	}
	for _, tt := range tests {
		a := s.do(tt.method, tt.path, tt.body, tt.header...)
		var e struct{ Error, Message string }
		name := fmt.Sprintf("%s %.60s %.40q %.60q", tt.method, tt.path, tt.body, tt.header)
		if a.status != tt.status {
			t.Errorf("%s: %d %s, want %d", name, a.status, a.body, tt.status)
			continue
		}
		if a.status < 400 || tt.code == "" {
			continue
		}
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Error != tt.code || e.Message == "" {
			t.Errorf("%s: body %s, want error %q", name, a.body, tt.code)
		}
		if ct := a.header.Get("Content-Type"); ct != jsonType {
			t.Errorf("%s: content type %q", name, ct)
		}
	}
	if last := s.last("a"); last != 1 {
		t.Errorf("the refusals took offsets: the last is %d", last)
	}
}

// TestHTTP_PublishedBytesComeBack: JSON as it is, text as one JSON string, on
// every path that reads it.
func TestHTTP_PublishedBytesComeBack(t *testing.T) {
	s := newStack(t, nil)
	c := s.dial(protocol.SubprotocolPlain)
	c.subscribe("a")
	tests := []struct{ contentType, body, data string }{
		{jsonType, `{"html":"<b>&amp;</b>","big":12345678901234567890,"n":1.0}`, ""},
		{jsonType, "{\n  \"pretty\" : [ 1, 2 ]\n}", ""},
		{"application/vnd.api+json; charset=UTF-8", `"\u0000\ud83d\ude00"`, ""},
		{jsonType, `false`, ""},
		{jsonType, `null`, ""},
		{jsonType, `""`, ""},
		{"", `[0]`, ""},
		{"text/plain", ``, `""`},
		{"text/plain; charset=utf-8", "two\nlines \"quoted\" <b> 語 \u2028", `"two\nlines \"quoted\" <b> 語 ` + "\u2028" + `"`},
		{"text/vnd.turbo-stream.html", `<turbo-stream action="append"></turbo-stream>`, `"<turbo-stream action=\"append\"></turbo-stream>"`},
	}
	for i, tt := range tests {
		var header []string
		if tt.contentType != "" {
			header = []string{"Content-Type", tt.contentType}
		}
		want := tt.data
		if want == "" {
			want = tt.body
		}
		a := s.do("POST", "/streams/a/messages", tt.body, header...)
		if a.status != http.StatusCreated {
			t.Fatalf("%q: %d %s", tt.body, a.status, a.body)
		}
		p := positionOf(t, a.body)
		if p.Offset != uint64(i+1) {
			t.Fatalf("%q: offset %d, want %d", tt.body, p.Offset, i+1)
		}
		e := c.next()
		if e.Data != want || e.Position != p {
			t.Errorf("socket: %q at %v, want %q at %v", e.Data, e.Position, want, p)
		}
		body := s.do("GET", fmt.Sprintf("/streams/a/messages?after=%d:%d", p.Epoch, i), "").body
		if !strings.Contains(body, `"data":`+want+`,"at":`) {
			t.Errorf("history: %s, want %q in it", body, want)
		}
	}
}

// TestB91_Sizes: up to the limit bytes in are bytes out, one more is refused
// and takes no offset. 8,000 is what another transport could not carry.
func TestB91_Sizes(t *testing.T) {
	s := newStack(t, nil)
	const limit = 1 << 20
	c := s.dial(protocol.SubprotocolChronocast)
	c.subscribe("a")
	offset := uint64(0)
	for _, size := range []int{7999, 8000, 8001, 64 << 10, limit - 1, limit} {
		data := `"` + strings.Repeat("x", size-2) + `"`
		if p := s.publish("a", data); p.Offset != offset+1 {
			t.Fatalf("%d bytes: offset %d", size, p.Offset)
		}
		if e := c.next(); e.Data != data || e.Position.Offset != offset+1 {
			t.Fatalf("%d bytes: %d bytes at %d on the socket", size, len(e.Data), e.Position.Offset)
		}
		if p := s.page("a", "?after="+strconv.FormatUint(offset, 10)); string(p.Messages[0].Data) != data {
			t.Fatalf("%d bytes: %d bytes in history", size, len(p.Messages[0].Data))
		}
		offset++
	}
	tooLarge := `"` + strings.Repeat("x", limit-1) + `"`
	if a := s.do("POST", "/streams/a/messages", tooLarge, "Content-Type", jsonType); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d bytes: %d %s", len(tooLarge), a.status, a.body)
	}
	// And when the request does not say how long it is.
	r, err := http.NewRequest("POST", "http://"+s.addr+"/streams/a/messages", struct{ *bytes.Reader }{bytes.NewReader([]byte(tooLarge))})
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = -1
	r.Header.Set("Content-Type", jsonType)
	w, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	w.Body.Close()
	if w.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("chunked: %d", w.StatusCode)
	}
	if last := s.last("a"); last != offset {
		t.Errorf("last offset %d, want %d: the refused one took an offset", last, offset)
	}
}

// TestB92_Names: bytes, not characters, and each stream gets only its own.
func TestB92_Names(t *testing.T) {
	s := newStack(t, nil)
	long := strings.Repeat("p", 63)
	names := []string{
		strings.Repeat("語", 22), strings.Repeat("x", 63), strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("y", 255),
		strings.Repeat("語", 85), long + "1", long + "2", "chat/42", "chat%2F42", "a b+c?d#e&f", "..", ".", "/", "%", "messages", "ünï", "u\u0308",
		`"quoted"\`, "<b>", "😀",
	}
	for i, name := range names {
		s.publish(name, strconv.Itoa(i))
	}
	c := s.dial(protocol.SubprotocolExtended)
	for i, name := range names {
		p := s.page(name, "")
		if p.Stream != name || len(p.Messages) != 1 || string(p.Messages[0].Data) != strconv.Itoa(i) {
			t.Errorf("history of %q: %+v", name, p)
		}
		c.send(command("subscribe", name, historyOf(name, protocol.Position{Epoch: s.store.Epoch()})))
		if at := c.confirmed(); at.Offset != 1 {
			t.Errorf("%q confirmed at %v", name, at)
		}
		if e := c.next(); e.Stream != name || e.Data != strconv.Itoa(i) || e.Identifier != identifier(name) {
			t.Errorf("replay of %q: %+v", name, e)
		}
		if e := c.next(); e.Type != "confirm_history" {
			t.Errorf("after the replay of %q: %+v", name, e)
		}
	}
}

// TestB115_BadPayloadLeavesNoTrace.
func TestB115_BadPayloadLeavesNoTrace(t *testing.T) {
	s := newStack(t, nil)
	c := s.dial(protocol.SubprotocolPlain)
	c.subscribe("a")
	for _, bad := range []string{"{", "\"\xc3\"", `{"a":}`, `"\x"`} {
		if a := s.do("POST", "/streams/a/messages", bad, "Content-Type", jsonType); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%q: %d", bad, a.status)
		}
	}
	for i := range 100 {
		if p := s.publish("a", strconv.Itoa(i)); p.Offset != uint64(i+1) {
			t.Fatalf("message %d has offset %d", i, p.Offset)
		}
	}
	ascending(t, 0, c.messages(100))
}

// TestB53_RepeatOfAKey: the same answer, nothing stored, no hole for anybody.
func TestB53_RepeatOfAKey(t *testing.T) {
	s := newStack(t, nil)
	c := s.dial(protocol.SubprotocolPlain)
	c.subscribe("a")
	key := []string{"Content-Type", jsonType, "Idempotency-Key", "k1"}
	first := s.do("POST", "/streams/a/messages", `{"n":1}`, key...)
	again := s.do("POST", "/streams/a/messages", `{"n":1}`, key...)
	if first.status != 201 || again.status != 200 || first.body != again.body {
		t.Errorf("first %d %s, again %d %s", first.status, first.body, again.status, again.body)
	}
	other := s.do("POST", "/streams/a/messages", `{"n":2}`, key...)
	if other.status != 409 || !strings.Contains(other.body, `"key_conflict"`) {
		t.Errorf("other body: %d %s", other.status, other.body)
	}
	// B86: the same key on another stream is another key.
	if b := s.do("POST", "/streams/b/messages", `{"n":1}`, key...); b.status != 201 {
		t.Errorf("other stream: %d %s", b.status, b.body)
	}
	s.publish("a", `{"n":3}`)
	got := c.messages(2)
	ascending(t, 0, got)
	if got[1].Data != `{"n":3}` {
		t.Errorf("second message %s", got[1].Data)
	}
	if span, want := s.do("GET", "/streams/a", "").body, `"last":2}`; !strings.HasSuffix(span, want) {
		t.Errorf("head %s, want %s", span, want)
	}
}

// TestHTTP_Broadcast: AnyCable's format, one and many, all or nothing.
func TestHTTP_Broadcast(t *testing.T) {
	s := newStack(t, nil)
	one := s.do("POST", "/_broadcast", `{"stream":"a","data":"{\"x\":\"<b>\"}","meta":{"exclude_socket":"x"}}`)
	if want := fmt.Sprintf(`{"stream":"a","epoch":"%d","offset":1}`, s.store.Epoch()); one.status != 201 || one.body != want {
		t.Errorf("one: %d %s, want %s", one.status, one.body, want)
	}
	batch := `[{"stream":"a","data":"plain text"},{"stream":"b","data":"7"},{"stream":"a","data":"8"}]`
	many := s.do("POST", "/broadcast", batch, "Idempotency-Key", "k")
	want := fmt.Sprintf(`[{"stream":"a","epoch":"%[1]d","offset":2},{"stream":"b","epoch":"%[1]d","offset":1},{"stream":"a","epoch":"%[1]d","offset":3}]`, s.store.Epoch())
	if many.status != 201 || many.body != want {
		t.Errorf("many: %d %s, want %s", many.status, many.body, want)
	}
	if again := s.do("POST", "/broadcast", batch, "Idempotency-Key", "k"); again.status != 200 || again.body != want {
		t.Errorf("again: %d %s", again.status, again.body)
	}
	// The second item conflicts, so nothing of the first is stored either.
	other := `[{"stream":"a","data":"plain text"},{"stream":"b","data":"changed"},{"stream":"c","data":"8"}]`
	if a := s.do("POST", "/broadcast", other, "Idempotency-Key", "k"); a.status != 409 {
		t.Errorf("conflict: %d %s", a.status, a.body)
	}
	if last := s.last("c"); last != 0 {
		t.Errorf("a part of a refused request was stored")
	}
	var data []string
	for _, m := range s.page("a", "").Messages {
		data = append(data, string(m.Data))
	}
	if want := []string{`{"x":"<b>"}`, `"plain text"`, `8`}; !slices.Equal(data, want) {
		t.Errorf("stored %q, want %q", data, want)
	}
}

// TestB41_PagesOfOne: a hundred messages of one transaction, so of one time,
// read one by one.
func TestB41_PagesOfOne(t *testing.T) {
	s := newStack(t, nil)
	items := make([]string, 100)
	for i := range items {
		items[i] = fmt.Sprintf(`{"stream":"a","data":"%d"}`, i)
	}
	s.do("POST", "/broadcast", "["+strings.Join(items, ",")+"]")
	after := ""
	for i := range 100 {
		p := s.page("a", "?limit=1"+after)
		if len(p.Messages) != 1 || string(p.Messages[0].Data) != strconv.Itoa(i) || p.More != (i < 99) {
			t.Fatalf("page %d: %+v", i, p)
		}
		after = fmt.Sprintf("&after=%s:%d", p.Epoch, p.Messages[0].Offset)
	}
	if p := s.page("a", "?limit=1"+after); len(p.Messages) != 0 || p.More {
		t.Errorf("after the last: %+v", p)
	}
}

// TestB38_PagesGoUpward: far behind, the next page begins where the last one
// ended, whatever was published meanwhile, also where bytes end the page.
func TestB38_PagesGoUpward(t *testing.T) {
	s := newStack(t, func(o *Options) { o.MaxPageBytes = 1000 })
	items := make([]string, 700)
	for i := range items {
		items[i] = fmt.Sprintf(`{"stream":"a","data":"%0100d"}`, i+1)
	}
	s.do("POST", "/broadcast", "["+strings.Join(items, ",")+"]")
	s.publish("a", `"`+strings.Repeat("large", 1000)+`"`) // larger than a page may be
	next, after := uint64(1), "0"
	for more := true; more; {
		p := s.page("a", "?limit=50&after="+after)
		if len(p.Messages) == 0 || len(p.Messages) > 50 {
			t.Fatalf("a page of %d messages after %s", len(p.Messages), after)
		}
		for _, m := range p.Messages {
			if m.Offset != next {
				t.Fatalf("offset %d where %d is due", m.Offset, next)
			}
			next++
		}
		if next == 301 || next == 100 {
			s.publish("a", `"meanwhile"`)
		}
		after, more = strconv.FormatUint(next-1, 10), p.More
	}
	if want := s.last("a") + 1; next != want {
		t.Errorf("ended before %d, the stream before %d", next, want)
	}
}

// TestB40_RangesKeepNothing: whatever was asked before, the union of odd,
// overlapping and reversed ranges is complete.
func TestB40_RangesKeepNothing(t *testing.T) {
	s := newStack(t, nil)
	for i := range 60 {
		s.publish("a", strconv.Itoa(i+1))
	}
	seen := make(map[uint64]string)
	for _, r := range [][2]int{{50, 20}, {3, 7}, {40, 15}, {0, 5}, {9, 1}, {5, 10}, {11, 30}, {55, 100}, {12, 2}} {
		for i, m := range s.page("a", fmt.Sprintf("?after=%d&limit=%d", r[0], r[1])).Messages {
			if m.Offset != uint64(r[0]+i+1) {
				t.Fatalf("range %v: offset %d at place %d", r, m.Offset, i)
			}
			seen[m.Offset] = string(m.Data)
		}
	}
	for i := range uint64(60) {
		if seen[i+1] != strconv.FormatUint(i+1, 10) {
			t.Errorf("offset %d: %q", i+1, seen[i+1])
		}
	}
}

// TestB31_TrimmedIsToldWithAWayOn: the answer names the first message kept.
func TestB31_TrimmedIsToldWithAWayOn(t *testing.T) {
	s := newStack(t, nil)
	for i := range 20 {
		s.publish("a", strconv.Itoa(i+1))
	}
	for {
		more, err := s.store.Trim(t.Context(), history.Retention{Default: history.Limits{Count: 5}})
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
	}
	a := s.do("GET", "/streams/a/messages?after=0", "")
	var gone struct {
		Error, Message, Stream, Epoch string
		First, Last                   uint64
	}
	if err := json.Unmarshal([]byte(a.body), &gone); err != nil {
		t.Fatal(err)
	}
	if a.status != http.StatusGone || gone.Error != "trimmed" || gone.First != 16 || gone.Last != 20 || gone.Stream != "a" || gone.Epoch != s.store.Epoch().String() {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a.header.Get("Cache-Control") != "no-store" {
		t.Error("the answer may be cached")
	}
	if p := s.page("a", fmt.Sprintf("?after=%d", gone.First-1)); len(p.Messages) != 5 || p.First != 16 {
		t.Errorf("from the first kept: %+v", p)
	}
	if p := s.page("a", ""); len(p.Messages) != 5 || p.Messages[0].Offset != 16 {
		t.Errorf("without a position: %+v", p)
	}
}

// TestB62_PositionBeforeAnyMessage: the head and an empty page tell where to
// begin, and beginning there misses nothing.
func TestB62_PositionBeforeAnyMessage(t *testing.T) {
	s := newStack(t, nil)
	head := s.do("GET", "/streams/new", "")
	want := fmt.Sprintf(`{"stream":"new","epoch":"%d","first":1,"last":0}`, s.store.Epoch())
	if head.status != 200 || head.body != want {
		t.Errorf("head %d %s, want %s", head.status, head.body, want)
	}
	p := s.page("new", "")
	s.publish("new", "1")
	after := s.page("new", fmt.Sprintf("?after=%s:%d", p.Epoch, p.Last))
	if len(after.Messages) != 1 || after.Messages[0].Offset != 1 {
		t.Errorf("after the position of the empty page: %+v", after)
	}
}

// TestB145_SameRefusalEverywhere: every path and method, on a stream that
// exists and one that does not, and nothing tells which is which.
func TestB145_SameRefusalEverywhere(t *testing.T) {
	s := newStack(t, nil)
	s.publish("exists", `"secret"`)
	var want string
	for _, header := range [][]string{{"Origin", "https://evil.example"}, {"Host", "evil.example"}, {"Origin", "null"}} {
		want = ""
		for _, stream := range []string{"exists", "missing"} {
			for _, r := range [][2]string{
				{"GET", "/streams/" + stream}, {"GET", "/streams/" + stream + "/messages"}, {"POST", "/streams/" + stream + "/messages"},
				{"OPTIONS", "/streams/" + stream + "/messages"}, {"POST", "/broadcast"}, {"GET", "/cable"}, {"GET", "/metrics"}, {"GET", "/"},
			} {
				a := s.do(r[0], r[1], "1", append([]string{"Content-Type", jsonType, "Connection", "Upgrade", "Upgrade", "websocket",
					"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "MDEyMzQ1Njc4OWFiY2RlZg=="}, header...)...)
				if want == "" {
					want = a.body
				}
				if a.status != 403 || a.body != want {
					t.Errorf("%q %v: %d %s, want 403 %s", header, r, a.status, a.body, want)
				}
				if a.header.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("%q %v: the page may read the refusal", header, r)
				}
			}
		}
	}
	if s.last("exists") != 1 || s.last("missing") != 0 {
		t.Error("a refused request stored something")
	}
}

// TestHTTP_OtherLoopbackPort: a page under development may use the API.
func TestHTTP_OtherLoopbackPort(t *testing.T) {
	s := newStack(t, nil)
	const origin = "http://localhost:5173"
	pre := s.do("OPTIONS", "/streams/a/messages", "", "Origin", origin, "Access-Control-Request-Method", "POST")
	if pre.status != 204 || pre.header.Get("Access-Control-Allow-Origin") != origin || !strings.Contains(pre.header.Get("Access-Control-Allow-Methods"), "POST") ||
		!strings.Contains(pre.header.Get("Access-Control-Allow-Headers"), "Idempotency-Key") {
		t.Errorf("preflight: %d %v", pre.status, pre.header)
	}
	a := s.do("POST", "/streams/a/messages", "1", "Origin", origin, "Content-Type", jsonType)
	if a.status != 201 || a.header.Get("Access-Control-Allow-Origin") != origin || a.header.Get("Vary") != "Origin" {
		t.Errorf("publish: %d %v", a.status, a.header)
	}
}

// appender is a sequencer that fails as it is told.
type appender func(context.Context, sequencer.Request) ([]sequencer.Placed, error)

func (f appender) Append(ctx context.Context, r sequencer.Request) ([]sequencer.Placed, error) {
	return f(ctx, r)
}

// TestHTTP_FailuresOfTheLog: each is a status a publisher can act upon.
func TestHTTP_FailuresOfTheLog(t *testing.T) {
	var fail error
	log := hubtest.NewLog(7)
	log.Down()
	h := hub.New(log, hub.Options{})
	stopHub := background(t, h.Run)
	defer stopHub()
	srv := New(Options{Hub: h, Authorizer: auth.Open{}, Ready: func(context.Context) error { return fail },
		Appender: appender(func(context.Context, sequencer.Request) ([]sequencer.Placed, error) { return nil, fail })})
	do := func(method, path string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://localhost"+path, strings.NewReader("1"))
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, r)
		return w
	}
	tests := []struct {
		err    error
		status int
		code   string
		retry  bool
	}{
		{fmt.Errorf("%w: %w", sequencer.ErrNotStored, sequencer.ErrBusy), 503, "busy", true},
		{fmt.Errorf("%w: %w", sequencer.ErrNotStored, sequencer.ErrDiskFull), 507, "disk_full", true},
		{fmt.Errorf("%w: %w", sequencer.ErrNotStored, sequencer.ErrOverloaded), 503, "overloaded", true},
		{fmt.Errorf("%w: %w", sequencer.ErrNotStored, sequencer.ErrClosed), 503, "stopping", true},
		{fmt.Errorf("%w: %w", sequencer.ErrNotStored, context.DeadlineExceeded), 503, "unavailable", true},
		{fmt.Errorf("%w: %w", sequencer.ErrOutcomeUnknown, context.DeadlineExceeded), 503, "outcome_unknown", true},
		{sequencer.ErrKeyConflict, 409, "key_conflict", false},
		{sequencer.ErrStreamFull, 409, "stream_full", false},
		{errors.New("something nobody thought of"), 503, "unavailable", true},
	}
	for _, tt := range tests {
		fail = tt.err
		w := do("POST", "/streams/a/messages")
		var e struct{ Error string }
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != tt.status || e.Error != tt.code || (w.Header().Get("Retry-After") == "1") != tt.retry {
			t.Errorf("%v: %d %s Retry-After %q", tt.err, w.Code, w.Body, w.Header().Get("Retry-After"))
		}
		if strings.Contains(w.Body.String(), "nobody thought") {
			t.Errorf("%v: the answer tells what went wrong inside", tt.err)
		}
	}
	for _, path := range []string{"/streams/a", "/streams/a/messages", "/streams/a/messages?after=1", "/readyz"} {
		if w := do("GET", path); w.Code != 503 || w.Header().Get("Retry-After") != "1" {
			t.Errorf("GET %s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := do("GET", "/healthz"); w.Code != 200 {
		t.Errorf("healthz: %d, the process is alive though its log is not", w.Code)
	}
}

// TestHTTP_PublishDeadline: a log that never answers does not hold the
// publisher for ever.
func TestHTTP_PublishDeadline(t *testing.T) {
	srv := New(Options{Hub: hub.New(hubtest.NewLog(7), hub.Options{}), Authorizer: auth.Open{}, PublishTimeout: 10 * time.Millisecond,
		Appender: appender(func(ctx context.Context, _ sequencer.Request) ([]sequencer.Placed, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("%w: %w", sequencer.ErrNotStored, ctx.Err())
		})})
	w := httptest.NewRecorder()
	srv.ServeHTTP(w, httptest.NewRequest("POST", "http://localhost/streams/a/messages", strings.NewReader("1")))
	if w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestHTTP_ManyPublishers: every answer is a place of its own, without holes.
func TestHTTP_ManyPublishers(t *testing.T) {
	s := newStack(t, nil)
	const publishers, each = 16, 20
	var mu sync.Mutex
	var offsets []uint64
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for i := range each {
				p := s.publish("a", strconv.Itoa(i))
				mu.Lock()
				offsets = append(offsets, p.Offset)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(offsets)
	for i, o := range offsets {
		if o != uint64(i+1) {
			t.Fatalf("place %d has offset %d", i, o)
		}
	}
	if n := len(s.page("a", "").Messages); n != publishers*each {
		t.Errorf("%d messages in history", n)
	}
	if m := s.do("GET", "/metrics", "").body; !strings.Contains(m, "\nchronocast_broadcasts_total 320\n") {
		t.Errorf("metrics: %s", m)
	}
}
