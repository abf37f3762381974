package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestDecodeBroadcasts(t *testing.T) {
	one := func(data string) []Published { return []Published{{"chat/42", []byte(data)}} }
	for _, tc := range []struct {
		name, body string
		want       []Published
	}{
		{"JSON text passes as it is", `{"stream":"chat/42","data":"{\"b\": 1,\"a\":\"<b>\\u003c\"}"}`, one(`{"b": 1,"a":"<b>\u003c"}`)},
		{"other text becomes a string", `{"stream":"chat/42","data":"<turbo-stream action=\"append\">\n"}`, one(`"<turbo-stream action=\"append\">\n"`)},
		{"empty text", `{"stream":"chat/42","data":""}`, one(`""`)},
		{"number", `{"stream":"chat/42","data":"42"}`, one(`42`)},
		{"number JavaScript cannot hold", `{"stream":"chat/42","data":"12345678901234567890.10"}`, one(`12345678901234567890.10`)},
		{"null, false, zero", `{"stream":"chat/42","data":"null"}`, one(`null`)},
		{"quoted string", `{"stream":"chat/42","data":"\"hi\""}`, one(`"hi"`)},
		{"white space is kept", `{"stream":"chat/42","data":" {} \n"}`, one(" {} \n")},
		{"escapes of the outer string", `{"stream":"chat\/42","data":"\ud83d\ude80\u2028\u0000"}`, one("\"🚀\u2028\\u0000\"")},
		{"escapes of the inner text stay", `{"stream":"chat/42","data":"\"\\ud800\""}`, one(`"\ud800"`)},
		{"meta and unknown members", `{"meta":{"exclude_socket":"x","stream":"no"},"stream":"chat/42","data":"1","Data":2,"x":[]}`, one(`1`)},
		{"null command beside a stream", `{"stream":"chat/42","data":"1","command":null}`, one(`1`)},
		{"a repeated member, the last counts", `{"stream":"x","stream":"chat/42","data":5,"data":"1"}`, one(`1`)},
		{"array", ` [ {"stream":"a","data":"1"} , {"stream":"b","data":"x"} ] `, []Published{{"a", []byte("1")}, {"b", []byte(`"x"`)}}},
		{"one stream twice keeps its order", `[{"stream":"a","data":"1"},{"stream":"a","data":"2"}]`, []Published{{"a", []byte("1")}, {"a", []byte("2")}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := DecodeBroadcasts([]byte(tc.body), 2)
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
			for _, p := range got {
				if len(p.Data) != cap(p.Data) {
					t.Errorf("%d bytes in memory of %d", len(p.Data), cap(p.Data))
				}
			}
		})
	}
}

func TestDecodeBroadcasts_RefusesTheWholeBody(t *testing.T) {
	deep := strings.Repeat("[", MaxPayloadDepth+1) + strings.Repeat("]", MaxPayloadDepth+1)
	item := func(data string) string { return `{"stream":"a","data":` + data + `}` }
	for _, tc := range []struct {
		body string
		want error
	}{
		{``, ErrBroadcast}, {`{`, ErrBroadcast}, {"{\"stream\":\"a\",\"data\":\"\xff\"}", ErrBroadcast}, {strings.Repeat("[", 1<<20), ErrBroadcast},
		{`null`, ErrBroadcast}, {`7`, ErrBroadcast}, {`"x"`, ErrBroadcast}, {`[]`, ErrBroadcast}, {` [ ] `, ErrBroadcast}, {`{}`, ErrBroadcast},
		{`[7]`, ErrBroadcast}, {`[[` + item(`"1"`) + `]]`, ErrBroadcast}, {`[` + item(`"1"`) + `,null]`, ErrBroadcast},
		{`{"data":"1"}`, ErrBroadcast}, {`{"stream":null,"data":"1"}`, ErrBroadcast}, {`{"stream":7,"data":"1"}`, ErrBroadcast}, {`{"Stream":"a","data":"1"}`, ErrBroadcast},
		{`{"stream":"\ud800","data":"1"}`, ErrBroadcast},
		{`{"stream":"a"}`, ErrBroadcast}, {item(`null`), ErrBroadcast}, {item(`1`), ErrBroadcast}, {item(`{"x":1}`), ErrBroadcast}, {item(`["1"]`), ErrBroadcast}, {item(`true`), ErrBroadcast},
		{`{"stream":"","data":"1"}`, ErrStreamName}, {`{"stream":"a\n","data":"1"}`, ErrStreamName}, {`{"stream":"` + strings.Repeat("x", 256) + `","data":"1"}`, ErrStreamName},
		{item(`"\ud800"`), ErrPayload}, {item(`"a\udc00b"`), ErrPayload}, {item(`"` + deep + `"`), ErrPayload},
		{`[` + item(`"1"`) + `,` + item(`"2"`) + `,` + item(`"3"`) + `]`, ErrTooManyBroadcasts},
		{`{"command":"disconnect","payload":{"identifier":"x"}}`, ErrRemoteCommand}, {`[` + item(`"1"`) + `,{"command":"disconnect","payload":{}}]`, ErrRemoteCommand},
	} {
		got, err := DecodeBroadcasts([]byte(tc.body), 2)
		if !errors.Is(err, tc.want) || got != nil {
			t.Errorf("%.60q: %q, %v, want %v", tc.body, got, err, tc.want)
		}
	}
	_, err := DecodeBroadcasts([]byte(`[`+item(`"1"`)+`,`+item(`2`)+`]`), 2)
	if err == nil || !strings.Contains(err.Error(), "item 1") {
		t.Errorf("the item is not named: %v", err)
	}
}

// The publisher's body may be reused as soon as it is decoded.
func TestDecodeBroadcasts_KeepsNothingOfTheBody(t *testing.T) {
	body := []byte(`[{"stream":"abc","data":"12345"},{"stream":"def","data":"text"}]`)
	got, err := DecodeBroadcasts(body, 2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range body {
		body[i] = '#'
	}
	want := []Published{{"abc", []byte("12345")}, {"def", []byte(`"text"`)}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzDecodeBroadcasts(f *testing.F) {
	for _, s := range []string{
		`{"stream":"a","data":"{\"x\":1}","meta":{"a":[]}}`, `[{"stream":"a","data":"<b>"},{"stream":"b","data":"\ud83d\ude80"}]`, `{"command":"disconnect","payload":{}}`, `[]`,
		`{"stream":"a","data":"\ud800"}`, `{"stream":"a","data":5}`, `[[[[`, "\xff", `[{"stream":"a","data":""},7]`, `{"\u0073tream":"a","d\u0061ta":"\"\\ud800\""}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := DecodeBroadcasts(body, 8)
		if err != nil {
			if got != nil {
				t.Fatalf("an error and %q", got)
			}
			return
		}
		if len(got) == 0 || len(got) > 8 {
			t.Fatalf("%d items", len(got))
		}
		type item = map[string]json.RawMessage
		var want []item
		if json.Unmarshal(body, &want) != nil {
			want = make([]item, 1)
			if err := json.Unmarshal(body, &want[0]); err != nil {
				t.Fatal(err)
			}
		}
		if len(want) != len(got) {
			t.Fatalf("%d items, json says %d", len(got), len(want))
		}
		for i, p := range got {
			var stream, text string
			if json.Unmarshal(want[i]["stream"], &stream) != nil || json.Unmarshal(want[i]["data"], &text) != nil {
				t.Fatalf("json refuses item %d", i)
			}
			if p.Stream != stream || CheckStream(stream) != nil {
				t.Fatalf("stream %q, json says %q", p.Stream, stream)
			}
			if err := CheckPayload(p.Data); err != nil {
				t.Fatal(err)
			}
			if json.Valid([]byte(text)) {
				if string(p.Data) != text {
					t.Fatalf("payload %q of the JSON text %q", p.Data, text)
				}
				continue
			}
			var back string
			if err := json.Unmarshal(p.Data, &back); err != nil || back != text {
				t.Fatalf("payload %q of the text %q", p.Data, text)
			}
		}
	})
}

func ExampleDecodeBroadcasts() {
	items, err := DecodeBroadcasts([]byte(`[
		{"stream":"chat/42","data":"{\"text\":\"<b>hi</b>\"}"},
		{"stream":"chat/42","data":"<turbo-stream action='append'>"}
	]`), 1000)
	if err != nil {
		fmt.Println(err)
	}
	for _, p := range items {
		fmt.Printf("%s %s\n", p.Stream, p.Data)
	}
	// Output:
	// chat/42 {"text":"<b>hi</b>"}
	// chat/42 "<turbo-stream action='append'>"
}
