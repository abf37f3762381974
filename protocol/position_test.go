package protocol

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestParsePosition(t *testing.T) {
	for _, tc := range []struct {
		text string
		want Position
	}{
		{"1796061414123456:41", Position{1796061414123456, 41}},
		{"1:0", Position{1, 0}},
		{"9223372036854775807:9007199254740991", Position{math.MaxInt64, MaxOffset}},
		{"0", Position{0, 0}},
		{"41", Position{0, 41}},
		{"9007199254740991", Position{0, MaxOffset}},
	} {
		got, err := ParsePosition(tc.text)
		if err != nil || got != tc.want {
			t.Errorf("ParsePosition(%q) = %v, %v, want %v", tc.text, got, err, tc.want)
		}
		if tc.want.Epoch != 0 && got.String() != tc.text {
			t.Errorf("%q came back as %q", tc.text, got.String())
		}
	}
}

// B32: a position that is malformed, negative or huge is an error, never a
// position from which nothing would follow.
func TestB32_ParsePosition_RefusesWhatNoServerIssued(t *testing.T) {
	for _, text := range []string{
		"", ":", "1:", ":1", "0:1", "-1", "-1:1", "1:-1", "+1:1", "1:+1", "01:1", "1:01", "00", "1:1:1", "1.0:1", "1:1.5", "1:1e3",
		"abc", "abc:1", "1:abc", " 1:1", "1:1 ", "1: 1", "0x10:1", "1_0:1", "1:\x00", "١:1", "1:9007199254740992",
		"9223372036854775808:1", "18446744073709551616", "1:18446744073709551616", "99999999999999999999999:1",
		strings.Repeat("9", 1<<16), strings.Repeat("1", 1<<16) + ":1", "null", "undefined:undefined", "NaN",
	} {
		if p, err := ParsePosition(text); err == nil {
			t.Errorf("ParsePosition(%.40q) = %v", text, p)
		} else if len(err.Error()) > 200 {
			t.Errorf("ParsePosition(%.40q): an error of %d bytes", text, len(err.Error()))
		}
	}
}

// B116: JavaScript holds integers exactly up to 2^53-1. Offsets stop there on
// every path; epochs, which pass it, travel as strings.
func TestB116_OffsetsEndWhereJavaScriptCountsExactly(t *testing.T) {
	const last, past = "9007199254740991", "9007199254740992"
	if fmt.Sprint(uint64(MaxOffset)) != last || uint64(float64(MaxOffset)) != MaxOffset || float64(MaxOffset)+1 == float64(MaxOffset) {
		t.Fatal("MaxOffset is not 2^53-1")
	}
	codec := Codecs()[0]
	for _, offset := range []string{last, past, "9007199254740993", "18446744073709551615", "1e400"} {
		good := offset == last
		check := func(where string, err error) {
			t.Helper()
			if (err == nil) != good {
				t.Errorf("%s with offset %s: %v", where, offset, err)
			}
		}
		_, err := ParsePosition("7:" + offset)
		check("ParsePosition", err)
		_, err = ParsePosition(offset)
		check("bare ParsePosition", err)
		_, err = ParseIdentifier(`{"channel":"$pubsub","stream_name":"s","epoch":"7","offset":"` + offset + `"}`)
		check("ParseIdentifier, string", err)
		_, err = ParseIdentifier(`{"channel":"$pubsub","stream_name":"s","epoch":"7","offset":` + offset + `}`)
		check("ParseIdentifier, number", err)
		_, err = codec.Decode([]byte(`{"command":"history","identifier":"{}","history":{"streams":{"s":{"epoch":"7","offset":` + offset + `}}}}`))
		check("Decode", err)
	}
	frame := texts(t, codec.Frames(nil, NewAddress("{}", "s"), math.MaxInt64, []Message{{Offset: MaxOffset, Data: []byte("0")}}, false))[0]
	if !strings.HasSuffix(string(frame), `"epoch":"9223372036854775807","offset":`+last+`}`) {
		t.Errorf("frame %s", frame)
	}
}

func TestParseEpoch(t *testing.T) {
	for _, e := range []Epoch{1, 1796061414123456, math.MaxInt64} {
		if got, err := ParseEpoch(e.String()); err != nil || got != e {
			t.Errorf("ParseEpoch(%q) = %v, %v", e.String(), got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "+1", "01", "1.0", "9223372036854775808", "x", " 1"} {
		if got, err := ParseEpoch(text); err == nil {
			t.Errorf("ParseEpoch(%q) = %v", text, got)
		}
	}
	if _, err := ParseEpoch(ForeignEpoch.String()); err == nil {
		t.Error("ForeignEpoch can be asked for by name")
	}
}

func TestSpan_Check(t *testing.T) {
	const e = Epoch(7)
	for _, tc := range []struct {
		name string
		span Span
		at   Position
		want Reason
	}{
		{"never used, from the start", Span{e, 1, 0}, Position{e, 0}, ""},
		{"never used, bare", Span{e, 1, 0}, Position{0, 0}, ""},
		{"never used, past it", Span{e, 1, 0}, Position{e, 1}, ReasonAhead},
		{"at the head", Span{e, 1, 10}, Position{e, 10}, ""},
		{"in the middle", Span{e, 1, 10}, Position{e, 4}, ""},
		{"past the head", Span{e, 1, 10}, Position{e, 11}, ReasonAhead},
		{"far past the head", Span{e, 1, 10}, Position{e, math.MaxUint64}, ReasonAhead},
		{"bare, past the head", Span{e, 1, 10}, Position{0, 11}, ReasonAhead},
		{"next is the first kept", Span{e, 5, 10}, Position{e, 4}, ""},
		{"one too old", Span{e, 5, 10}, Position{e, 3}, ReasonTrimmed},
		{"from the start of a trimmed stream", Span{e, 5, 10}, Position{e, 0}, ReasonTrimmed},
		{"all trimmed, at the head", Span{e, 11, 10}, Position{e, 10}, ""},
		{"all trimmed, before the head", Span{e, 11, 10}, Position{e, 9}, ReasonTrimmed},
		{"an older life", Span{e, 1, 10}, Position{e - 1, 4}, ReasonEpochChanged},
		{"a life to come", Span{e, 1, 10}, Position{e + 1, 4}, ReasonEpochChanged},
		{"another life before anything else", Span{e, 5, 10}, Position{e - 1, 99}, ReasonEpochChanged},
		{"a foreign life", Span{e, 1, 10}, Position{ForeignEpoch, 4}, ReasonEpochChanged},
		{"the highest offset", Span{e, MaxOffset, MaxOffset}, Position{e, MaxOffset}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.span.Check(tc.at); got != tc.want {
				t.Errorf("%+v.Check(%v) = %q, want %q", tc.span, tc.at, got, tc.want)
			}
			if head := tc.span.Head(); tc.span.Check(head) != "" {
				t.Errorf("the head %v cannot be continued", head)
			}
		})
	}
}

func TestCheckStream(t *testing.T) {
	for _, name := range []string{
		"a", "chat/42", " ", "a b", "Turbo::StreamsChannel:Z2lk", "日本語", "🚀", "%2F", "..", "/", `"\`, "<&>", "\u2028", "\u00a0", "\ufeff",
		"\ufffd", strings.Repeat("x", MaxStreamBytes), strings.Repeat("語", MaxStreamBytes/3),
	} {
		if err := CheckStream(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{
		"", "\x00", "a\x00", "a\nb", "\r", "\t", "\x1f", "\x7f", "\u0080", "\u009f", "\xff", "a\xc3", "\xed\xa0\x80", "\xc0\xaf",
		strings.Repeat("x", MaxStreamBytes+1), strings.Repeat("語", MaxStreamBytes/3) + "x",
	} {
		if err := CheckStream(name); !errors.Is(err, ErrStreamName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// B92: names are counted in bytes and compared as a whole. Names that agree in
// a long beginning, or look alike, stay apart on every path through here.
func TestB92_StreamNames_AreNeitherCutNorFolded(t *testing.T) {
	common := strings.Repeat("n", 63)
	names := []string{
		common, common + "a", common + "b", strings.Repeat("n", 64), strings.Repeat("n", 65),
		strings.Repeat("語", 22), strings.Repeat("語", 21) + "诶", strings.Repeat("語", 21),
		strings.Repeat("語", 85), strings.Repeat("語", 84) + "誾",
		strings.Repeat("x", 254) + "1", strings.Repeat("x", 254) + "2", strings.Repeat("x", 254),
		"caf\u00e9", "cafe\u0301", "Chat", "chat", "chat ", " chat", "chat/", "a%2Fb", "a/b", `a\/b`,
	}
	codec := Codecs()[0]
	seen := map[string]string{}
	for _, name := range names {
		if err := CheckStream(name); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		identifier := `{"channel":"$pubsub","stream_name":` + string(appendQuoted(nil, name)) + `}`
		id, err := ParseIdentifier(identifier)
		if err != nil || id.StreamName != name {
			t.Fatalf("identifier of %q names %q, %v", name, id.StreamName, err)
		}
		published, err := DecodeBroadcasts([]byte(`{"stream":`+string(appendQuoted(nil, name))+`,"data":"1"}`), 1)
		if err != nil || published[0].Stream != name {
			t.Fatalf("broadcast to %q: %v, %v", name, published, err)
		}
		cmd, err := codec.Decode([]byte(`{"command":"subscribe","identifier":"{}","history":{"streams":{` + string(appendQuoted(nil, name)) + `:{"epoch":"7","offset":1}}}}`))
		if _, ok := cmd.History.Streams[name]; err != nil || !ok {
			t.Fatalf("history of %q: %v, %v", name, cmd.History, err)
		}
		frame := string(codec.Frames(nil, NewAddress("{}", name), 7, []Message{{Offset: 1, Data: []byte("1")}}, false)[0])
		if other, ok := seen[frame]; ok {
			t.Errorf("%q and %q have the same frame", name, other)
		}
		seen[frame] = name
		if got := readFrames(t, [][]byte{[]byte(frame)}); got[0].stream != name {
			t.Errorf("frame of %q names %q", name, got[0].stream)
		}
	}
}

func FuzzParsePosition(f *testing.F) {
	for _, s := range []string{"1796061414123456:41", "41", "0", "1:0", "", ":", "01:1", "1:9007199254740992", "-1:1", "1:1:1", "９:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePosition(text)
		if err != nil {
			if p != (Position{}) {
				t.Fatalf("an error and %v", p)
			}
			return
		}
		if p.Offset > MaxOffset || p.Epoch < 0 {
			t.Fatalf("%q gives %v", text, p)
		}
		spelled := p.String()
		if p.Epoch == 0 {
			spelled = fmt.Sprint(p.Offset)
		}
		if spelled != text {
			t.Fatalf("%q and %q are the same position", text, spelled)
		}
	})
}
