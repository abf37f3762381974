package auth

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/chronocast/chronocast/protocol"
)

var (
	testKey  = NewSecret("a key for signing stream names")
	otherKey = NewSecret("another key, of another server")
	noon     = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
)

// signRaw signs any value, as the owner of the key can.
func signRaw(key Secret, value string, encoding *base64.Encoding) string {
	data := encoding.EncodeToString([]byte(value))
	return data + "--" + hex.EncodeToString(mac([]byte(key.Reveal()), data))
}

// TestTurboKeys_VerifyWhatRailsSigned: the names were made by turbo-rails for
// secret_key_base = "0" × 128.
func TestTurboKeys_VerifyWhatRailsSigned(t *testing.T) {
	keys := TurboKeys(NewSecret(strings.Repeat("0", 128)))
	v := verifier{ChannelTurbo, keys}
	for _, tt := range []struct{ signed, stream string }{
		{"Im1lc3NhZ2VzIg==--fb308ec9d90c369e4e349458a6a024901bfb977f5639c6f31986c1cf353bba01", "messages"},
		{"Im1lc3NhZ2VzIg==--981b56126cb0033cc08882e6c5f5eece859c096c987e37b3b813c86d365b5bfe", "messages"},
		{"IloybGtPaTh2WkhWdGJYa3ZUV1Z6YzJGblpTOHg6ZW50cmllcyI=--735e1c84dc044007be5c38a63c5fdb074a340be0b3b9eb68d1511a4e10d582e5", "Z2lkOi8vZHVtbXkvTWVzc2FnZS8x:entries"},
	} {
		got, err := v.verify(tt.signed, noon)
		if err != nil || got != (Signed{Stream: tt.stream}) {
			t.Errorf("%s: %+v, %v, want %q", tt.signed, got, err, tt.stream)
		}
		if _, err := (&verifier{ChannelTurbo, keys[:0]}).verify(tt.signed, noon); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("without a key: %v", err)
		}
	}
	if made, err := Sign(keys[0], ChannelTurbo, Signed{Stream: "messages"}); err != nil || made != "Im1lc3NhZ2VzIg==--fb308ec9d90c369e4e349458a6a024901bfb977f5639c6f31986c1cf353bba01" {
		t.Errorf("Sign made %s, %v", made, err)
	}
}

func TestVerifier_BothAlphabetsWithAndWithoutPadding(t *testing.T) {
	v := verifier{ChannelPubSub, []Secret{otherKey, testKey}}
	for _, stream := range []string{"a", "ab", "abc", "chat/42", "~~~???>>>", "語/ü", `a"b\c`, "a--b", strings.Repeat("x", 255)} {
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
			text := signRaw(testKey, string(appendJSON(nil, stream)), encoding)
			if got, err := v.verify(text, noon); err != nil || got.Stream != stream {
				t.Errorf("%q: %+v, %v", stream, got, err)
			}
		}
	}
}

func TestSign_WhatItMakesIsVerified(t *testing.T) {
	v := verifier{ChannelPubSub, []Secret{testKey}}
	for _, want := range []Signed{
		{Stream: "chat/42"},
		{Stream: "chat/42", Subject: "alice"},
		{Stream: "語", Expires: noon.Add(time.Minute)},
		{Stream: "chat/42", Subject: `b"ob`, Expires: noon.Add(time.Minute)},
		{Stream: strings.Repeat("\u2028", 85), Subject: strings.Repeat(`"`, 100), Expires: noon.Add(time.Minute)},
	} {
		text, err := Sign(testKey, ChannelPubSub, want)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := v.verify(text, noon); err != nil || got != want {
			t.Errorf("%+v came back as %+v, %v", want, got, err)
		}
	}
	if _, err := Sign(testKey, ChannelPubSub, Signed{Stream: "a\nb"}); !errors.Is(err, protocol.ErrStreamName) {
		t.Errorf("a bad name was signed: %v", err)
	}
}

func TestVerifier_Refuses(t *testing.T) {
	v := verifier{ChannelPubSub, []Secret{testKey}}
	raw := func(value string) string { return signRaw(testKey, value, base64.StdEncoding) }
	good := raw(`"chat/42"`)
	for name, text := range map[string]string{
		"nothing":                  "",
		"no signature":             "ImNoYXQvNDIi",
		"an empty signature":       "ImNoYXQvNDIi--",
		"another key":              signRaw(otherKey, `"chat/42"`, base64.StdEncoding),
		"an empty key":             signRaw(NewSecret(""), `"chat/42"`, base64.StdEncoding),
		"upper case hex":           strings.ToUpper(good[len(good)-64:]),
		"a changed name":           "ImNoYXQvNDMi" + good[len(good)-66:],
		"a changed signature":      good[:len(good)-1] + map[bool]string{true: "1", false: "0"}[good[len(good)-1] == '0'],
		"something behind":         good + "0",
		"something in front":       "I" + good,
		"a line break inside":      good[:4] + "\n" + good[4:],
		"no JSON":                  raw(`chat/42`),
		"a number":                 raw(`42`),
		"null":                     raw(`null`),
		"an array":                 raw(`["chat/42"]`),
		"two values":               raw(`"a" "b"`),
		"an empty name":            raw(`""`),
		"a name with controls":     raw(`"a\nb"`),
		"half a surrogate pair":    raw(`"a\ud800"`),
		"no UTF-8":                 raw("\"a\xff\""),
		"a name too long":          raw(`"` + strings.Repeat("x", 256) + `"`),
		"an object without stream": raw(`{"sub":"alice"}`),
		"an object without sub":    raw(`{"stream":"chat/42"}`),
		"an empty sub":             raw(`{"stream":"chat/42","sub":""}`),
		"another purpose":          raw(`{"_rails":{"data":"chat/42","pur":"login"}}`),
		"another class":            raw(`{"_rails":{"data":"chat/42","pur":"Turbo::StreamsChannel"}}`),
		"no data":                  raw(`{"_rails":{"exp":"2099-01-01T00:00:00Z"}}`),
		"data and message":         raw(`{"_rails":{"data":"a","message":"ImEi"}}`),
		"a message of no base64":   raw(`{"_rails":{"message":"***"}}`),
		"an expiry of no time":     raw(`{"_rails":{"data":"a","exp":"tomorrow"}}`),
		"an expiry in numbers":     raw(`{"_rails":{"data":"a","exp":4070908800}}`),
		"Ruby's Marshal":           raw("\x04\bI\"\fchat/42\x06:\x06ET"),
	} {
		if got, err := v.verify(text, noon); !errors.Is(err, ErrUnauthorized) || got != (Signed{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestB143_SignedNamesExpire: in the envelope of Rails, old and new.
func TestB143_SignedNamesExpire(t *testing.T) {
	v := verifier{ChannelPubSub, []Secret{testKey}}
	for _, envelope := range []string{
		`{"_rails":{"data":"chat/42","exp":"2026-06-01T12:00:00.000Z"}}`,
		`{"_rails":{"data":"chat/42","exp":"2026-06-01T12:00:00Z","pur":"$pubsub"}}`,
		`{"_rails":{"data":"chat/42","exp":"2026-06-01T14:00:00+02:00","pur":null}}`,
		`{"_rails":{"message":"ImNoYXQvNDIi","exp":"2026-06-01T12:00:00.000Z","pur":null}}`,
		`{"_rails":{"message":"ImNoYXQvNDIi","exp":"2026-06-01T12:00:00.000Z","pur":"$pubsub"}}`,
	} {
		text := signRaw(testKey, envelope, base64.StdEncoding)
		if got, err := v.verify(text, noon.Add(-time.Millisecond)); err != nil || got.Stream != "chat/42" || !got.Expires.Equal(noon) {
			t.Errorf("%s a moment before: %+v, %v", envelope, got, err)
		}
		if got, err := v.verify(text, noon); !errors.Is(err, ErrExpired) || got != (Signed{}) {
			t.Errorf("%s at its end: %+v, %v", envelope, got, err)
		}
	}
	forever := signRaw(testKey, `{"_rails":{"message":"ImNoYXQvNDIi","exp":null,"pur":"$pubsub"}}`, base64.StdEncoding)
	if got, err := v.verify(forever, noon); err != nil || got != (Signed{Stream: "chat/42"}) {
		t.Errorf("without an expiry: %+v, %v", got, err)
	}
}

func FuzzVerifier(f *testing.F) {
	f.Add("Im1lc3NhZ2VzIg==", `"messages"`)
	f.Add("a--b", `{"_rails":{"data":{"stream":"a","sub":"b"},"exp":"2026-06-01T12:00:00Z","pur":"$pubsub"}}`)
	f.Add("", `{"_rails":{"message":"ImEi","exp":null}}`)
	f.Add(strings.Repeat("=", 70), `{"stream":"\ud800"}`)
	v := verifier{ChannelPubSub, []Secret{testKey}}
	f.Fuzz(func(t *testing.T, text, value string) {
		if s, err := v.verify(text, noon); err == nil {
			t.Errorf("%q was taken for %+v", text, s)
		}
		s, err := v.verify(signRaw(testKey, value, base64.RawURLEncoding), noon)
		if err != nil {
			return
		}
		if protocol.CheckStream(s.Stream) != nil {
			t.Errorf("%q opens %q", value, s.Stream)
		}
		again, err := Sign(testKey, ChannelPubSub, s)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := v.verify(again, noon); len(again) <= MaxSignedBytes && (err != nil || got.Stream != s.Stream || got.Subject != s.Subject) {
			t.Errorf("%+v came back as %+v, %v", s, got, err)
		}
	})
}
