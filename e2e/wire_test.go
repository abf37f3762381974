package e2e

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// masked is one text frame as a client sends it.
func masked(text string) []byte {
	b := []byte{0x81}
	switch n := len(text); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	default:
		b = append(b, 0x80|126)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	}
	b = append(b, 1, 2, 3, 4)
	for i := range len(text) {
		b = append(b, text[i]^byte(i%4+1))
	}
	return b
}

// sendTogether writes several frames in one segment.
func (s *socket) sendTogether(texts ...string) {
	s.t.Helper()
	var b []byte
	for _, text := range texts {
		b = append(b, masked(text)...)
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	if _, err := s.conn.UnderlyingConn().Write(b); err != nil {
		s.t.Fatal(err)
	}
}

func commandText(name, stream string) string {
	return fmt.Sprintf(`{"command":%q,"identifier":%s}`, name, jsonText(identifier(stream)))
}

// B17: fast unsubscribe and subscribe, a thousand times on one socket: each
// subscribe is answered within a second, and in the end it is subscribed once.
func TestB17_FastUnsubscribeSubscribeIsAlwaysAnswered(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	for _, proto := range subprotocols {
		sock := dial(t, s.ws(), proto)
		sock.subscribe("flip")
		for i := range 1000 {
			sock.sendRaw(commandText("unsubscribe", "flip"))
			sock.sendRaw(commandText("subscribe", "flip"))
			if f := sock.next(time.Second, "confirm_subscription", "reject_subscription"); f.Type != "confirm_subscription" {
				t.Fatalf("%s: round %d: %s", proto, i, f.raw)
			}
		}
		before := len(sock.messages("flip"))
		at := p.must("flip", fmt.Sprintf(`{"for":%q}`, proto))
		at2 := p.must("flip", fmt.Sprintf(`{"then":%q}`, proto))
		sock.awaitOffset("flip", at2.Offset, 5*time.Second)
		if got := sock.messages("flip")[before:]; len(got) != 2 || got[0].place != at {
			t.Errorf("%s: %d deliveries of two messages", proto, len(got))
		}
	}
}

// B19: both commands in one TCP segment are handled in the order sent.
func TestB19_CommandsInOneSegmentKeepTheirOrder(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	sock := dial(t, s.ws(), extended)
	rounds := scale(1000, 5000)
	for i := range rounds {
		sock.sendTogether(commandText("subscribe", "seg/a"), commandText("unsubscribe", "seg/a"),
			commandText("unsubscribe", "seg/b"), commandText("subscribe", "seg/b"))
		for _, want := range []string{"seg/a", "seg/b"} {
			if f := sock.next(5*time.Second, "confirm_subscription", "reject_subscription"); f.Identifier != identifier(want) {
				t.Fatalf("round %d: %s, want the confirmation of %s", i, f.raw, want)
			}
		}
	}
	p.must("seg/a", `"left"`)
	at := p.must("seg/b", `"stayed"`)
	sock.awaitOffset("seg/b", at.Offset, 5*time.Second)
	if got := sock.messages("seg/b"); len(got) != 1 {
		t.Errorf("%d deliveries to the stream that was subscribed last, want 1", len(got))
	}
	if got := sock.messages("seg/a"); len(got) != 0 {
		t.Errorf("%d deliveries to the stream that was left last", len(got))
	}
}

// B22: a second subscribe for a live identifier is confirmed again, with the
// position of now, and nothing is delivered twice.
func TestB22_ARepeatedSubscribeIsConfirmedAndNeverDoubles(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	for _, proto := range subprotocols {
		stream := "again/" + proto
		sock := dial(t, s.ws(), proto)
		first := sock.subscribe(stream)
		p.numbered(stream, 3)
		sock.awaitMessages(3, 5*time.Second)
		for i := range 4 {
			began := time.Now()
			f := sock.subscribe(stream)
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s: repeat %d was confirmed after %v", proto, i, took)
			}
			if want := (place{first.Streams[stream].Epoch, 3}); f.Streams[stream] != want {
				t.Errorf("%s: repeat %d was confirmed at %v, want %v", proto, i, f.Streams[stream], want)
			}
		}
		p.must(stream, `{"n":4}`)
		sock.awaitMessages(4, 5*time.Second)
		judge(s.log(stream), true).delivered(proto, sock.messages(stream), 0, true).report(t)
	}
}

// B23: a command sent right after the confirmation is never refused.
func TestB23_ACommandRightAfterTheConfirmIsServed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	at := p.numbered("cmd", 3)
	for _, proto := range []string{extended, chronocast} {
		sock := dial(t, s.ws(), proto)
		for i := range scale(500, 5000) {
			sock.subscribe("cmd")
			sock.send(command{Command: "history", Identifier: identifier("cmd"),
				History: &historyWanted{Streams: map[string]place{"cmd": {at.Epoch, 2}}}})
			if f := sock.next(5*time.Second, "confirm_history", "reject_history", "error", "reset"); f.Type != "confirm_history" {
				t.Fatalf("%s: round %d: %s", proto, i, f.raw)
			}
			sock.sendRaw(commandText("unsubscribe", "cmd"))
		}
	}
}

// B26: nothing old comes to a subscriber that asked for none; the
// confirmation tells where it begins.
func TestB26_ANewSubscriberGetsNothingOld(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	p.numbered("quiet", 5)
	var socks []*socket
	for _, proto := range subprotocols {
		sock := dial(t, s.ws(), proto)
		if at := sock.subscribe("quiet").Streams["quiet"]; at.Offset != 5 {
			t.Errorf("%s: confirmed at %v, want offset 5", proto, at)
		}
		socks = append(socks, sock)
	}
	p.must("quiet", `{"n":6}`)
	for _, sock := range socks {
		sock.awaitMessages(1, 5*time.Second)
		if got := sock.messages("quiet"); got[0].Offset != 6 {
			t.Errorf("%s: first came %v, want 6", sock.proto, got[0].place)
		}
	}
}

// trimmedServer keeps 100 messages a stream; stream has 1,000 published and 900
// trimmed away.
func trimmedServer(t *testing.T, stream string) (*server, *publisher) {
	s := newServer(t, "--retain-count", "100")
	p := newPublisher(t, s.url(""))
	p.bulk(stream, 1000)
	eventually(t, 20*time.Second, "the first 900 are trimmed", func() bool { return s.head(stream).First == 901 })
	return s, p
}

// B31: asking from the start of a stream whose first 900 are gone is told so,
// with the first one kept. B46: the same for a time or position for which no
// history is kept. The head has not moved back.
func TestB31_B46_TrimmedHistoryIsSaidAloud(t *testing.T) {
	t.Parallel()
	s, p := trimmedServer(t, "cut")
	h := s.head("cut")
	if h.Last != 1000 || h.First != 901 {
		t.Fatalf("head %+v, want 901..1000", h)
	}
	for _, at := range []uint64{0, 1, 500, 899} {
		if pg := s.history("cut", fmt.Sprintf("%s:%d", h.Epoch, at), 0); pg.status != http.StatusGone || pg.Error != "trimmed" || pg.First != 901 || pg.Last < 1000 {
			t.Errorf("history after %d: %d %+v", at, pg.status, pg)
		}
	}
	if pg := s.history("cut", h.Epoch+":900", 0); pg.status != 200 || len(pg.Messages) != 100 {
		t.Errorf("history after 900: %d with %d messages", pg.status, len(pg.Messages))
	}
	for proto, want := range map[string]string{extended: "reject_history", chronocast: "reset"} {
		f := resetOf(t, s, p, proto, "cut", place{h.Epoch, 0})
		if f.Type != want || f.Reason != "trimmed" || f.First == nil || *f.First < 901 || f.Epoch != h.Epoch {
			t.Errorf("%s: told %s", proto, f.raw)
		}
		// since a time before what is kept
		sock := dial(t, s.ws(), proto)
		sock.send(command{Command: "subscribe", Identifier: identifier("cut"), History: &historyWanted{Since: 1000}})
		sock.confirmed("cut")
		if f := sock.next(5*time.Second, "reject_history", "reset", "confirm_history"); f.Type != want {
			t.Errorf("%s: since 1970: told %s", proto, f.raw)
		}
	}
	// B46 in our client: it raises reset and goes on from the first kept.
	cl := ours(t, s.ws(), "start", "cut")
	cl.wait(10*time.Second, "reset", "cut")
	last := p.must("cut", `"end"`)
	cl.awaitLast("cut", last.Offset, 10*time.Second)
	got := cl.messages("cut")
	judge(s.log("cut"), false).delivered("bundled client", got, got[0].Offset-1, true).report(t)
}

// B32: ids that are unknown, malformed, negative or huge get a reset or a 4xx
// within a second, and live delivery works after.
func TestB32_OddPositionsAreAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	at := p.numbered("odd", 5)
	for _, after := range []string{"-1", at.Epoch + ":-1", "x", ":", at.Epoch + ":", ":5", "9007199254740993", at.Epoch + ":9007199254740993",
		"99999999999999999999999", "1:1", at.Epoch + ":6", at.Epoch + ":0x3", " 3", at.Epoch + ":03", "1e3", at.Epoch + ":5:5", "\x00"} {
		began := time.Now()
		pg := s.history("odd", after, 0)
		if pg.status/100 != 4 || pg.Error == "" {
			t.Errorf("after=%q: %d with %d messages", after, pg.status, len(pg.Messages))
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("after=%q took %v", after, took)
		}
	}
	for _, limit := range []string{"0", "-1", "x", "99999999"} {
		var pg page
		if status := s.get(messagesPath("odd")+"?limit="+limit, &pg); status/100 != 4 {
			t.Errorf("limit=%s: %d", limit, status)
		}
	}
	for _, streams := range []string{
		`{"odd":{"epoch":"1","offset":1}}`, `{"odd":{"epoch":"` + at.Epoch + `","offset":1000000}}`,
		`{"odd":{"epoch":"` + at.Epoch + `","offset":-1}}`, `{"odd":{"epoch":"` + at.Epoch + `","offset":1e300}}`,
		`{"odd":{"epoch":"","offset":1}}`, `{"odd":{"epoch":"x","offset":1}}`, `{"odd":{"epoch":"` + at.Epoch + `","offset":1.5}}`,
		`{"odd":{"epoch":"` + at.Epoch + `","offset":9007199254740993}}`, `{"odd":{}}`, `{"odd":null}`, `{"odd":[]}`, `[]`, `7`,
	} {
		for _, proto := range []string{extended, chronocast} {
			sock := dial(t, s.ws(), proto)
			sock.sendRaw(fmt.Sprintf(`{"command":"subscribe","identifier":%s,"history":{"streams":%s}}`, jsonText(identifier("odd")), streams))
			// Either the command is refused as malformed, or the subscription is
			// confirmed and the history is refused.
			f := sock.next(time.Second, "reject_subscription", "error", "confirm_subscription")
			if f.Type == "confirm_subscription" {
				f = sock.next(time.Second, "reject_history", "reset", "error", "confirm_history")
			}
			if f.Type == "confirm_history" {
				t.Errorf("%s: %s was continued: %s", proto, streams, f.raw)
			}
			before := len(sock.messages("odd"))
			sock.sendRaw(commandText("subscribe", "odd"))
			sock.confirmed("odd")
			p.must("odd", `"live"`)
			sock.awaitMessages(before+1, 5*time.Second)
		}
	}
}

// B124: an identifier that is no string is refused clearly; the one that is
// echoed is the very text that was sent, whatever the order of its keys.
func TestB124_TheIdentifierIsAStringEchoedAsSent(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	same := []string{
		`{"channel":"$pubsub","stream_name":"id"}`, `{"stream_name":"id","channel":"$pubsub"}`,
		`{ "channel" : "$pubsub", "stream_name" : "id" }`, `{"channel":"$pubsub","stream_name":"\u0069d","extra":"<é\u00e9>"}`,
	}
	for _, proto := range subprotocols {
		sock := dial(t, s.ws(), proto)
		for _, id := range same {
			sock.send(command{Command: "subscribe", Identifier: id})
			if f := sock.confirmed("id"); f.Identifier != id {
				t.Errorf("%s: sent %s, echoed %s", proto, id, f.Identifier)
			}
		}
		p.must("id", `1`)
		sock.awaitMessages(len(same), 5*time.Second)
	}
	bad := dial(t, s.ws(), chronocast)
	bad.sendRaw(`{"command":"subscribe","identifier":{"channel":"$pubsub","stream_name":"id"}}`)
	if f := bad.next(time.Second, "error", "reject_subscription", "confirm_subscription"); f.Type == "confirm_subscription" {
		t.Errorf("an object as identifier was confirmed: %s", f.raw)
	}
	for _, id := range []string{`{"channel":"Unknown","stream_name":"id"}`, `{"channel":"$pubsub"}`, `not json`, `[]`, `""`,
		`{"channel":"$pubsub","stream_name":""}`, `{"channel":"$pubsub","signed_stream_name":"x--y"}`} {
		for _, proto := range subprotocols {
			sock := dial(t, s.ws(), proto)
			sock.send(command{Command: "subscribe", Identifier: id})
			f := sock.next(time.Second, "reject_subscription", "error", "confirm_subscription")
			if f.Type == "confirm_subscription" || f.Identifier != id {
				t.Errorf("%s: identifier %s: answered %s", proto, id, f.raw)
			}
		}
	}
}

// B125: whatever the order of the offer, exactly one subprotocol is echoed,
// and an offer of none that is known is refused with a defined answer.
func TestB125_ExactlyOneSubprotocolIsEchoed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	offers := [][]string{{}}
	for _, word := range []string{plain, extended, chronocast, "actioncable-unsupported"} {
		var more [][]string
		for _, o := range offers {
			for i := 0; i <= len(o); i++ {
				more = append(more, append(append(append([]string{}, o[:i]...), word), o[i:]...))
			}
		}
		offers = append(offers, more...)
	}
	for _, offer := range offers[1:] {
		known := ""
		for _, best := range []string{chronocast, extended, plain} {
			for _, o := range offer {
				if o == best && known == "" {
					known = best
				}
			}
		}
		sock, resp, err := tryDial(t, s.ws(), dialOptions{}, offer...)
		switch {
		case known == "" && (err == nil || resp == nil || resp.StatusCode != http.StatusBadRequest):
			t.Errorf("offer %v: %v, want 400", offer, err)
		case known != "" && err != nil:
			t.Errorf("offer %v: %v", offer, err)
		case known != "":
			if echoed := resp.Header.Values("Sec-Websocket-Protocol"); len(echoed) != 1 || echoed[0] != known {
				t.Errorf("offer %v: echoed %v, want %s", offer, echoed, known)
			}
			sock.close()
		}
	}
}

// B91: byte-identical up to the greatest payload, and 413 past it, which costs
// no offset.
func TestB91_EverySizeUpToTheLimitIsByteIdentical(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	socks := []*socket{dial(t, s.ws(), plain), dial(t, s.ws(), extended), dial(t, s.ws(), chronocast)}
	for _, sock := range socks {
		sock.subscribe("big")
	}
	sizes := []int{2, 7999, 8000, 8001, 64 << 10, 1<<20 - 1, 1 << 20}
	for i, size := range sizes {
		payload := `"` + strings.Repeat(string(rune('a'+i)), size-2) + `"`
		if at := p.must("big", payload); at.Offset != uint64(i+1) {
			t.Errorf("%d bytes stand at %v", size, at)
		}
	}
	a, err := p.once(t.Context(), "big", "", "application/json", []byte(`"`+strings.Repeat("x", 1<<20-1)+`"`))
	if err != nil || a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("one byte past the limit: %d %v, want 413", a.status, err)
	}
	if h := s.head("big"); h.Last != uint64(len(sizes)) {
		t.Errorf("the head is %d after the refusal, want %d", h.Last, len(sizes))
	}
	v := judge(s.log("big"), true).acknowledged(p.ledger.of("big"))
	for _, sock := range socks {
		sock.awaitMessages(len(sizes), 10*time.Second)
		v.delivered(sock.proto, sock.messages("big"), 0, true)
	}
	v.report(t)
}

// B92: names are counted in bytes; long names, names of many bytes a character
// and names that share their first 63 bytes each get only their own.
func TestB92_NamesNeverCollide(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	names := []string{
		strings.Repeat("漢", 22), strings.Repeat("漢", 85), strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("a", 255),
		strings.Repeat("b", 63) + "1", strings.Repeat("b", 63) + "2", "a/b", "a%2Fb", "a b", "a+b", "a?b#c", "..", ".", "é", "e\u0301", "😀",
		`quote"and\slash`, "<script>", "A", "a", " ",
	}
	sock := dial(t, s.ws(), extended)
	for _, name := range names {
		sock.send(command{Command: "subscribe", Identifier: identifier(name)})
		sock.confirmed(name)
	}
	for i, name := range names {
		if at := p.must(name, fmt.Sprintf(`{"n":%d}`, i)); at.Offset != 1 {
			t.Errorf("%q: the first message stands at %v", name, at)
		}
	}
	sock.awaitMessages(len(names), 10*time.Second)
	for i, name := range names {
		got := sock.messages(name)
		if len(got) != 1 || numberOf(got[0].data) != i {
			t.Errorf("%q was given %d messages: %v", name, len(got), got)
		}
		if log := s.log(name); len(log) != 1 || numberOf(log[0].data) != i {
			t.Errorf("%q holds %v", name, log)
		}
	}
	for _, name := range []string{strings.Repeat("a", 256), strings.Repeat("漢", 86), "a\x00b", "line\nbreak", "\x7f"} {
		a, err := p.once(t.Context(), name, "", "application/json", []byte(`1`))
		if err != nil || a.status/100 != 4 {
			t.Errorf("the name %.20q…: %d %v, want 4xx", name, a.status, err)
		}
		sock.send(command{Command: "subscribe", Identifier: identifier(name)})
		if f := sock.next(time.Second, "reject_subscription", "confirm_subscription"); f.Type != "reject_subscription" {
			t.Errorf("the name %.20q… was confirmed", name)
		}
	}
}

// B115, B117: a payload that cannot be delivered is refused before it takes an
// offset, and costs the good ones after it nothing.
func TestB115_ABadPayloadCostsNobodyAnything(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newPublisher(t, s.url(""))
	sock := dial(t, s.ws(), extended)
	sock.subscribe("bad")
	for _, body := range []string{"", " ", "{", `{"a":}`, "nope", "\xff\xfe", "\"\xff\"", `"a` + "\n" + `b"`, `1 2`, `NaN`, "\"\x00\"", `{"a":1}x`, `'a'`} {
		a, err := p.once(t.Context(), "bad", "", "application/json", []byte(body))
		if err != nil || (a.status != http.StatusUnprocessableEntity && a.status != http.StatusBadRequest) || a.Error == "" || a.Message == "" {
			t.Errorf("body %q: %d %q %q %v, want 422", body, a.status, a.Error, a.Message, err)
		}
	}
	if h := s.head("bad"); h.Last != 0 {
		t.Errorf("the bad ones took %d offsets", h.Last)
	}
	p.numbered("bad", 100)
	sock.awaitOffset("bad", 100, 10*time.Second)
	judge(s.log("bad"), true).delivered("socket", sock.messages("bad"), 0, true).report(t)

	// Text becomes one JSON string, byte for byte the same text.
	text := "line 1\nline <2> & \"quoted\" \t ünï 😀"
	if a, err := p.once(t.Context(), "text", "", "text/plain; charset=utf-8", []byte(text)); err != nil || a.status != http.StatusCreated {
		t.Fatalf("text: %d %v", a.status, err)
	}
	if got, want := s.log("text")[0].data, jsonText(text); got != want {
		t.Errorf("text is stored as %s, want %s", got, want)
	}
}
