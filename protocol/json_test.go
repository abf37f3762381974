package protocol

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	testEpoch      Epoch = 1796061414123456
	testIdentifier       = `{"channel":"$pubsub","stream_name":"chat/42"}`
	testStream           = "chat/42"
)

// received is one message as a client reads it off the wire.
type received struct {
	identifier, stream, epoch string
	offset                    uint64
	replay                    bool
	data                      string
}

// texts returns the texts of frames as they come out of a WebSocket.
func texts(t testing.TB, wire [][]byte) [][]byte {
	t.Helper()
	var all [][]byte
	for _, w := range wire {
		for len(w) > 0 {
			text, rest, ok := CutTextFrame(w)
			if !ok {
				t.Fatalf("no frame: %.80q", w)
			}
			all, w = append(all, text), rest
		}
	}
	return all
}

// readFrames reads message frames the way a client does, by encoding/json, and
// keeps the payload's bytes.
func readFrames(t testing.TB, wire [][]byte) []received {
	t.Helper()
	var all []received
	for _, frame := range texts(t, wire) {
		var f struct {
			Type       string          `json:"type"`
			Identifier string          `json:"identifier"`
			Message    json.RawMessage `json:"message"`
			Stream     string          `json:"stream_id"`
			Epoch      string          `json:"epoch"`
			Offset     uint64          `json:"offset"`
			Replay     bool            `json:"replay"`
			Messages   []struct {
				Offset  uint64          `json:"offset"`
				Message json.RawMessage `json:"message"`
			} `json:"messages"`
		}
		if !utf8.Valid(frame) {
			t.Fatalf("frame is not UTF-8: %.200q", frame)
		}
		if err := json.Unmarshal(frame, &f); err != nil {
			t.Fatalf("frame %.200s: %v", frame, err)
		}
		switch f.Type {
		case "":
			all = append(all, received{f.Identifier, f.Stream, f.Epoch, f.Offset, false, string(f.Message)})
		case "messages":
			for _, m := range f.Messages {
				all = append(all, received{f.Identifier, f.Stream, f.Epoch, m.Offset, f.Replay, string(m.Message)})
			}
		default:
			t.Fatalf("frame of type %q", f.Type)
		}
	}
	return all
}

// payloads that something on the way likes to change or lose.
var payloads = []string{
	`0`, `false`, `""`, `null`, `"<b>&</b>"`, "\"\u2028\u2029\"", `{"b":1,"a":2,"a":3}`, `1.0`, `1e400`, `12345678901234567890`,
	`"\u003cb\u003e"`, `"\/"`, `"\ud800"`, `"日本語🚀"`, `[1,2]`, `"\\\""`, `true`,
}

func TestFrames_CarryThePayloadBytesUnchangedAndInOrder(t *testing.T) {
	var msgs []Message
	for i, p := range payloads {
		msgs = append(msgs, Message{Offset: uint64(i) + 7, Data: []byte(p)})
	}
	for _, c := range Codecs() {
		for _, replay := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/replay=%v", c.Name(), replay), func(t *testing.T) {
				frames := c.Frames(nil, NewAddress(testIdentifier, testStream), testEpoch, msgs, replay)
				got := readFrames(t, frames)
				if len(got) != len(msgs) {
					t.Fatalf("%d messages, want %d", len(got), len(msgs))
				}
				marked := replay && c.Level() >= LevelChronocast
				for i, p := range payloads {
					want := received{testIdentifier, testStream, testEpoch.String(), uint64(i) + 7, marked, p}
					if got[i] != want {
						t.Errorf("message %d is %+v, want %+v", i, got[i], want)
					}
				}
			})
		}
	}
}

// Subscribers of both lower levels get the same bytes: one encoding serves
// them, and a stock client ignores the members it does not know.
func TestFrames_PlainAndExtendedAreTheSame(t *testing.T) {
	a := NewAddress(testIdentifier, testStream)
	msgs := []Message{{Offset: 1, Data: []byte(`"a"`)}, {Offset: 2, Data: []byte(`"b"`)}}
	cs := Codecs()
	ext, plain := cs[1].Frames(nil, a, testEpoch, msgs, true), cs[2].Frames(nil, a, testEpoch, msgs, false)
	if !slices.EqualFunc(ext, plain, bytes.Equal) {
		t.Errorf("%s\n%s", ext, plain)
	}
	if n := len(texts(t, ext)); n != len(msgs) || len(ext) != 1 {
		t.Errorf("%d frames in %d pieces for %d messages", n, len(ext), len(msgs))
	}
}

func TestFrames_ChronocastSendsALoneLiveMessageAsThePlainFrame(t *testing.T) {
	a := NewAddress(testIdentifier, testStream)
	msgs := []Message{{Offset: 41, Data: []byte(`"a"`)}}
	cs := Codecs()
	if one, plain := cs[0].Frames(nil, a, testEpoch, msgs, false), cs[2].Frames(nil, a, testEpoch, msgs, false); !slices.EqualFunc(one, plain, bytes.Equal) {
		t.Errorf("live: %s, want %s", one, plain)
	}
	if got := readFrames(t, cs[0].Frames(nil, a, testEpoch, msgs, true)); len(got) != 1 || !got[0].replay {
		t.Errorf("replay: %+v", got)
	}
	for _, c := range cs {
		if got := c.Frames(nil, a, testEpoch, nil, true); len(got) != 0 {
			t.Errorf("%s: frames of nothing: %s", c.Name(), got)
		}
	}
}

func TestFrames_StayBelowMaxFrameBytesUnlessOneMessageDoesNot(t *testing.T) {
	codec := Codecs()[0]
	a := NewAddress(testIdentifier, testStream)
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 24 {
		msgs := make([]Message, 1+rng.IntN(16))
		for i := range msgs {
			size := 2 + rng.IntN(40)
			switch rng.IntN(6) {
			case 0:
				size = rng.IntN(MaxFrameBytes) + 2
			case 1:
				size = MaxFrameBytes - 300 + rng.IntN(600)
			}
			msgs[i] = Message{Offset: uint64(90 + i), Data: []byte(`"` + strings.Repeat("x", size-2) + `"`)}
		}
		replay := round%2 == 0
		frames := codec.Frames(nil, a, testEpoch, msgs, replay)
		next := 0
		for i, f := range frames {
			if len(f) != cap(f) {
				t.Fatalf("a frame of %d bytes in memory of %d", len(f), cap(f))
			}
			got := readFrames(t, [][]byte{f})
			if len(f) > MaxFrameBytes && len(got) > 1 {
				t.Fatalf("a frame of %d messages has %d bytes", len(got), len(f))
			}
			for _, m := range got {
				if m.offset != msgs[next].Offset || m.data != string(msgs[next].Data) {
					t.Fatalf("message %d is offset %d", msgs[next].Offset, m.offset)
				}
				next++
			}
			// Greedy: the next message would not have fitted.
			if i+1 < len(frames) && len(got) > 1 && len(f)+len(`,`)+manySize(&msgs[next]) <= MaxFrameBytes {
				t.Fatalf("a frame of %d bytes leaves out a message of %d", len(f), len(msgs[next].Data))
			}
		}
		if next != len(msgs) {
			t.Fatalf("%d of %d messages", next, len(msgs))
		}
	}
}

func TestFrames_AllocateTheFrameAndNothingElse(t *testing.T) {
	a := NewAddress(testIdentifier, testStream)
	for _, c := range Codecs() {
		for _, n := range []int{1, 16} {
			for _, size := range []int{15, 300, 3 << 10} {
				msgs := benchMessages(n, size)
				dst := make([][]byte, 0, n)
				frames := len(c.Frames(dst, a, testEpoch, msgs, false))
				got := testing.AllocsPerRun(100, func() { c.Frames(dst[:0], a, testEpoch, msgs, false) })
				if int(got) != frames {
					t.Errorf("%s, %d messages of %d bytes: %v allocations for %d frames", c.Name(), n, size, got, frames)
				}
			}
		}
		buf := make([]byte, 0, 1024)
		at := []StreamPosition{{testStream, Position{testEpoch, 41}}}
		span := Span{testEpoch, 1, 41}
		for name, f := range map[string]func(){
			"welcome":        func() { c.AppendWelcome(buf, "sid") },
			"ping":           func() { c.AppendPing(buf, 1796061600, at) },
			"confirm":        func() { c.AppendConfirm(buf, testIdentifier, at) },
			"reject":         func() { c.AppendReject(buf, testIdentifier, "unauthorized") },
			"reject_history": func() { c.AppendRejectHistory(buf, testIdentifier, "trimmed", span) },
			"reset":          func() { c.AppendReset(buf, a, ReasonTrimmed, span) },
			"error":          func() { c.AppendError(buf, "message", testIdentifier, "malformed", "no") },
		} {
			if got := testing.AllocsPerRun(20, f); got != 0 {
				t.Errorf("%s: %s allocates %v times into a buffer with room", c.Name(), name, got)
			}
		}
	}
}

// B124: the identifier comes back as the very text the client sent, whatever
// is in it and however its JSON is ordered or spaced.
func TestB124_Identifier_IsEchoedByteForByte(t *testing.T) {
	for _, identifier := range []string{
		testIdentifier,
		`{"stream_name":"chat/42","channel":"$pubsub"}`,
		` { "channel" : "$pubsub" , "stream_name":"chat\/42" } `,
		`{"channel":"ChatRoom","note":"<b>&\u003c\"\\\n` + "\u2028日本語🚀" + `"}`,
		"not JSON at all \x00\x1f\"",
	} {
		for _, spelled := range []string{string(appendQuoted(nil, identifier)), escapeAll(identifier)} {
			for _, c := range Codecs() {
				cmd, err := c.Decode([]byte(`{"command":"subscribe","identifier":` + spelled + `}`))
				if err != nil || cmd.Identifier != identifier {
					t.Fatalf("%s: decoded %q, %v, want %q", c.Name(), cmd.Identifier, err, identifier)
				}
				a := NewAddress(cmd.Identifier, testStream)
				frames := c.Frames(nil, a, testEpoch, []Message{{Offset: 1, Data: []byte("1")}, {Offset: 2, Data: []byte("2")}}, true)
				frames = append(texts(t, frames),
					c.AppendConfirm(nil, cmd.Identifier, nil), c.AppendReject(nil, cmd.Identifier, "r"),
					c.AppendConfirmHistory(nil, cmd.Identifier), c.AppendRejectHistory(nil, cmd.Identifier, "r", Span{}),
					c.AppendPresenceError(nil, cmd.Identifier),
					c.AppendReset(nil, a, ReasonAhead, Span{testEpoch, 1, 1}), c.AppendError(nil, "c", cmd.Identifier, "r", "m"))
				for _, f := range frames {
					if len(f) == 0 {
						continue // not spoken at this level
					}
					var back struct{ Identifier string }
					if err := json.Unmarshal(f, &back); err != nil || back.Identifier != identifier {
						t.Errorf("%s: frame %s echoes %q, %v", c.Name(), f, back.Identifier, err)
					}
				}
			}
		}
	}
}

// escapeAll spells s as a JSON string in which every character is escaped.
func escapeAll(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r > 0xffff {
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04X\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			continue
		}
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	b.WriteByte('"')
	return b.String()
}

// B125: exactly one subprotocol, the best one both sides know, whatever the
// order of the offer.
func TestB125_ForSubprotocols_PicksTheBestInEveryOrder(t *testing.T) {
	known := []string{SubprotocolChronocast, SubprotocolExtended, SubprotocolPlain}
	others := []string{"actioncable-unsupported", "graphql-ws"}
	for mask := range 1 << len(known) {
		var offer []string
		want := ""
		for i, name := range known {
			if mask&(1<<i) != 0 {
				offer = append(offer, name)
				if want == "" {
					want = name
				}
			}
		}
		for extra := range len(others) + 1 {
			permutations(slices.Concat(offer, others[:extra]), func(offered []string) {
				c, ok := ForSubprotocols(offered)
				switch {
				case len(offered) == 0:
					if !ok || c.Name() != SubprotocolPlain {
						t.Errorf("nothing offered: %v, %v", c, ok)
					}
				case want == "":
					if ok || c != nil {
						t.Errorf("%v: %v, want none", offered, c)
					}
				case !ok || c.Name() != want:
					t.Errorf("%v: %v, %v, want %s", offered, c, ok, want)
				}
			})
		}
	}
	for _, offered := range [][]string{{"ACTIONCABLE-V1-JSON"}, {""}, {"actioncable-v1"}, {"actioncable-v1-msgpack"}, {" actioncable-v1-json"}} {
		if c, ok := ForSubprotocols(offered); ok {
			t.Errorf("%q: %s", offered, c.Name())
		}
	}
	if c, ok := ForSubprotocols([]string{SubprotocolPlain, SubprotocolPlain}); !ok || c != Codecs()[2] {
		t.Errorf("an offer repeated: %v, %v", c, ok)
	}
}

func permutations(s []string, f func([]string)) {
	if len(s) < 2 {
		f(s)
		return
	}
	for i := range s {
		rest := slices.Delete(slices.Clone(s), i, i+1)
		permutations(rest, func(p []string) { f(append([]string{s[i]}, p...)) })
	}
}

func TestCodecs_AreInOrderOfPreferenceAndComparable(t *testing.T) {
	cs := Codecs()
	if len(cs) != 3 || cs[0].Level() != LevelChronocast || cs[1].Level() != LevelExtended || cs[2].Level() != LevelPlain {
		t.Fatalf("%v", cs)
	}
	cs[0] = nil
	if again := Codecs(); again[0] == nil || again[1] != cs[1] {
		t.Error("the caller's slice is the package's own")
	}
}

// B118: only messages, and what speaks of positions on purpose, carry one. A
// client that remembers what it reads cannot resume from a heartbeat.
func TestB118_ControlFrames_CarryNoPositionOfAMessage(t *testing.T) {
	for _, c := range Codecs() {
		for _, f := range [][]byte{
			c.AppendWelcome(nil, "s"), c.AppendPing(nil, 1, []StreamPosition{{testStream, Position{testEpoch, 9}}}), c.AppendConfirm(nil, "{}", nil),
			c.AppendReject(nil, "{}", "r"), c.AppendConfirmHistory(nil, "{}"), c.AppendPresenceError(nil, "{}"),
			c.AppendDisconnect(nil, DisconnectTooSlow, true), c.AppendError(nil, "c", "{}", "r", "m"),
		} {
			if len(f) == 0 {
				continue
			}
			var members map[string]json.RawMessage
			if err := json.Unmarshal(f, &members); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"stream_id", "epoch", "offset", "messages"} {
				if members[name] != nil {
					t.Errorf("%s: %s has %s", c.Name(), f, name)
				}
			}
		}
	}
}

// Frame types above a level are never sent at it: a Rails client hands every
// type it does not know to the application as an undefined message.
func TestCodecs_NoFrameTypeAboveTheLevel(t *testing.T) {
	a := NewAddress("{}", "s")
	span := Span{testEpoch, 1, 1}
	for _, c := range Codecs() {
		for _, tc := range []struct {
			name string
			from Level
			got  []byte
		}{
			{"confirm_history", LevelExtended, c.AppendConfirmHistory([]byte("#"), "{}")},
			{"reject_history", LevelExtended, c.AppendRejectHistory([]byte("#"), "{}", "trimmed", span)},
			{"presence", LevelExtended, c.AppendPresenceError([]byte("#"), "{}")},
			{"reset", LevelChronocast, c.AppendReset([]byte("#"), a, ReasonTrimmed, span)},
			{"error", LevelChronocast, c.AppendError([]byte("#"), "x", "{}", "malformed", "no")},
			{"streams of a ping", LevelChronocast, c.AppendPing(nil, 1, []StreamPosition{{"s", Position{testEpoch, 1}}})[len(`{"type":"ping","message":1`)-1:]},
		} {
			spoken := len(tc.got) > 2
			if spoken != (c.Level() >= tc.from) {
				t.Errorf("%s: %s is %s", c.Name(), tc.name, tc.got)
			}
		}
	}
}

// FuzzFrames: what a client reads is what was put in, whatever the identifier,
// stream and payload.
func FuzzFrames(f *testing.F) {
	f.Add(testIdentifier, testStream, []byte(`"a"`), uint64(1), uint8(3))
	f.Add("\x00\"\\", "\u2028<b>", []byte("\n{\"a\": [1, 2]}\t"), uint64(MaxOffset), uint8(1))
	f.Add("", "", []byte("not json"), uint64(0), uint8(0))
	f.Fuzz(func(t *testing.T, identifier, stream string, data []byte, offset uint64, n uint8) {
		if !utf8.ValidString(identifier) || !utf8.ValidString(stream) {
			return
		}
		if CheckPayload(data) != nil {
			quoted, err := QuotePayload(data)
			if err != nil {
				return
			}
			data = quoted
		}
		offset = min(offset, MaxOffset-256)
		var msgs []Message
		for i := range uint64(n) {
			msgs = append(msgs, Message{Offset: offset + i, Data: data})
		}
		for _, c := range Codecs() {
			for _, replay := range []bool{false, true} {
				got := readFrames(t, c.Frames(nil, NewAddress(identifier, stream), testEpoch, msgs, replay))
				if len(got) != len(msgs) {
					t.Fatalf("%d messages of %d", len(got), len(msgs))
				}
				for i, m := range got {
					if m.identifier != identifier || m.stream != stream || m.offset != msgs[i].Offset || m.data != string(bytes.Trim(data, " \t\r\n")) {
						t.Fatalf("message %d is %+v", i, m)
					}
				}
			}
		}
	})
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
