package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// signers are one private key of each kind, made once: RSA takes its time.
var signers = sync.OnceValue(func() (s struct {
	rsa *rsa.PrivateKey
	ec  *ecdsa.PrivateKey
	ed  ed25519.PrivateKey
}) {
	var err error
	if s.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		panic(err)
	}
	if s.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		panic(err)
	}
	if _, s.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		panic(err)
	}
	return s
})

const hmacText = "a shared secret of more than sixteen bytes"

func publicPEM(t testing.TB, key crypto.PublicKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func parseKeys(t testing.TB, text string) []JWTKey {
	t.Helper()
	keys, err := ParseJWTKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// token signs claims. kid may be "".
func token(t testing.TB, method jwt.SigningMethod, key any, kid string, c jwt.MapClaims) string {
	t.Helper()
	made := jwt.NewWithClaims(method, c)
	if kid != "" {
		made.Header["kid"] = kid
	}
	text, err := made.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func at(now time.Time) func() time.Time { return func() time.Time { return now } }

func alice(more ...any) jwt.MapClaims {
	c := jwt.MapClaims{"sub": "alice", "exp": noon.Add(time.Hour).Unix()}
	for i := 0; i < len(more); i += 2 {
		c[more[i].(string)] = more[i+1]
		if more[i+1] == nil {
			delete(c, more[i].(string))
		}
	}
	return c
}

func TestTokens_EveryAlgorithm(t *testing.T) {
	s := signers()
	for _, tt := range []struct {
		method  jwt.SigningMethod
		private any
		key     string
	}{
		{jwt.SigningMethodHS256, []byte(hmacText), hmacText},
		{jwt.SigningMethodHS384, []byte(hmacText), hmacText},
		{jwt.SigningMethodHS512, []byte(hmacText), hmacText},
		{jwt.SigningMethodRS256, s.rsa, publicPEM(t, &s.rsa.PublicKey)},
		{jwt.SigningMethodES256, s.ec, publicPEM(t, &s.ec.PublicKey)},
		{jwt.SigningMethodEdDSA, s.ed, publicPEM(t, s.ed.Public())},
	} {
		spec := tt.method.Alg() + ":" + tt.key
		for _, spec := range []string{spec, strings.ReplaceAll(spec, "\n", " ")} {
			v := newTokens(Tokens{Keys: parseKeys(t, spec)}, nil, at(noon))
			id, err := v.identify(token(t, tt.method, tt.private, "", alice()))
			if err != nil || id.Subject != "alice" || !id.Expires.Equal(noon.Add(time.Hour)) {
				t.Errorf("%s: %+v, %v", tt.method.Alg(), id, err)
			}
		}
	}
}

// TestB148_AlgorithmsArePinned: a token cannot choose how it is checked.
func TestB148_AlgorithmsArePinned(t *testing.T) {
	s := signers()
	public := publicPEM(t, &s.rsa.PublicKey)
	v := newTokens(Tokens{Keys: parseKeys(t, "RS256/main:"+public+";HS256/shared:"+hmacText+";ES256/ec:"+publicPEM(t, &s.ec.PublicKey))}, nil, at(noon))
	good := token(t, jwt.SigningMethodRS256, s.rsa, "main", alice())
	if _, err := v.identify(good); err != nil {
		t.Fatal(err)
	}
	none := token(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "", alice())
	header := func(alg string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"`+alg+`","typ":"JWT"}`)) + good[strings.Index(good, "."):]
	}
	der, _ := pem.Decode([]byte(public))
	for name, text := range map[string]string{
		"none":                            none,
		"none, another spelling":          header("nOnE"),
		"no algorithm":                    header(""),
		"HS256 with the public key":       token(t, jwt.SigningMethodHS256, []byte(public), "main", alice()),
		"HS256 with the public key, bare": token(t, jwt.SigningMethodHS256, []byte(strings.TrimSpace(public)), "", alice()),
		"HS256 with the public key's DER": token(t, jwt.SigningMethodHS256, der.Bytes, "main", alice()),
		"HS384 with the HS256 secret":     token(t, jwt.SigningMethodHS384, []byte(hmacText), "shared", alice()),
		"PS256 with the RSA key":          token(t, jwt.SigningMethodPS256, s.rsa, "main", alice()),
		"RS512 with the RSA key":          token(t, jwt.SigningMethodRS512, s.rsa, "main", alice()),
		"an unknown kid":                  token(t, jwt.SigningMethodRS256, s.rsa, "other", alice()),
		"the kid of another algorithm":    token(t, jwt.SigningMethodRS256, s.rsa, "shared", alice()),
		"a kid that is a path":            token(t, jwt.SigningMethodRS256, s.rsa, "../../dev/null", alice()),
		"a key nobody knows":              token(t, jwt.SigningMethodEdDSA, s.ed, "", alice()),
		"a changed claim":                 good[:strings.Index(good, ".")+1] + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"bob","exp":4070908800}`)) + good[strings.LastIndex(good, "."):],
		"no signature":                    good[:strings.LastIndex(good, ".")+1],
		"two parts":                       good[:strings.LastIndex(good, ".")],
		"nothing":                         "",
		"too long":                        good + strings.Repeat("A", MaxTokenBytes),
	} {
		if id, err := v.identify(text); !errors.Is(err, ErrUnauthorized) || id != nil {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
}

func TestTokens_Claims(t *testing.T) {
	keys := []JWTKey{NewHMACKey(NewSecret(hmacText))}
	strict := Tokens{Keys: keys, Issuer: "app", Audiences: []string{"chronocast", "live"}}
	full := func(more ...any) jwt.MapClaims {
		return alice(append([]any{"iss", "app", "aud", "live"}, more...)...)
	}
	for _, tt := range []struct {
		name   string
		tokens Tokens
		claims jwt.MapClaims
		want   error
	}{
		{"good", Tokens{Keys: keys}, alice(), nil},
		{"good with everything", strict, full(), nil},
		{"one of several audiences", strict, full("aud", []string{"x", "chronocast"}), nil},
		{"another audience", strict, full("aud", "x"), ErrUnauthorized},
		{"no audience", strict, full("aud", nil), ErrUnauthorized},
		{"another issuer", strict, full("iss", "x"), ErrUnauthorized},
		{"no issuer", strict, full("iss", nil), ErrUnauthorized},
		{"no exp", Tokens{Keys: keys}, alice("exp", nil), ErrUnauthorized},
		{"no exp where none is needed", Tokens{Keys: keys, Endless: true}, alice("exp", nil), nil},
		{"exp in text", Tokens{Keys: keys}, alice("exp", "soon"), ErrUnauthorized},
		{"exp within the skew", Tokens{Keys: keys}, alice("exp", noon.Add(-time.Second).Unix()), nil},
		{"exp over", Tokens{Keys: keys}, alice("exp", noon.Add(-Skew-time.Second).Unix()), ErrExpired},
		{"exp over and a wrong audience", strict, full("aud", "x", "exp", 1), ErrUnauthorized},
		{"nbf ahead", Tokens{Keys: keys}, alice("nbf", noon.Add(Skew+2*time.Second).Unix()), ErrUnauthorized},
		{"nbf within the skew", Tokens{Keys: keys}, alice("nbf", noon.Add(time.Second).Unix()), nil},
		{"streams of no array", Tokens{Keys: keys}, alice("streams", "a"), ErrUnauthorized},
		{"streams of no names", Tokens{Keys: keys}, alice("streams", []any{1}), ErrUnauthorized},
		{"a bad stream name", Tokens{Keys: keys}, alice("streams", []any{"a\nb"}), ErrUnauthorized},
		{"name and prefix", Tokens{Keys: keys}, alice("streams", []any{map[string]any{"name": "a", "prefix": "a"}}), ErrUnauthorized},
		{"neither", Tokens{Keys: keys}, alice("streams", []any{map[string]any{"can": []string{"read"}}}), ErrUnauthorized},
		{"an unknown right", Tokens{Keys: keys}, alice("streams", []any{map[string]any{"name": "a", "can": []string{"admin"}}}), ErrUnauthorized},
	} {
		v := newTokens(tt.tokens, nil, at(noon))
		id, err := v.identify(token(t, jwt.SigningMethodHS256, []byte(hmacText), "", tt.claims))
		if !errors.Is(err, tt.want) || (id == nil) != (tt.want != nil) {
			t.Errorf("%s: %+v, %v", tt.name, id, err)
		}
	}

	v := newTokens(Tokens{Keys: keys}, nil, at(noon))
	id, err := v.identify(token(t, jwt.SigningMethodHS256, []byte(hmacText), "", alice(
		"ext", `{"current_user":"gid://app/User/1"}`,
		"streams", []any{"plain", map[string]any{"prefix": "user/7/", "can": []string{"read", "publish"}}, map[string]any{"name": "out", "can": []string{"publish"}}, map[string]any{"name": "shut", "can": []string{}}},
	)))
	if err != nil || id.Ext != `{"current_user":"gid://app/User/1"}` {
		t.Fatalf("%+v, %v", id, err)
	}
	for _, tt := range []struct {
		stream        string
		read, publish bool
	}{
		{"plain", true, false}, {"plain2", false, false}, {"plai", false, false},
		{"user/7/a", true, true}, {"user/7", false, false}, {"user/77/a", false, false},
		{"out", false, true}, {"shut", false, false}, {"", false, false},
	} {
		if read, publish := id.can(false, tt.stream), id.can(true, tt.stream); read != tt.read || publish != tt.publish {
			t.Errorf("%q: read %v, publish %v", tt.stream, read, publish)
		}
	}
}

func TestIssueToken_IsVerified(t *testing.T) {
	secret := NewSecret(hmacText)
	text, err := IssueToken(secret, "k1", TokenClaims{Subject: "alice", Issuer: "app", Audience: "live", Expires: noon.Add(time.Minute),
		Grants: []Grant{{Name: "a", Read: true}, {Prefix: "b/", Publish: true}}})
	if err != nil {
		t.Fatal(err)
	}
	v := newTokens(Tokens{Keys: []JWTKey{{Alg: "HS256", Kid: "k1", key: []byte(hmacText)}}, Issuer: "app", Audiences: []string{"live"}}, nil, at(noon))
	id, err := v.identify(text)
	if err != nil || id.Subject != "alice" || !id.can(false, "a") || id.can(true, "a") || !id.can(true, "b/1") || id.can(false, "b/1") {
		t.Errorf("%+v, %v", id, err)
	}
}

func jwksOf(t testing.TB, kid string) string {
	s := signers()
	enc := base64.RawURLEncoding.EncodeToString
	point, err := s.ec.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]any{"keys": []map[string]string{
		{"kty": "RSA", "kid": kid, "use": "sig", "n": enc(s.rsa.N.Bytes()), "e": "AQAB"},
		{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": kid, "x": enc(point[1:33]), "y": enc(point[33:])},
		{"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": enc(s.ed.Public().(ed25519.PublicKey))},
		{"kty": "EC", "crv": "P-384", "kid": "for something else", "x": "AA", "y": "AA"},
		{"kty": "RSA", "kid": "for encryption", "use": "enc", "n": "AA", "e": "AQAB"},
		{"kty": "RSA", "kid": "for another algorithm", "alg": "RS512", "n": "AA", "e": "AQAB"},
	}}
	b, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestKeySet_IsReadAgainWhenItChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jwks.json")
	write := func(text string) {
		t.Helper()
		// As a careful program does it, and so that the file is another one.
		if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(jwksOf(t, "one"))
	core, logs := observer.New(zap.InfoLevel)
	set, err := openKeySet(path, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	v := newTokens(Tokens{}, set, at(noon))
	s := signers()
	check := func(kid string, good bool) {
		t.Helper()
		for method, key := range map[jwt.SigningMethod]any{jwt.SigningMethodRS256: s.rsa, jwt.SigningMethodES256: s.ec, jwt.SigningMethodEdDSA: s.ed} {
			if _, err := v.identify(token(t, method, key, kid, alice())); (err == nil) != good {
				t.Errorf("%s with the key %q: %v", method.Alg(), kid, err)
			}
		}
	}
	look := func() { set.mu.Lock(); set.looked = time.Time{}; set.mu.Unlock() } // a second later
	check("one", true)
	check("two", false)
	write(jwksOf(t, "two"))
	check("one", true) // not looked at again yet
	look()
	check("two", true)
	check("one", false)
	write(`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`)
	look()
	check("two", true) // what is broken changes nothing
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	look()
	check("two", true)
	if n := logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 2 {
		t.Errorf("%d complaints in the log, want 2", n)
	}
}

func TestParseJWKS_Refuses(t *testing.T) {
	for _, text := range []string{
		``, `[]`, `{}`, `{"keys":{}}`, `{"keys":[1]}`,
		`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`,
		`{"keys":[{"kty":"RSA","n":"` + base64.RawURLEncoding.EncodeToString(signers().rsa.N.Bytes()) + `","e":"AA"}]}`,
		`{"keys":[{"kty":"EC","crv":"P-256","x":"AQ","y":"AQ"}]}`,
		`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AQ"}]}`,
		`{"keys":[{"kty":"oct","alg":"HS256","k":"AQ"}]}`,
		`{"keys":[` + strings.Repeat(`{},`, maxKeys) + `{}]}`,
	} {
		if keys, _, err := parseJWKS([]byte(text)); err == nil {
			t.Errorf("%.60s: %d keys", text, len(keys))
		}
	}
	keys, secret, err := parseJWKS([]byte(`{"keys":[{"kty":"oct","k":"` + base64.RawURLEncoding.EncodeToString([]byte(hmacText)) + `"},` +
		`{"kty":"oct","alg":"HS512","k":"` + base64.RawURLEncoding.EncodeToString([]byte(hmacText)) + `"},{"kty":"oct","alg":"RS256","k":"AQ"}]}`))
	if err != nil || !secret || len(keys) != 1 || keys[0].Alg != "HS512" {
		t.Errorf("shared secrets: %v, %v, %v; one that does not say for what is for nothing", keys, secret, err)
	}
}

func TestParseJWTKeys_Refuses(t *testing.T) {
	s := signers()
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(s.ec)
	if err != nil {
		t.Fatal(err)
	}
	const planted = "planted-secret"
	for name, text := range map[string]string{
		"no algorithm":      planted,
		"none":              "none:" + planted + planted,
		"PS256":             "PS256:" + publicPEM(t, &s.rsa.PublicKey),
		"a short secret":    "HS256:" + planted,
		"a key for HS256":   "HS256:" + publicPEM(t, &s.rsa.PublicKey),
		"no PEM":            "RS256:" + planted + planted,
		"another kind":      "RS256:" + publicPEM(t, &s.ec.PublicKey),
		"a small RSA key":   "RS256:" + publicPEM(t, &small.PublicKey),
		"a private key":     "ES256:" + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		"a missing file":    "RS256:@" + filepath.Join(t.TempDir(), "missing"),
		"a PEM of nonsense": "RS256:" + string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte(planted)})),
	} {
		keys, err := ParseJWTKeys(text)
		if err == nil {
			t.Errorf("%s: %d keys", name, len(keys))
		} else if strings.Contains(err.Error(), planted) {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}
	if shown := fmt.Sprintf("%v %+v %#v %s", NewHMACKey(NewSecret(planted)), []JWTKey{NewHMACKey(NewSecret(planted))}, NewHMACKey(NewSecret(planted)), NewHMACKey(NewSecret(planted))); strings.Contains(shown, planted) || strings.Contains(shown, fmt.Sprint([]byte(planted))) {
		t.Errorf("a key shows itself: %s", shown)
	}
}

// FuzzToken feeds headers, claims and signatures of every shape.
func FuzzToken(f *testing.F) {
	f.Add(`{"alg":"HS256","kid":"a"}`, `{"exp":4070908800,"streams":["a"]}`, "x")
	f.Add(`{"alg":"none"}`, `{"exp":1e300,"nbf":-1,"aud":[1]}`, "")
	f.Add(`{"alg":"RS256","kid":7}`, `{"exp":null,"streams":[{"prefix":""}],"ext":{}}`, "AA")
	f.Add(`{"alg":{}}`, `{"streams":[null]}`, "=")
	v := newTokens(Tokens{Keys: []JWTKey{NewHMACKey(NewSecret(hmacText))}}, nil, at(noon))
	enc := base64.RawURLEncoding.EncodeToString
	f.Fuzz(func(t *testing.T, header, body, sig string) {
		if id, err := v.identify(enc([]byte(header)) + "." + enc([]byte(body)) + "." + sig); err == nil {
			t.Fatalf("a forged token speaks for %+v", id)
		}
		text := enc([]byte(`{"alg":"HS256"}`)) + "." + enc([]byte(body))
		id, err := v.identify(text + "." + enc(mac([]byte(hmacText), text)))
		if err == nil && id.Expires.IsZero() {
			t.Fatalf("a token without an end speaks for %+v", id)
		}
	})
}
