package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"

	"github.com/chronocast/chronocast/protocol"
)

// Skew is how far the clock of whoever issues a token may be ahead of or behind
// this server's: a token is good that much before its nbf and after its exp.
const Skew = 2 * time.Second

// MaxTokenBytes bounds a token.
const MaxTokenBytes = 8 << 10

// maxGrants bounds the streams of one token.
const maxGrants = 1000

// Tokens says which tokens are good.
type Tokens struct {
	Keys []JWTKey
	// JWKS is a file with more keys, a JSON Web Key Set that is read again when
	// it changes; "" is none.
	JWKS      string
	Issuer    string   // iss must be this; "" is any
	Audiences []string // aud must hold one of these; none is any
	// Endless admits tokens without exp.
	Endless bool
}

// claims are those of a token.
type claims struct {
	jwt.RegisteredClaims
	Streams json.RawMessage `json:"streams"`
	Ext     json.RawMessage `json:"ext"`
}

// tokens checks JSON Web Tokens.
type tokens struct {
	keys   []JWTKey
	set    *keySet // nil is none
	parser *jwt.Parser
}

func newTokens(t Tokens, set *keySet, now func() time.Time) *tokens {
	options := []jwt.ParserOption{
		jwt.WithValidMethods(Algorithms), jwt.WithLeeway(Skew), jwt.WithTimeFunc(now), jwt.WithStrictDecoding(),
	}
	if !t.Endless {
		options = append(options, jwt.WithExpirationRequired())
	}
	if t.Issuer != "" {
		options = append(options, jwt.WithIssuer(t.Issuer))
	}
	if len(t.Audiences) > 0 {
		options = append(options, jwt.WithAudience(t.Audiences...))
	}
	return &tokens{keys: t.Keys, set: set, parser: jwt.NewParser(options...)}
}

// enabled says whether there is any key.
func (t *tokens) enabled() bool { return len(t.keys) > 0 || t.set != nil }

// identify returns who a token speaks for. The error wraps ErrUnauthorized or
// ErrExpired, and holds nothing of the token.
func (t *tokens) identify(text string) (*Identity, error) {
	if len(text) > MaxTokenBytes || !t.enabled() {
		return nil, ErrUnauthorized
	}
	var c claims
	if _, err := t.parser.ParseWithClaims(text, &c, t.keyFor); err != nil {
		// Only when nothing else is wrong: whoever makes up a token learns nothing.
		if errors.Is(err, jwt.ErrTokenExpired) && !errors.Is(err, jwt.ErrTokenNotValidYet) && !errors.Is(err, jwt.ErrTokenInvalidAudience) &&
			!errors.Is(err, jwt.ErrTokenInvalidIssuer) && !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
			return nil, ErrExpired
		}
		return nil, ErrUnauthorized
	}
	id := &Identity{Subject: c.Subject}
	if c.ExpiresAt != nil {
		id.Expires = c.ExpiresAt.Time
	}
	var err error
	if id.Grants, err = parseGrants(c.Streams); err != nil {
		return nil, fmt.Errorf("%w: the claim streams %w", ErrUnauthorized, err)
	}
	if id.Ext, err = parseExt(c.Ext); err != nil {
		return nil, fmt.Errorf("%w: the claim ext %w", ErrUnauthorized, err)
	}
	return id, nil
}

// keyFor finds the keys that may have signed a token: those of its algorithm,
// and of its kid when it names one. Which algorithm a key is for is decided by
// the configuration and never by the token, so a public key is never taken for
// a shared secret, and "none" has no key at all.
func (t *tokens) keyFor(token *jwt.Token) (any, error) {
	alg := token.Method.Alg()
	var kid string
	if value, named := token.Header["kid"]; named {
		var ok bool
		if kid, ok = value.(string); !ok || kid == "" {
			return nil, errNoKey
		}
	}
	var found jwt.VerificationKeySet
	all := t.keys
	if t.set != nil {
		all = append(slices.Clip(all), t.set.current()...)
	}
	for _, k := range all {
		if k.Alg == alg && (kid == "" || k.Kid == kid) {
			found.Keys = append(found.Keys, k.key)
		}
	}
	if len(found.Keys) == 0 {
		return nil, errNoKey
	}
	return found, nil
}

var errNoKey = errors.New("auth: no key for this token")

// Grant is what may be done with a stream, or with all whose names begin so.
type Grant struct {
	Name, Prefix string // one of the two; both empty is every stream
	Read         bool
	Publish      bool
}

func (g Grant) covers(stream string) bool {
	if g.Name != "" {
		return g.Name == stream
	}
	return strings.HasPrefix(stream, g.Prefix)
}

// parseGrants reads the claim streams: an array of names (to be read), or of
// {"name":…} or {"prefix":…}, with "can":["read","publish"] (["read"] when it is
// missing).
func parseGrants(raw json.RawMessage) ([]Grant, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return nil, errors.New("is not an array")
	}
	if len(items) > maxGrants {
		return nil, fmt.Errorf("names more than %d streams", maxGrants)
	}
	grants := make([]Grant, 0, len(items))
	for _, item := range items {
		var g Grant
		if item[0] == '"' {
			if json.Unmarshal(item, &g.Name) != nil || protocol.CheckStream(g.Name) != nil {
				return nil, errors.New("holds what is no stream name")
			}
			g.Read = true
			grants = append(grants, g)
			continue
		}
		var entry struct {
			Name   *string   `json:"name"`
			Prefix *string   `json:"prefix"`
			Can    *[]string `json:"can"`
		}
		if json.Unmarshal(item, &entry) != nil || (entry.Name == nil) == (entry.Prefix == nil) {
			return nil, errors.New("holds an entry with neither a name nor a prefix")
		}
		if entry.Name != nil {
			if g.Name = *entry.Name; protocol.CheckStream(g.Name) != nil {
				return nil, errors.New("holds what is no stream name")
			}
		} else if g.Prefix = *entry.Prefix; g.Prefix != "" && protocol.CheckStream(g.Prefix) != nil {
			return nil, errors.New("holds what is no beginning of a stream name")
		}
		can := []string{"read"}
		if entry.Can != nil {
			can = *entry.Can
		}
		for _, what := range can {
			switch what {
			case "read":
				g.Read = true
			case "publish":
				g.Publish = true
			default:
				return nil, errors.New("grants what is neither read nor publish")
			}
		}
		grants = append(grants, g)
	}
	return grants, nil
}

// parseExt reads the claim ext, AnyCable's connection identifiers: a string
// that holds JSON, or that JSON itself.
func parseExt(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	text := string(raw)
	if raw[0] == '"' {
		if json.Unmarshal(raw, &text) != nil {
			return "", errors.New("is not a string")
		}
	}
	if !utf8.ValidString(text) {
		return "", errors.New("is not UTF-8")
	}
	return text, nil
}

// TokenClaims is what [IssueToken] puts into a token.
type TokenClaims struct {
	Subject  string
	Issuer   string
	Audience string
	Expires  time.Time // zero: never
	Grants   []Grant
}

// IssueToken makes an HS256 token, for tests and the command line.
func IssueToken(key Secret, kid string, c TokenClaims) (string, error) {
	body := jwt.MapClaims{"iat": time.Now().Unix()}
	if c.Subject != "" {
		body["sub"] = c.Subject
	}
	if c.Issuer != "" {
		body["iss"] = c.Issuer
	}
	if c.Audience != "" {
		body["aud"] = c.Audience
	}
	if !c.Expires.IsZero() {
		body["exp"] = c.Expires.Unix()
	}
	var streams []map[string]any
	for _, g := range c.Grants {
		entry := map[string]any{"prefix": g.Prefix}
		if g.Name != "" {
			entry = map[string]any{"name": g.Name}
		}
		can := []string{}
		if g.Read {
			can = append(can, "read")
		}
		if g.Publish {
			can = append(can, "publish")
		}
		entry["can"] = can
		streams = append(streams, entry)
	}
	if streams != nil {
		body["streams"] = streams
	}
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, body)
	if kid != "" {
		token.Header["kid"] = kid
	}
	return token.SignedString([]byte(key.Reveal()))
}
