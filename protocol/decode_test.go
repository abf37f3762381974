package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestDecode(t *testing.T) {
	history := func(since int64, streams map[string]Position) *HistoryRequest {
		return &HistoryRequest{Since: since, Streams: streams}
	}
	for _, tc := range []struct {
		name, frame string
		want        Command
	}{
		{"subscribe", `{"command":"subscribe","identifier":"{\"channel\":\"A\"}"}`,
			Command{Name: "subscribe", Identifier: `{"channel":"A"}`}},
		{"unsubscribe", `{"identifier":"I","command":"unsubscribe"}`,
			Command{Name: "unsubscribe", Identifier: "I"}},
		{"subscribe as the AnyCable client sends it first", `{"command":"subscribe","identifier":"I","history":{"since":1796061600,"streams":{}}}`,
			Command{Name: "subscribe", Identifier: "I", History: history(1796061600, nil)}},
		{"and again, with what it got", `{"command":"subscribe","identifier":"I","history":{"since":1796061600,"streams":{"a":{"epoch":"7","offset":41},"b/ü":{"epoch":"8","offset":0}}}}`,
			Command{Name: "subscribe", Identifier: "I", History: history(1796061600, map[string]Position{"a": {7, 41}, "b/ü": {8, 0}})}},
		{"with historyTimestamp off", `{"command":"subscribe","identifier":"I","history":{"since":false,"streams":{"a":{"epoch":"7","offset":41}}}}`,
			Command{Name: "subscribe", Identifier: "I", History: history(0, map[string]Position{"a": {7, 41}})}},
		{"history", `{"command":"history","identifier":"I","history":{"streams":{"a":{"epoch":"7","offset":9007199254740991}}}}`,
			Command{Name: "history", Identifier: "I", History: history(0, map[string]Position{"a": {7, MaxOffset}})}},
		{"history of nothing", `{"command":"history","identifier":"I","history":{}}`,
			Command{Name: "history", Identifier: "I", History: history(0, nil)}},
		{"null for none", `{"command":"history","identifier":"I","history":{"since":null,"streams":null}}`,
			Command{Name: "history", Identifier: "I", History: history(0, nil)}},
		{"null history of subscribe", `{"command":"subscribe","identifier":"I","history":null}`,
			Command{Name: "subscribe", Identifier: "I"}},
		{"position of another server", `{"command":"history","identifier":"I","history":{"streams":{"a":{"epoch":"xQ3f","offset":41}}}}`,
			Command{Name: "history", Identifier: "I", History: history(0, map[string]Position{"a": {ForeignEpoch, 41}})}},
		{"epoch not as we spell it", `{"command":"history","identifier":"I","history":{"streams":{"a":{"epoch":"-1","offset":1},"b":{"epoch":"0","offset":1},"c":{"epoch":"07","offset":1}}}}`,
			Command{Name: "history", Identifier: "I", History: history(0, map[string]Position{"a": {ForeignEpoch, 1}, "b": {ForeignEpoch, 1}, "c": {ForeignEpoch, 1}})}},
		{"fraction of a second", `{"command":"history","identifier":"I","history":{"since":1796061600.999}}`,
			Command{Name: "history", Identifier: "I", History: history(1796061600, nil)}},
		{"exponent", `{"command":"history","identifier":"I","history":{"since":1.7960616e9}}`,
			Command{Name: "history", Identifier: "I", History: history(1796061600, nil)}},
		{"since zero", `{"command":"history","identifier":"I","history":{"since":-0}}`,
			Command{Name: "history", Identifier: "I", History: history(0, nil)}},
		{"latest since", `{"command":"history","identifier":"I","history":{"since":253402300799}}`,
			Command{Name: "history", Identifier: "I", History: history(MaxSince, nil)}},
		{"message", `{"command":"message","identifier":"I","data":"{\"action\":\"speak\",\"t\":\"<\\\"é\"}"}`,
			Command{Name: "message", Identifier: "I", Data: `{"action":"speak","t":"<\"é"}`}},
		{"pong", `{"command":"pong"}`, Command{Name: "pong"}},
		{"pong with an identifier", `{"command":"pong","identifier":{"a":1}}`, Command{Name: "pong"}},
		{"whisper with data of any type", `{"command":"whisper","identifier":"I","data":{"x":[1]}}`, Command{Name: "whisper", Identifier: "I"}},
		{"join", `{"command":"join","identifier":"I","presence":{"id":1,"info":{}}}`, Command{Name: "join", Identifier: "I"}},
		{"presence", `{"command":"presence","identifier":"I","data":null}`, Command{Name: "presence", Identifier: "I"}},
		{"subscribe with presence", `{"command":"subscribe","identifier":"I","presence":{"id":"1"}}`, Command{Name: "subscribe", Identifier: "I"}},
		{"unknown command", `{"command":"frobnicate","identifier":"I","history":7,"data":7}`, Command{Name: "frobnicate", Identifier: "I"}},
		{"longest name", `{"command":"` + strings.Repeat("x", MaxCommandBytes) + `","identifier":"I"}`, Command{Name: strings.Repeat("x", MaxCommandBytes), Identifier: "I"}},
		{"unknown members", `{"a":{"command":"x"},"command":"pong","b":["]","}"],"c":"\"}"}`, Command{Name: "pong"}},
		{"members by exact name", `{"Command":1,"command":"unsubscribe","IDENTIFIER":2,"identifier":"I"}`, Command{Name: "unsubscribe", Identifier: "I"}},
		{"repeated members, the last counts", `{"command":"x","command":"unsubscribe","identifier":5,"identifier":"I"}`, Command{Name: "unsubscribe", Identifier: "I"}},
		{"escaped member names", `{"\u0063ommand":"unsubscribe","identif\u0069er":"I","\ud800":1}`, Command{Name: "unsubscribe", Identifier: "I"}},
		{"white space", " {\n\t\"command\" : \"unsubscribe\" ,\r\n \"identifier\" : \"I\" } \n", Command{Name: "unsubscribe", Identifier: "I"}},
		{"identifier that is no JSON is the session's to judge", `{"command":"subscribe","identifier":"nope"}`, Command{Name: "subscribe", Identifier: "nope"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, c := range Codecs() {
				got, err := c.Decode([]byte(tc.frame))
				if err != nil || !reflect.DeepEqual(got, tc.want) {
					t.Errorf("%s: %+v %+v, %v, want %+v %+v", c.Name(), got, got.History, err, tc.want, tc.want.History)
				}
			}
		})
	}
}

func TestDecode_RefusesWithAReason(t *testing.T) {
	streams := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"s%d":{"epoch":"7","offset":1}`, i)
		}
		return `{"command":"history","identifier":"I","history":{"streams":{` + b.String()[1:] + `}}}`
	}
	with := func(history string) string {
		return `{"command":"subscribe","identifier":"I","history":` + history + `}`
	}
	position := func(p string) string { return with(`{"streams":{"a":` + p + `}}`) }
	type test struct{ frame, says string }
	check := func(t *testing.T, command, identifier string, tests ...test) {
		t.Helper()
		for _, tc := range tests {
			cmd, err := Codecs()[1].Decode([]byte(tc.frame))
			var ce *CommandError
			if !errors.As(err, &ce) {
				t.Errorf("%.80q: %+v, %v", tc.frame, cmd, err)
				continue
			}
			if ce.Reason != "malformed" || !strings.Contains(ce.Message, tc.says) {
				t.Errorf("%.80q: %s %q, want a sentence with %q", tc.frame, ce.Reason, ce.Message, tc.says)
			}
			if ce.Command != command || ce.Identifier != identifier {
				t.Errorf("%.80q: of command %q and identifier %q, want %q and %q", tc.frame, ce.Command, ce.Identifier, command, identifier)
			}
			if !reflect.DeepEqual(cmd, Command{}) {
				t.Errorf("%.80q: an error and %+v", tc.frame, cmd)
			}
			if len(ce.Message) > 200 {
				t.Errorf("%.80q: a sentence of %d bytes", tc.frame, len(ce.Message))
			}
		}
	}
	t.Run("frame", func(t *testing.T) {
		check(t, "", "",
			test{``, "not valid JSON"}, test{` `, "not valid JSON"}, test{`{`, "not valid JSON"}, test{`{"command":"pong"}x`, "not valid JSON"},
			test{"{\"command\":\"\xff\"}", "not valid JSON"}, test{"\xff\xfe", "not valid JSON"}, test{"{\"command\":\"a\nb\"}", "not valid JSON"},
			test{strings.Repeat("[", 1<<16), "not valid JSON"}, test{strings.Repeat(`{"a":`, 1<<15), "not valid JSON"},
			test{strings.Repeat("[", 9000) + strings.Repeat("]", 9000), "nested too deep"},
			test{`null`, "not a JSON object"}, test{`"subscribe"`, "not a JSON object"}, test{`7`, "not a JSON object"}, test{`[{"command":"pong"}]`, "not a JSON object"},
		)
	})
	t.Run("command", func(t *testing.T) {
		check(t, "", "",
			test{`{}`, "command must be"}, test{`{"command":null}`, "command must be"}, test{`{"command":7}`, "command must be"},
			test{`{"command":["pong"]}`, "command must be"}, test{`{"command":""}`, "command must be"}, test{`{"command":"\ud800"}`, "command must be"},
			test{`{"command":"` + strings.Repeat("x", MaxCommandBytes+1) + `","identifier":"I"}`, "command must be"},
			test{`{"Command":"pong"}`, "command must be"},
		)
	})
	t.Run("identifier", func(t *testing.T) {
		check(t, "subscribe", "",
			test{`{"command":"subscribe"}`, "missing"},
			test{`{"command":"subscribe","identifier":{"channel":"A"}}`, "must be a string"},
			test{`{"command":"subscribe","identifier":["I"]}`, "must be a string"},
			test{`{"command":"subscribe","identifier":7}`, "must be a string"},
			test{`{"command":"subscribe","identifier":null}`, "must be a string"},
			test{`{"command":"subscribe","identifier":""}`, "empty"},
			test{`{"command":"subscribe","identifier":"\ud800"}`, "surrogate"},
		)
		check(t, "frobnicate", "", test{`{"command":"frobnicate"}`, "missing"})
	})
	t.Run("data", func(t *testing.T) {
		check(t, "message", "I",
			test{`{"command":"message","identifier":"I"}`, "data must be"},
			test{`{"command":"message","identifier":"I","data":{"a":1}}`, "data must be"},
			test{`{"command":"message","identifier":"I","data":"nope"}`, "data must be"},
			test{`{"command":"message","identifier":"I","data":"\ud800"}`, "data must be"},
		)
	})
	t.Run("history", func(t *testing.T) {
		check(t, "history", "I",
			test{`{"command":"history","identifier":"I"}`, "history must be"},
			test{`{"command":"history","identifier":"I","history":null}`, "history must be"},
			test{streams(MaxHistoryStreams + 1), "at most 100"},
		)
		check(t, "subscribe", "I",
			test{with(`[]`), "history must be"}, test{with(`"x"`), "history must be"}, test{with(`7`), "history must be"},
			test{with(`{"since":"1796061600"}`), "history.since"}, test{with(`{"since":true}`), "history.since"}, test{with(`{"since":{}}`), "history.since"},
			test{with(`{"since":-1}`), "history.since"}, test{with(`{"since":-0.5}`), "history.since"}, test{with(`{"since":1e400}`), "history.since"},
			test{with(`{"since":253402300800}`), "history.since"}, test{with(`{"since":1796061600000}`), "history.since"},
			test{with(`{"since":` + strings.Repeat("9", 60000) + `}`), "history.since"},
			test{with(`{"streams":[]}`), "history.streams"}, test{with(`{"streams":"a"}`), "history.streams"}, test{with(`{"streams":1}`), "history.streams"},
			test{with(`{"streams":{"":{"epoch":"7","offset":1}}}`), "name of a stream"},
			test{with(`{"streams":{"a\n":{"epoch":"7","offset":1}}}`), "name of a stream"},
			test{with(`{"streams":{"` + strings.Repeat("x", 256) + `":{"epoch":"7","offset":1}}}`), "name of a stream"},
		)
	})
	t.Run("position", func(t *testing.T) {
		check(t, "subscribe", "I",
			test{position(`null`), "position"}, test{position(`41`), "position"}, test{position(`"7:41"`), "position"}, test{position(`["7",41]`), "position"},
			test{position(`{}`), "epoch"}, test{position(`{"offset":1}`), "epoch"}, test{position(`{"epoch":7,"offset":1}`), "epoch"},
			test{position(`{"epoch":null,"offset":1}`), "epoch"}, test{position(`{"epoch":"","offset":1}`), "epoch"},
			test{position(`{"epoch":"` + strings.Repeat("9", 65) + `","offset":1}`), "epoch"},
			test{position(`{"epoch":"7"}`), "offset"}, test{position(`{"epoch":"7","offset":null}`), "offset"}, test{position(`{"epoch":"7","offset":"1"}`), "offset"},
			test{position(`{"epoch":"7","offset":-1}`), "offset"}, test{position(`{"epoch":"7","offset":-0}`), "offset"}, test{position(`{"epoch":"7","offset":1.5}`), "offset"},
			test{position(`{"epoch":"7","offset":1.0}`), "offset"}, test{position(`{"epoch":"7","offset":1e3}`), "offset"},
			test{position(`{"epoch":"7","offset":9007199254740992}`), "offset"}, test{position(`{"epoch":"7","offset":1e999}`), "offset"},
		)
	})
	if _, err := Codecs()[1].Decode([]byte(streams(MaxHistoryStreams))); err != nil {
		t.Errorf("%d streams: %v", MaxHistoryStreams, err)
	}
}

// B55: a command with members this server has never heard of means the same as
// without them.
func TestB55_Decode_IgnoresUnknownMembersEverywhere(t *testing.T) {
	plain := `{"command":"subscribe","identifier":"I","history":{"since":5,"streams":{"a":{"epoch":"7","offset":41}}}}`
	extra := `{"v":2,"command":"subscribe","x":{"identifier":"no"},"identifier":"I","history":{"limit":9,"since":5,"streams":{"a":{"gen":null,"epoch":"7","offset":41,"uid":"z"}},"y":[]}}`
	want, err1 := Codecs()[0].Decode([]byte(plain))
	got, err2 := Codecs()[0].Decode([]byte(extra))
	if err1 != nil || err2 != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; %+v, %v", got, err2, want, err1)
	}
}

// B124: an object instead of a string is refused with words that help.
func TestB124_Decode_ObjectIdentifierGetsAClearReason(t *testing.T) {
	_, err := Codecs()[0].Decode([]byte(`{"command":"subscribe","identifier":{"channel":"$pubsub","stream_name":"a"}}`))
	var ce *CommandError
	if !errors.As(err, &ce) || ce.Reason != "malformed" || ce.Command != "subscribe" || !strings.Contains(ce.Message, "JSON.stringify") {
		t.Errorf("%+v", err)
	}
}

func TestParseIdentifier(t *testing.T) {
	at := func(e Epoch, o uint64) *Position { return &Position{e, o} }
	for _, tc := range []struct {
		text string
		want Identifier
	}{
		{`{"channel":"$pubsub","stream_name":"chat/42"}`, Identifier{Channel: "$pubsub", StreamName: "chat/42"}},
		{`{"signed_stream_name":"abc--def","channel":"Turbo::StreamsChannel"}`, Identifier{Channel: "Turbo::StreamsChannel", SignedStreamName: "abc--def"}},
		{`{"channel":"C","stream_name":null,"signed_stream_name":null,"epoch":null,"offset":null}`, Identifier{Channel: "C"}},
		{`{"channel":"$pubsub","stream_name":"a","epoch":"1796061414123456","offset":"41"}`, Identifier{Channel: "$pubsub", StreamName: "a", At: at(1796061414123456, 41)}},
		{`{"channel":"$pubsub","stream_name":"a","epoch":"7","offset":41}`, Identifier{Channel: "$pubsub", StreamName: "a", At: at(7, 41)}},
		{`{"channel":"$pubsub","stream_name":"a","epoch":"7","offset":"0"}`, Identifier{Channel: "$pubsub", StreamName: "a", At: at(7, 0)}},
		{`{"channel":"$pubsub","stream_name":"a","epoch":"7","offset":"0","page":"p-1"}`, Identifier{Channel: "$pubsub", StreamName: "a", At: at(7, 0), Page: "p-1"}},
		{`{"channel":"$pubsub","stream_name":"a","epoch":"7","offset":"0","page":2}`, Identifier{Channel: "$pubsub", StreamName: "a", At: at(7, 0)}},
		{`{"channel":"$pubsub","stream_name":"a","page":"p-1"}`, Identifier{Channel: "$pubsub", StreamName: "a"}},
		{`{"channel":"ChatRoom","id":5,"nested":{"channel":"no"},"epochs":1,"Channel":2,"list":["\"}"]}`, Identifier{Channel: "ChatRoom"}},
		{` { "channel" : "\u0024pubsub" , "stream_name" : "\ud83d\ude80\/" } `, Identifier{Channel: "$pubsub", StreamName: "🚀/"}},
		{`{"channel":"a","channel":"b"}`, Identifier{Channel: "b"}},
	} {
		got, err := ParseIdentifier(tc.text)
		if err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, %v, want %+v", tc.text, got, err, tc.want)
		}
	}
	for _, text := range []string{
		``, `nope`, `{`, `null`, `7`, `[]`, `"x"`, `{}`, "{\"channel\":\"\xff\"}", strings.Repeat("[", 4096),
		`{"channel":null}`, `{"channel":7}`, `{"channel":""}`, `{"channel":{"a":1}}`, `{"Channel":"x"}`, `{"channel":"\udc00"}`,
		`{"channel":"c","stream_name":7}`, `{"channel":"c","stream_name":["a"]}`, `{"channel":"c","stream_name":false}`, `{"channel":"c","stream_name":"\ud800"}`,
		`{"channel":"c","signed_stream_name":{}}`, `{"channel":"c","signed_stream_name":0}`,
		`{"channel":"c","epoch":"7"}`, `{"channel":"c","offset":"1"}`, `{"channel":"c","epoch":null,"offset":"1"}`, `{"channel":"c","epoch":"7","offset":null}`,
		`{"channel":"c","epoch":7,"offset":1}`, `{"channel":"c","epoch":"0","offset":1}`, `{"channel":"c","epoch":"-7","offset":1}`, `{"channel":"c","epoch":"07","offset":1}`,
		`{"channel":"c","epoch":"","offset":""}`, `{"channel":"c","epoch":"xQ3f","offset":1}`, `{"channel":"c","epoch":{},"offset":1}`, `{"channel":"c","epoch":"9223372036854775808","offset":1}`,
		`{"channel":"c","epoch":"7","offset":""}`, `{"channel":"c","epoch":"7","offset":"-1"}`, `{"channel":"c","epoch":"7","offset":-1}`, `{"channel":"c","epoch":"7","offset":1.5}`,
		`{"channel":"c","epoch":"7","offset":"01"}`, `{"channel":"c","epoch":"7","offset":" 1"}`, `{"channel":"c","epoch":"7","offset":"1\""}`, `{"channel":"c","epoch":"7","offset":true}`,
		`{"channel":"c","epoch":"7","offset":[1]}`, `{"channel":"c","epoch":"7","offset":"9007199254740992"}`, `{"channel":"c","epoch":"7","offset":1e3}`,
	} {
		got, err := ParseIdentifier(text)
		var ce *CommandError
		if !errors.As(err, &ce) || ce.Reason != "malformed" || ce.Message == "" || ce.Identifier != text {
			t.Errorf("%.60s: %+v, %v", text, got, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"command":"subscribe","identifier":"{\"channel\":\"$pubsub\",\"stream_name\":\"a\"}"}`,
		`{"command":"subscribe","identifier":"I","history":{"since":1796061600.5,"streams":{"a":{"epoch":"7","offset":41},"b":{"epoch":"x","offset":0}}}}`,
		`{"command":"message","identifier":"I","data":"{\"a\":\"\\u003c\"}"}`, `{"command":"pong"}`, `{"command":"history","identifier":"I","history":{"since":false}}`,
		`{"command":"x","identifier":{"a":1}}`, `{"\u0063ommand":"pong","command":"\ud83d\ude80","identifier":"\ud800"}`, `[[[[`, "\xff", `{"command":"whisper","identifier":"I","data":[{"]":"}"}]}`,
		`{"command":"history","identifier":"I","history":{"since":1e309}}`, ` { } `, `{"a" : [ ] , "command":"pong" }`,
	} {
		f.Add([]byte(s))
	}
	codec := Codecs()[0]
	f.Fuzz(func(t *testing.T, frame []byte) {
		cmd, err := codec.Decode(frame)
		if err != nil {
			ce, ok := err.(*CommandError)
			if !ok || ce.Reason == "" || ce.Message == "" || !utf8.ValidString(ce.Message) || !utf8.ValidString(ce.Identifier) || len(ce.Command) > MaxCommandBytes {
				t.Fatalf("%#v", err)
			}
			if !json.Valid(codec.AppendError(nil, ce.Command, ce.Identifier, ce.Reason, ce.Message)) {
				t.Fatalf("the error frame of %#v is not JSON", ce)
			}
			return
		}
		// encoding/json reads the same.
		var seen map[string]json.RawMessage
		if err := json.Unmarshal(frame, &seen); err != nil {
			t.Fatal(err)
		}
		var name string
		if json.Unmarshal(seen["command"], &name); name != cmd.Name || name == "" || len(name) > MaxCommandBytes {
			t.Fatalf("command %q, json says %q", cmd.Name, name)
		}
		var identifier string
		if json.Unmarshal(seen["identifier"], &identifier); cmd.Identifier != "" && identifier != cmd.Identifier {
			t.Fatalf("identifier %q, json says %q", cmd.Identifier, identifier)
		}
		if cmd.Data != "" && !json.Valid([]byte(cmd.Data)) {
			t.Fatalf("data %q", cmd.Data)
		}
		if h := cmd.History; h != nil {
			if h.Since < 0 || h.Since > MaxSince || len(h.Streams) > MaxHistoryStreams {
				t.Fatalf("history %+v", h)
			}
			for stream, p := range h.Streams {
				if CheckStream(stream) != nil || p.Offset > MaxOffset || p.Epoch < ForeignEpoch || p.Epoch == 0 {
					t.Fatalf("%q at %v", stream, p)
				}
			}
		}
		// Written and read again it is the same command.
		again, err := codec.Decode(encodeCommand(cmd))
		if err != nil || !equalCommands(again, cmd) {
			t.Fatalf("%+v came back as %+v, %v", cmd, again, err)
		}
	})
}

// encodeCommand writes a command as a client would.
func encodeCommand(cmd Command) []byte {
	m := map[string]any{"command": cmd.Name}
	if cmd.Identifier != "" {
		m["identifier"] = cmd.Identifier
	}
	if cmd.Name == "message" {
		m["data"] = cmd.Data
	}
	if h := cmd.History; h != nil {
		streams := map[string]any{}
		for name, p := range h.Streams {
			streams[name] = map[string]any{"epoch": p.Epoch.String(), "offset": p.Offset}
		}
		m["history"] = map[string]any{"since": h.Since, "streams": streams}
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func equalCommands(a, b Command) bool {
	if a.Name != b.Name || a.Identifier != b.Identifier || a.Data != b.Data || (a.History == nil) != (b.History == nil) {
		return false
	}
	return a.History == nil || a.History.Since == b.History.Since && maps.Equal(a.History.Streams, b.History.Streams)
}

func FuzzParseIdentifier(f *testing.F) {
	for _, s := range []string{
		`{"channel":"$pubsub","stream_name":"chat/42"}`, `{"channel":"Turbo::StreamsChannel","signed_stream_name":"a--b","epoch":"7","offset":"41"}`,
		`{"channel":"C","epoch":"7","offset":9007199254740991}`, `{"channel":"C","offset":"1"}`, `{"channel":"\ud800"}`, `{}`, `[`, "\xff", `{"channel":"C","x":{"y":["}"]}}`,
		`{"channel":"C","epoch":"7","offset":"`, `{"channel":"C","epoch":"7","offset":"1\u0030"}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := ParseIdentifier(text)
		if err != nil {
			if ce, ok := err.(*CommandError); !ok || ce.Reason == "" || ce.Message == "" {
				t.Fatalf("%#v", err)
			}
			return
		}
		m := map[string]any{"channel": id.Channel, "stream_name": id.StreamName, "signed_stream_name": id.SignedStreamName}
		if id.At != nil {
			if id.At.Offset > MaxOffset || id.At.Epoch < 1 {
				t.Fatalf("at %v", *id.At)
			}
			m["epoch"], m["offset"] = id.At.Epoch.String(), fmt.Sprint(id.At.Offset)
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseIdentifier(string(b))
		if err != nil || !reflect.DeepEqual(again, id) {
			t.Fatalf("%+v came back as %+v, %v", id, again, err)
		}
	})
}
