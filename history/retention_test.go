package history

import (
	"strings"
	"testing"
	"time"
)

func TestRetention_LongestPrefixWins(t *testing.T) {
	r := Retention{
		Default: Limits{Count: 1},
		Rules:   []Rule{{"chat/", Limits{Count: 2}}, {"chat/vip/", Limits{Count: 3}}, {"", Limits{Count: 4}}, {"chat", Limits{Count: 5}}},
	}
	for stream, want := range map[string]int{"chat/1": 2, "chat/vip/1": 3, "chat/vi": 2, "chats": 5, "x": 4, "chat/vip/": 3} {
		if got := r.For(stream).Count; got != want {
			t.Errorf("%q: rule %d, want %d", stream, got, want)
		}
	}
	if got := (Retention{Default: Limits{Count: 1}}).For("x").Count; got != 1 {
		t.Errorf("without rules: %d", got)
	}
}

func TestParseRule(t *testing.T) {
	for s, want := range map[string]Rule{
		"chat/=age:1h,count:500,bytes:1MiB": {"chat/", Limits{time.Hour, 500, 1 << 20}},
		"log/=bytes:10kB":                   {"log/", Limits{Bytes: 10_000}},
		"=count:5":                          {"", Limits{Count: 5}},
		"a=b=age:90s":                       {"a=b", Limits{Age: 90 * time.Second}},
		"vip/=unlimited":                    {"vip/", Limits{}},
		"日本/=count:1, age:1m":               {"日本/", Limits{Age: time.Minute, Count: 1}},
	} {
		got, err := ParseRule(s)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", s, got, err, want)
		}
	}
	for s, word := range map[string]string{
		"chat/":                  "should be PREFIX=",
		"chat/=":                 "should be age:",
		"chat/=forever":          "should be age:",
		"chat/=age:":             "age:",
		"chat/=age:5":            "age:5",
		"chat/=age:-1h":          "greater than zero",
		"chat/=age:1us":          "at least 1ms",
		"chat/=count:0":          "greater than zero",
		"chat/=count:-5":         "greater than zero",
		"chat/=count:1e3":        "count:1e3",
		"chat/=bytes:0":          "greater than zero",
		"chat/=bytes:1.5MiB":     "is not a size",
		"chat/=bytes:MiB":        "is not a size",
		"chat/=bytes:9000000TiB": "too large",
		"chat/=count:1,count:2":  "given twice",
	} {
		if got, err := ParseRule(s); err == nil || !strings.Contains(err.Error(), word) || !strings.HasPrefix(err.Error(), "history: ") {
			t.Errorf("%q: %+v, %v, want an error with %q", s, got, err, word)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{
		"1": 1, "17B": 17, "2KiB": 2048, "2 KiB": 2048, "3kB": 3000, "3KB": 3000, "64MiB": 64 << 20, "1GB": 1e9, "1TiB": 1 << 40,
	} {
		if got, err := ParseBytes(s); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", s, got, err, want)
		}
	}
}

func TestRetention_Validate(t *testing.T) {
	if err := (Retention{Default: DefaultLimits, Rules: []Rule{{"a", Limits{}}, {"b", Limits{Count: 1}}}}).Validate(); err != nil {
		t.Error(err)
	}
	for name, r := range map[string]Retention{
		"age":      {Default: Limits{Age: -1}},
		"at least": {Default: Limits{Age: time.Microsecond}},
		"count":    {Default: Limits{Count: -1}},
		"bytes":    {Rules: []Rule{{"chat/", Limits{Bytes: -1}}}},
		"chat/":    {Rules: []Rule{{"chat/", Limits{Count: -1}}}},
		"two":      {Rules: []Rule{{"chat/", Limits{Count: 1}}, {"chat/", Limits{Count: 2}}}},
	} {
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseRule(f *testing.F) {
	f.Add("chat/=age:1h,count:500,bytes:1MiB")
	f.Add("=unlimited")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := ParseRule(s); err == nil {
			if err := (Retention{Rules: []Rule{r}}).Validate(); err != nil {
				t.Errorf("%q is read as a rule that is not valid: %v", s, err)
			}
		}
	})
}
