package auth

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/chronocast/chronocast/protocol"
)

// Signed is what a signed stream name says.
type Signed struct {
	Stream  string
	Subject string    // the one user it is for; empty for whoever holds it
	Expires time.Time // zero: never
}

// MaxSignedBytes bounds a signed stream name: a name of 255 bytes, escaped and
// encoded twice, with everything around it.
const MaxSignedBytes = 4096

// sigBytes is how long "--" and the hex of a SHA-256 are.
const sigBytes = 2 + 2*sha256.Size

// verifier checks names signed for one channel class. Its keys are no other
// class's.
type verifier struct {
	purpose string // the channel class
	keys    []Secret
}

// Sign makes a signed stream name: base64 of JSON, "--", and the hex of its
// HMAC-SHA256, as ActiveSupport::MessageVerifier does. A name for whoever holds
// it, for ever, is the JSON string alone; otherwise the value is
// {"stream":…,"sub":…}, and what expires stands in the envelope of Rails with
// channel, the channel class, as its purpose.
func Sign(key Secret, channel string, s Signed) (string, error) {
	if err := protocol.CheckStream(s.Stream); err != nil {
		return "", err
	}
	value := appendJSON(nil, s.Stream)
	if s.Subject != "" {
		if !utf8.ValidString(s.Subject) {
			return "", fmt.Errorf("auth: the subject is not UTF-8")
		}
		value = append(append([]byte(`{"stream":`), value...), `,"sub":`...)
		value = append(appendJSON(value, s.Subject), '}')
	}
	if !s.Expires.IsZero() {
		envelope := append(append([]byte(`{"_rails":{"data":`), value...), `,"exp":`...)
		envelope = appendJSON(envelope, s.Expires.UTC().Format("2006-01-02T15:04:05.000Z"))
		value = append(appendJSON(append(envelope, `,"pur":`...), channel), `}}`...)
	}
	data := base64.StdEncoding.EncodeToString(value)
	return data + "--" + hex.EncodeToString(mac([]byte(key.Reveal()), data)), nil
}

func appendJSON(b []byte, text string) []byte {
	quoted, err := protocol.QuotePayload([]byte(text))
	if err != nil {
		panic(err) // every caller has checked that it is UTF-8
	}
	return append(b, quoted...)
}

// verify reads a signed name. The signature comes first: nothing is parsed that
// no key vouches for. The error wraps ErrUnauthorized or ErrExpired.
func (v *verifier) verify(text string, now time.Time) (Signed, error) {
	bad := func(why string) (Signed, error) {
		return Signed{}, fmt.Errorf("%w: %s", ErrUnauthorized, why)
	}
	cut := len(text) - sigBytes
	if cut < 1 || len(text) > MaxSignedBytes || text[cut:cut+2] != "--" {
		return bad("not a signed stream name")
	}
	data, sig := text[:cut], []byte(text[cut+2:])
	var sum [2 * sha256.Size]byte
	ok := false
	for _, key := range v.keys { // all of them: which one it was is nobody's business
		hex.Encode(sum[:], mac([]byte(key.Reveal()), data))
		ok = hmac.Equal(sum[:], sig) || ok
	}
	if !ok {
		return bad("not signed by this server's keys")
	}
	value, err := decodeBase64(data)
	if err != nil {
		return bad("not base64")
	}
	value, expires, err := v.open(value)
	if err != nil {
		return bad(err.Error())
	}
	s, err := parseSigned(value)
	if err != nil {
		return bad(err.Error())
	}
	if s.Expires = expires; !expires.IsZero() && !now.Before(expires) {
		return Signed{}, fmt.Errorf("%w: the signed stream name", ErrExpired)
	}
	return s, nil
}

// open takes a value out of the envelope Rails puts around what expires or has
// a purpose. Since 7.1 the value stands in data as it is, before it stood in
// message, serialized and in base64.
func (v *verifier) open(value []byte) ([]byte, time.Time, error) {
	var box struct {
		Rails *struct {
			Data    json.RawMessage `json:"data"`
			Message *string         `json:"message"`
			Exp     *string         `json:"exp"`
			Pur     *string         `json:"pur"`
		} `json:"_rails"`
	}
	if len(value) == 0 || value[0] != '{' {
		return value, time.Time{}, nil
	}
	if err := json.Unmarshal(value, &box); err != nil {
		return nil, time.Time{}, errNotName
	}
	if box.Rails == nil {
		return value, time.Time{}, nil
	}
	if box.Rails.Pur != nil && *box.Rails.Pur != v.purpose {
		return nil, time.Time{}, fmt.Errorf("signed for another purpose")
	}
	var expires time.Time
	if box.Rails.Exp != nil {
		var err error
		if expires, err = time.Parse(time.RFC3339, *box.Rails.Exp); err != nil {
			return nil, time.Time{}, fmt.Errorf("its expiry is not a time")
		}
	}
	switch {
	case box.Rails.Message != nil && box.Rails.Data == nil:
		inner, err := decodeBase64(*box.Rails.Message)
		return inner, expires, err
	case box.Rails.Message == nil && box.Rails.Data != nil:
		return box.Rails.Data, expires, nil
	}
	return nil, time.Time{}, errNotName
}

var errNotName = fmt.Errorf("it holds no stream name")

// parseSigned reads "stream" or {"stream":"…","sub":"…"}.
func parseSigned(value []byte) (s Signed, err error) {
	if !utf8.Valid(value) || len(value) == 0 {
		return Signed{}, errNotName
	}
	if value[0] == '{' {
		var bound struct {
			Stream *string `json:"stream"`
			Sub    *string `json:"sub"`
		}
		if json.Unmarshal(value, &bound) != nil || bound.Stream == nil || bound.Sub == nil || *bound.Sub == "" {
			return Signed{}, errNotName
		}
		s.Stream, s.Subject = *bound.Stream, *bound.Sub
	} else if json.Unmarshal(value, &s.Stream) != nil || value[0] == 'n' {
		return Signed{}, errNotName
	}
	// Half of a surrogate pair is read as U+FFFD, and would be another name.
	if strings.ContainsRune(s.Stream+s.Subject, utf8.RuneError) && !strings.ContainsRune(string(value), utf8.RuneError) {
		return Signed{}, errNotName
	}
	if protocol.CheckStream(s.Stream) != nil {
		return Signed{}, errNotName
	}
	return s, nil
}

// The key Rails derives for Turbo from secret_key_base. Which digest it takes
// depends on the application's defaults: SHA-256 since 7.0, SHA-1 before.
const (
	turboSalt       = "turbo/signed_stream_verifier_key"
	turboIterations = 1000
	turboKeyBytes   = 64
)

// TurboKeys returns the keys turbo-rails signs stream names with in an
// application of this secret_key_base: the one derived with SHA-256 and the one
// derived with SHA-1.
func TurboKeys(secretKeyBase Secret) []Secret {
	var keys []Secret
	for _, digest := range []func() hash.Hash{sha256.New, sha1.New} {
		key, err := pbkdf2.Key(digest, secretKeyBase.Reveal(), []byte(turboSalt), turboIterations, turboKeyBytes)
		if err != nil {
			panic(err) // only for lengths no digest can give
		}
		keys = append(keys, NewSecret(string(key)))
	}
	return keys
}
