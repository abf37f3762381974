package demo

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSplitJoinsToTheText(t *testing.T) {
	pieces := split(answerText)
	if got := strings.Join(pieces, ""); got != answerText {
		t.Fatal("the pieces do not join to the text")
	}
	if len(pieces) < 1000 || len(pieces) > 2000 {
		t.Errorf("%d pieces, want about as many as a model would emit", len(pieces))
	}
	halves := 0
	for i, p := range pieces {
		if p == "" || !utf8.ValidString(p) {
			t.Errorf("piece %d is %q, want some valid UTF-8", i, p)
		}
		if r, _ := utf8.DecodeRuneInString(p); i > 0 && inWord(r) && strings.TrimRight(pieces[i-1], "\n") == pieces[i-1] {
			halves++
		}
	}
	if halves < 20 {
		t.Errorf("%d pieces continue a word, want some", halves)
	}
}

// The text must hold what careless encoders and normalizers change, or the
// comparison on the page would prove little.
func TestTextHoldsWhatBreaks(t *testing.T) {
	for name, part := range map[string]string{
		"html":             "<b>",
		"entity":           "&amp;",
		"quote":            `"quotes"`,
		"backslash":        `back\slash`,
		"line separator":   "\u2028",
		"composed":         "an \u00e9 made",
		"decomposed":       "an e\u0301 made",
		"joined emoji":     "👩\u200d💻",
		"variation":        "✉\ufe0f",
		"flag":             "🇯🇵",
		"han":              "順序",
		"hangul":           "순서",
		"list":             "\n- ",
		"numbered list":    "\n1. ",
		"heading":          "\n\n## ",
		"paragraph breaks": ".\n\n",
	} {
		if !strings.Contains(answerText, part) {
			t.Errorf("%s: %q is not in the text", name, part)
		}
	}
	if words := len(strings.Fields(answerText)); words < 900 || words > 1200 {
		t.Errorf("%d words", words)
	}
	if strings.HasSuffix(answerText, "\n") || strings.Contains(answerText, "\r") {
		t.Error("the text ends in a line break or holds a carriage return")
	}
}

// The tokens are published as they will be on the wire: one JSON string each,
// no character escaped that JSON lets stand.
func TestEncodeTokensKeepsCharacters(t *testing.T) {
	in := []string{"<b>", " &amp;", `"`, `\`, "\u2028", "\n\n", "é"}
	want := []string{`"<b>"`, `" &amp;"`, `"\""`, `"\\"`, `"\u2028"`, `"\n\n"`, `"é"`}
	for i, got := range encodeTokens(in) {
		if string(got) != want[i] {
			t.Errorf("token %q is encoded as %s, want %s", in[i], got, want[i])
		}
		var back string
		if err := json.Unmarshal(got, &back); err != nil || back != in[i] {
			t.Errorf("token %q comes back as %q, %v", in[i], back, err)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"", " ", "  a", "\n", "a\n\n\n b", " 順序 é e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301", "👩\u200d💻", "extraordinary incomprehensibilities", "\xff\xfe "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		pieces := split(s)
		if strings.Join(pieces, "") != s {
			t.Fatalf("%q is split into %q", s, pieces)
		}
		for _, p := range pieces {
			if p == "" || (utf8.ValidString(s) && !utf8.ValidString(p)) {
				t.Fatalf("%q is split into %q", s, pieces)
			}
		}
	})
}
