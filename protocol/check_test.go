package protocol

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// checkSeeds are texts at the edges of the grammar.
var checkSeeds = []string{
	``, ` `, `{}`, `[]`, `{ }`, `[ ]`, `{"a":1}`, `{"a":1,}`, `{"a":1,"a":2}`, `{,}`, `{"a"}`, `{"a":}`, `{"a" 1}`, `{a:1}`, `{"a":1 "b":2}`, `{"a":[}`, `{"a":{]}`,
	`[1,2]`, `[1,]`, `[,1]`, `[1 2]`, `[1`, `1]`, `[}`, `{]`, `[[],[[]]]`, `[{},{"a":[]}]`, `{"":""}`, `{"a":{"b":{}}}`, `[{"a":1},[2],{"b":[{}]}]`,
	`0`, `-0`, `00`, `01`, `-`, `+1`, `1.`, `.5`, `1.5`, `1e5`, `1E+5`, `1e-5`, `1e`, `1e+`, `1.e5`, `0e0`, `-0.0e-0`, `1.2.3`, `0x1`, `1_000`, `- 1`, `Infinity`, `NaN`, `١`,
	`true`, `false`, `null`, `tru`, `nul`, `True`, `truex`, `nullnull`, `undefined`, `true false`,
	`""`, `"a"`, `"a`, `a"`, `"\"`, `"\\"`, `"\/\b\f\n\r\t"`, `"\a"`, `"\u00e9"`, `"\u00E9"`, `"\u00g0"`, `"\u00"`, `"\ud800"`, "\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"\n\"", "\"\xff\"", `'a'`,
	" \t\r\n1 \t\r\n", "\v1", "\u00a01", "\ufeff1", "1\x00", "1 ", `"a" "b"`, `"a",`, `//`, `/**/1`, `{"a":1}}`, `[]]`, `{}{}`, "[1\n,\t2\r]",
}

func TestCheck_AgreesWithEncodingJSON(t *testing.T) {
	for _, text := range checkSeeds {
		if got := check([]byte(text)) == valid; got != json.Valid([]byte(text)) {
			t.Errorf("%q: %v", text, got)
		}
	}
	// Good texts with one byte changed, left out or doubled are the hard ones.
	rng := rand.New(rand.NewPCG(3, 4))
	const bytes = `{}[]",:\u0123e+-.tfn ` + "\x00\n\x80"
	for range 40_000 {
		text := []byte(checkSeeds[rng.IntN(len(checkSeeds))] + checkSeeds[rng.IntN(len(checkSeeds))])
		if len(text) == 0 {
			continue
		}
		at := rng.IntN(len(text))
		switch rng.IntN(3) {
		case 0:
			text[at] = bytes[rng.IntN(len(bytes))]
		case 1:
			text = append(text[:at], text[at+1:]...)
		case 2:
			text = append(text[:at+1], text[at:]...)
		}
		if got := check(text) == valid; got != json.Valid(text) {
			t.Fatalf("%q: %v", text, got)
		}
	}
}

func TestCheck_BoundsTheDepth(t *testing.T) {
	for _, tc := range []struct {
		open, close string
		levels      int // of one repetition
	}{{"[", "]", 1}, {`{"a":`, "}", 1}, {`[{"a":`, "}]", 2}, {`[1,{"b":[],"a":`, `},[[]]]`, 2}} {
		for _, n := range []int{1, 63, 64, 65, 127, 128, 129, MaxPayloadDepth - 1, MaxPayloadDepth, MaxPayloadDepth + 1, 2 * MaxPayloadDepth} {
			n /= tc.levels
			// Closing in the wrong order must not pass at any level.
			text := strings.Repeat(tc.open, n) + "[]" + strings.Repeat(tc.close, n)
			want := valid
			if n*tc.levels+1 > MaxPayloadDepth {
				want = deep
			}
			if got := check([]byte(text)); got != want {
				t.Errorf("%d of %s: %v, want %v", n, tc.open, got, want)
			}
			if want == valid {
				crossed := strings.NewReplacer("]", "}", "}", "]").Replace(text[len(text)-1:])
				if got := check([]byte(text[:len(text)-1] + crossed)); got != broken {
					t.Errorf("%d of %s closed by %s: %v", n, tc.open, crossed, got)
				}
			}
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, text := range checkSeeds {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		switch check(text) {
		case valid:
			if !json.Valid(text) {
				t.Fatalf("%q is not valid", text)
			}
		case broken:
			if json.Valid(text) {
				t.Fatalf("%q is valid", text)
			}
		case deep:
			if strings.Count(string(text), "[")+strings.Count(string(text), "{") <= MaxPayloadDepth {
				t.Fatalf("%q is not deep", text)
			}
		}
	})
}
