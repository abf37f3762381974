package protocol

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestQuote_EscapesWhatJSONRequiresAndNothingElse(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"empty", "", `""`},
		{"plain", "token", `"token"`},
		{"quote and backslash", `a"b\c`, `"a\"b\\c"`},
		{"short escapes", "\b\f\n\r\t", `"\b\f\n\r\t"`},
		{"other control characters", "\x00\x1f\x0b", `"\u0000\u001f\u000b"`},
		{"DEL and C1 stay", "\x7f\u0085", "\"\x7f\u0085\""},
		{"HTML stays", "<b>&amp;</b>", `"<b>&amp;</b>"`},
		{"line separators stay", "\u2028\u2029", "\"\u2028\u2029\""},
		{"CJK and beyond the BMP stay", "日本語🚀", `"日本語🚀"`},
		{"the replacement character itself", "\ufffd", "\"\ufffd\""},
		{"slash stays", "a/b", `"a/b"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := string(appendQuoted(nil, tc.text)); got != tc.want {
				t.Errorf("quoted %s, want %s", got, tc.want)
			}
			got, err := QuotePayload([]byte(tc.text))
			if err != nil || string(got) != tc.want {
				t.Errorf("payload %s, %v, want %s", got, err, tc.want)
			}
			if len(got) != cap(got) {
				t.Errorf("%d bytes in memory of %d", len(got), cap(got))
			}
		})
	}
}

// Reasons and session ids may come from anywhere; a frame must be good text
// even then.
func TestQuote_NeverProducesInvalidUTF8(t *testing.T) {
	for _, text := range []string{"\xff", "a\xc3", "\xed\xa0\x80", "\xf0\x9f\x9a", "ok\x80\"\x80", "\xc0\xaf"} {
		got := appendQuoted(nil, text)
		if !utf8.Valid(got) || !json.Valid(got) {
			t.Errorf("%q became %q", text, got)
		}
		var back string
		if err := json.Unmarshal(got, &back); err != nil || back != string([]rune(text)) {
			t.Errorf("%q came back as %q, %v", text, back, err)
		}
		if _, err := QuotePayload([]byte(text)); err == nil {
			t.Errorf("%q accepted as a payload", text)
		}
	}
}

func TestUnquote_IsExact(t *testing.T) {
	for _, tc := range []struct {
		raw, want string
		ok        bool
	}{
		{`""`, "", true},
		{`"a\"\\\/\b\f\n\r\t"`, "a\"\\/\b\f\n\r\t", true},
		{`"\u0041\u00e9\u20ac\u2028"`, "Aé€\u2028", true},
		{`"\ud83d\ude80\uD83D\uDE80"`, "🚀🚀", true},
		{`"\uDBFF\uDFFF"`, "\U0010ffff", true},
		{`"\ufffd"`, "\ufffd", true},
		{`"\u0000"`, "\x00", true},
		{"\"日本語\u2028\"", "日本語\u2028", true},

		{`"\ud800"`, "", false},
		{`"\udc00"`, "", false},
		{`"\ud800x"`, "", false},
		{`"\ud800\n"`, "", false},
		{`"\ud800\u0041"`, "", false},
		{`"\ud800\ud800\udc00"`, "", false},
		{`"\u12"`, "", false},
		{`"\u12g4"`, "", false},
		{`"\x"`, "", false},
		{`"\"`, "", false},
		{`"`, "", false},
		{``, "", false},
		{`7`, "", false},
		{`"a"b"`, "", false},
		{"\"a\nb\"", "", false},
	} {
		got, ok := unquote([]byte(tc.raw))
		if ok != tc.ok || string(got) != tc.want {
			t.Errorf("unquote %s = %q, %v, want %q, %v", tc.raw, got, ok, tc.want, tc.ok)
		}
		if len(got) != cap(got) {
			t.Errorf("unquote %s: %d bytes in memory of %d", tc.raw, len(got), cap(got))
		}
	}
}

// B115: what a client cannot parse is refused before it takes an offset.
func TestB115_CheckPayload_RefusesWhatIsNotOneJSONText(t *testing.T) {
	for _, good := range []string{
		`0`, `false`, `""`, `null`, `"<b>&"`, "\"\u2028\"", ` {"a":[1,2,{}]} `, `1e999`, `"\ud800"`,
		strings.Repeat("[", MaxPayloadDepth) + strings.Repeat("]", MaxPayloadDepth),
		`"` + strings.Repeat("[", 4*MaxPayloadDepth) + `"`,
		`[` + strings.Repeat(`{},`, 2*MaxPayloadDepth) + `"\"[[["]`,
	} {
		if err := CheckPayload([]byte(good)); err != nil {
			t.Errorf("%.40s: %v", good, err)
		}
	}
	for _, bad := range []string{
		``, ` `, `{`, `{"a":}`, `1 2`, `undefined`, `NaN`, `'a'`, "\"a\nb\"", "\ufeff{}", "\"\xff\"", "\"\xed\xa0\x80\"", `01`,
		strings.Repeat("[", MaxPayloadDepth+1) + strings.Repeat("]", MaxPayloadDepth+1),
		strings.Repeat(`{"a":`, MaxPayloadDepth+1) + "1" + strings.Repeat("}", MaxPayloadDepth+1),
		strings.Repeat("[", 1<<20),
	} {
		if err := CheckPayload([]byte(bad)); err == nil {
			t.Errorf("%.40q accepted", bad)
		}
	}
}

func FuzzQuotePayload(f *testing.F) {
	for _, s := range []string{"", "a\"b\\c", "\x00\x1f", "\u2028<b>&", "日本語🚀", "\xff", "\xed\xa0\x80", "a\xc3"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		quoted, err := QuotePayload(text)
		if err != nil {
			if utf8.Valid(text) {
				t.Fatalf("valid text refused: %v", err)
			}
			return
		}
		if err := CheckPayload(quoted); err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal(quoted, &back); err != nil || back != string(text) {
			t.Fatalf("json.Unmarshal gives %q, %v", back, err)
		}
		own, ok := unquote(quoted)
		if !ok || !bytes.Equal(own, text) {
			t.Fatalf("unquote gives %q, %v", own, ok)
		}
	})
}

// FuzzUnquote holds the unquoter against encoding/json: the same text wherever
// that one does not have to replace anything.
func FuzzUnquote(f *testing.F) {
	for _, s := range []string{`""`, `"\ud83d\ude80"`, `"\ud800"`, `"\u00e9\/"`, `"\"`, `"a"`, "\"\xff\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, ok := unquote(raw)
		if !validJSON(raw) || len(raw) == 0 || raw[0] != '"' {
			return
		}
		var want string
		if err := json.Unmarshal(raw, &want); err != nil {
			return // white space around the string: no raw value ends so
		}
		switch {
		case raw[len(raw)-1] != '"':
		case ok && string(got) != want:
			t.Fatalf("unquote %q = %q, want %q", raw, got, want)
		case !ok && !strings.Contains(want, "\ufffd"):
			t.Fatalf("unquote refuses %q", raw)
		}
	})
}
