package protocol

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; look at the difference before committing it")

// TestCodecs_GoldenFrames holds every frame of every codec against
// testdata/golden/SUBPROTOCOL.json: an object with a member for each case, the
// frame as it is on the wire; null where the subprotocol has no such frame, an
// array where there are several, length and SHA-256 where it is large. The
// files are compared byte for byte, so the frames in them are exact.
func TestCodecs_GoldenFrames(t *testing.T) {
	for _, c := range Codecs() {
		t.Run(c.Name(), func(t *testing.T) {
			var file bytes.Buffer
			file.WriteString("{\n")
			cases := goldenCases(t, c)
			for i, tc := range cases {
				fmt.Fprintf(&file, "%q: %s", tc.name, goldenText(tc.frames))
				if i < len(cases)-1 {
					file.WriteByte(',')
				}
				file.WriteByte('\n')
			}
			file.WriteString("}\n")
			if !json.Valid(file.Bytes()) {
				t.Fatal("a frame is not valid JSON")
			}
			path := filepath.Join("testdata", "golden", c.Name()+".json")
			if *rewrite {
				if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got, old := strings.Split(file.String(), "\n"), strings.Split(string(want), "\n")
			for i := range max(len(got), len(old)) {
				switch {
				case i >= len(got):
					t.Errorf("missing: %s", old[i])
				case i >= len(old):
					t.Errorf("new: %s", got[i])
				case got[i] != old[i]:
					t.Errorf("got  %s\nwant %s", got[i], old[i])
				}
			}
		})
	}
}

// goldenText is how a golden file shows the frames of a case.
func goldenText(frames [][]byte) string {
	var shown []string
	for _, f := range frames {
		switch {
		case len(f) == 0:
		case len(f) > 4096:
			shown = append(shown, fmt.Sprintf(`{"bytes":%d,"sha256":%q}`, len(f), sum(f)))
		default:
			shown = append(shown, string(f))
		}
	}
	switch len(shown) {
	case 0:
		return "null"
	case 1:
		return shown[0]
	}
	return "[\n  " + strings.Join(shown, ",\n  ") + "]"
}

type goldenCase struct {
	name   string
	frames [][]byte
}

func goldenCases(t *testing.T, c Codec) []goldenCase {
	var cases []goldenCase
	frame := func(name string, f []byte) { cases = append(cases, goldenCase{name, [][]byte{f}}) }
	frames := func(name string, a *Address, replay bool, msgs ...Message) {
		cases = append(cases, goldenCase{name, texts(t, c.Frames(nil, a, testEpoch, msgs, replay))})
	}
	at := func(stream string, offset uint64) StreamPosition {
		return StreamPosition{stream, Position{testEpoch, offset}}
	}
	odd := `{"channel":"$pubsub","stream_name":"<b>&` + "\u2028" + `\"é語"}`
	a, oddAddress := NewAddress(testIdentifier, testStream), NewAddress(odd, "<b>&\u2028\"é語")
	span := Span{Epoch: testEpoch, First: 12, Last: 41}

	frame("welcome", c.AppendWelcome(nil, "9a1c"))
	frame("welcome without session id", c.AppendWelcome(nil, ""))
	frame("ping", c.AppendPing(nil, 1796061600, nil))
	frame("ping with heads", c.AppendPing(nil, 1796061600, []StreamPosition{at(testStream, 41), at("日本語", 0)}))
	frame("confirm", c.AppendConfirm(nil, testIdentifier, []StreamPosition{at(testStream, 41)}))
	frame("confirm of a stream never used", c.AppendConfirm(nil, testIdentifier, []StreamPosition{at(testStream, 0)}))
	frame("confirm without streams", c.AppendConfirm(nil, testIdentifier, nil))
	frame("confirm of an odd identifier", c.AppendConfirm(nil, odd, []StreamPosition{at(oddAddress.Stream, MaxOffset)}))
	frame("reject", c.AppendReject(nil, testIdentifier, "unauthorized"))
	frame("confirm history", c.AppendConfirmHistory(nil, testIdentifier))
	for _, r := range []Reason{ReasonEpochChanged, ReasonTrimmed, ReasonAhead} {
		frame("reject history, "+string(r), c.AppendRejectHistory(nil, testIdentifier, string(r), span))
		frame("reset, "+string(r), c.AppendReset(nil, a, r, span))
	}
	frame("reject history without a span", c.AppendRejectHistory(nil, testIdentifier, "malformed", Span{}))
	frame("reset of an empty stream", c.AppendReset(nil, oddAddress, ReasonEpochChanged, Span{testEpoch, 1, 0}))
	frame("presence", c.AppendPresenceError(nil, testIdentifier))
	for _, r := range []DisconnectReason{DisconnectUnauthorized, DisconnectTokenExpired, DisconnectServerRestart, DisconnectTooSlow, DisconnectRemote, DisconnectIdleTimeout} {
		frame("disconnect, "+string(r), c.AppendDisconnect(nil, r, r != DisconnectUnauthorized && r != DisconnectRemote))
	}
	frame("error", c.AppendError(nil, "message", testIdentifier, "unsupported", `no handler for "<b>&"`))
	frame("error without command and identifier", c.AppendError(nil, "", "", "malformed", "the frame is not valid JSON in UTF-8"))

	for _, p := range payloads {
		frames("message "+strings.ReplaceAll(p, "\u2028", "LS "), a, false, Message{Offset: 42, Data: []byte(p)})
	}
	frames("message with white space around it", a, false, Message{Offset: 42, Data: []byte(" { } ")})
	frames("message at the highest offset", a, false, Message{Offset: MaxOffset, Data: []byte(`"last"`)})
	frames("message to an odd address", oddAddress, false, Message{Offset: 1, Data: []byte(`"a"`)})
	frames("one replayed", a, true, Message{Offset: 7, Data: []byte(`"a"`)})
	frames("several live", a, false, Message{Offset: 7, Data: []byte(`"a"`)}, Message{Offset: 8, Data: []byte(`0`)}, Message{Offset: 9, Data: []byte(`null`)})
	frames("several replayed", a, true, Message{Offset: 7, Data: []byte(`"a"`)}, Message{Offset: 8, Data: []byte(`false`)})
	big := func(offset uint64) Message {
		return Message{Offset: offset, Data: []byte(`"` + strings.Repeat(`<p class=\"turn\">語</p>`, 80<<10/26) + `"`)}
	}
	frames("80 KB", a, false, big(1))
	frames("5 of 80 KB replayed", a, true, big(1), big(2), big(3), big(4), big(5))
	return cases
}
