package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/server"
	"github.com/chronocast/chronocast/protocol"
)

// security is what can be set about who may do what.
type security struct {
	Secret        secretFlag
	SecretFile    string
	PublishKey    secretFlag
	SignKey       secretFlag
	TurboKey      secretFlag
	SecretKeyBase secretFlag
	JWTKey        secretFlag
	JWKS          string
	JWTIssuer     string
	JWTAudience   string
	JWTEndless    bool
	RequireToken  bool
	QueryTokens   bool

	PublicStreams publicStreams
	Origins       string
	Proxies       string

	AuthorizeURL     secretFlag
	AuthorizeHeaders string
	AuthorizeTimeout time.Duration

	PublicMetrics         bool
	MaxAuthFailures       int
	MaxConnections        int
	MaxAddressConnections int
	MaxCommandRate        int
	FirstCommandTimeout   time.Duration
	BodyBudget            size
}

func defaultSecurity() security {
	return security{
		AuthorizeHeaders: "Cookie", AuthorizeTimeout: 3 * time.Second,
		MaxAuthFailures: 60, MaxCommandRate: 1000, FirstCommandTimeout: time.Minute, BodyBudget: 64 << 20,
	}
}

func (s *security) flags(f *flag.FlagSet) {
	const shown = "; ps shows flags to everybody on this machine: use the environment variable, or @PATH for a file"
	f.Var(&s.Secret, "secret", "the application's `secret`, which the other keys come from; several, the newest first, are separated by semicolons; without any the server is open and serves this machine only"+shown)
	f.StringVar(&s.SecretFile, "secret-file", s.SecretFile, "a file with the secret at `PATH`, one a line, which others must not be able to read")
	f.Var(&s.PublishKey, "publish-key", "who may publish: `KEY`, or \"KEY PREFIX PREFIX…\" for streams whose names begin so; normally derived from the secret as AnyCable does; may be repeated"+shown)
	f.Var(&s.SignKey, "sign-key", "a `KEY` that signs stream names for $pubsub; normally the secret; may be repeated"+shown)
	f.Var(&s.TurboKey, "turbo-key", "a `KEY` that signs stream names for Turbo::StreamsChannel, as config.turbo.signed_stream_verifier_key has it; may be repeated"+shown)
	f.Var(&s.SecretKeyBase, "secret-key-base", "Rails' `secret_key_base`, which Turbo's key is derived from"+shown)
	f.Var(&s.JWTKey, "jwt-key", "checks tokens: `ALG:KEY` or ALG/KID:KEY, with HS256, HS384, HS512 and a shared secret, or RS256, ES256, EdDSA and a public key in PEM; KEY may be @PATH; normally HS256 with the secret; may be repeated"+shown)
	f.StringVar(&s.JWKS, "jwks", s.JWKS, "a file with keys for tokens at `PATH`, a JSON Web Key Set; read again when it changes")
	f.StringVar(&s.JWTIssuer, "jwt-issuer", s.JWTIssuer, "who must have issued a token, its `iss`")
	f.StringVar(&s.JWTAudience, "jwt-audience", s.JWTAudience, "whom a token must be for, its `aud`; one of several, separated by commas")
	f.BoolVar(&s.JWTEndless, "jwt-endless", s.JWTEndless, "admit tokens without an end (exp)")
	f.BoolVar(&s.RequireToken, "require-token", s.RequireToken, "refuse every connection and every read without a token")
	f.BoolVar(&s.QueryTokens, "query-tokens", s.QueryTokens, "take tokens from ?token= of every request, not of WebSockets alone; proxies log them")
	f.Var(&s.PublicStreams, "public-streams", "streams that everybody may read by their plain names: all, or `PREFIXES` separated by commas, as in --public-streams=news/,status/")
	f.StringVar(&s.Origins, "origins", s.Origins, "pages that may connect and read: `ORIGINS` such as https://example.com, https://*.example.com, or * for all; normally those of the server's own origin")
	f.StringVar(&s.Proxies, "proxies", s.Proxies, "proxies whose X-Forwarded-For is believed: `ADDRESSES` and networks, separated by commas")
	f.Var(&s.AuthorizeURL, "authorize-url", "the `URL` of the application that is asked who may connect and subscribe")
	f.StringVar(&s.AuthorizeHeaders, "authorize-headers", s.AuthorizeHeaders, "which `HEADERS` of a client's request the application is told, separated by commas")
	f.DurationVar(&s.AuthorizeTimeout, "authorize-timeout", s.AuthorizeTimeout, "how long the application may take to answer")
	f.BoolVar(&s.PublicMetrics, "public-metrics", s.PublicMetrics, "show /metrics to everybody; otherwise a publish key without prefixes is needed once there is a secret")
	f.IntVar(&s.MaxAuthFailures, "max-auth-failures", s.MaxAuthFailures, "how many wrong credentials an address may show in a minute; 0 is no limit")
	f.IntVar(&s.MaxConnections, "max-connections", s.MaxConnections, "how many WebSockets there may be; 0 is no limit")
	f.IntVar(&s.MaxAddressConnections, "max-address-connections", s.MaxAddressConnections, "how many of one address; 0 is no limit; behind a proxy set --proxies, too")
	f.IntVar(&s.MaxCommandRate, "max-command-rate", s.MaxCommandRate, "how many commands a second one connection may send, ten times as many at once; it is slowed down beyond")
	f.DurationVar(&s.FirstCommandTimeout, "first-command-timeout", s.FirstCommandTimeout, "how long a connection may say nothing at first; 0 is no limit")
	f.Var(&s.BodyBudget, "body-budget", "how much of bodies being received may be held at once, a `size`")
}

// secured says whether anything was set that decides who may do what.
func (s *security) secured() bool {
	return s.SecretFile != "" || s.JWKS != "" || !s.Secret.empty() || !s.PublishKey.empty() || !s.SignKey.empty() || !s.TurboKey.empty() ||
		!s.SecretKeyBase.empty() || !s.JWTKey.empty() || !s.AuthorizeURL.empty()
}

// authorizer returns who decides: everybody on this machine without a secret, a
// policy with one.
func (s *security) authorizer(log *zap.Logger) (server.Authorizer, error) {
	if !s.secured() {
		return auth.Open{}, nil
	}
	c, err := s.policy()
	if err != nil {
		return nil, err
	}
	c.Log = log
	return auth.New(c)
}

// secrets returns the application's secrets, the newest first.
func (s *security) secrets() ([]auth.Secret, error) {
	var all []auth.Secret
	for _, source := range []struct{ flag, text string }{{"secret", s.Secret.text}, {"secret-file", fileRef(s.SecretFile)}} {
		found, err := auth.ParseSecrets(source.text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", source.flag, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func fileRef(path string) string {
	if path == "" {
		return ""
	}
	return "@" + path
}

// policy reads every key. Its errors name the flag and never show a value.
func (s *security) policy() (auth.Config, error) {
	secrets, err := s.secrets()
	if err != nil {
		return auth.Config{}, err
	}
	c := auth.Config{
		Tokens:        auth.Tokens{JWKS: s.JWKS, Issuer: s.JWTIssuer, Audiences: list(s.JWTAudience), Endless: s.JWTEndless},
		RequireToken:  s.RequireToken,
		PublicStreams: s.PublicStreams,
		QueryTokens:   s.QueryTokens,
		Callback:      auth.Callback{URL: s.AuthorizeURL.text, Headers: list(s.AuthorizeHeaders), Timeout: s.AuthorizeTimeout},
		PublicMetrics: s.PublicMetrics,
		MaxFailures:   s.MaxAuthFailures,
	}
	for _, part := range []struct {
		flag string
		read func() error
	}{
		{"publish-key", func() (err error) { c.PublishKeys, err = auth.ParsePublishKeys(s.PublishKey.text); return err }},
		{"sign-key", func() (err error) { c.SignKeys, err = auth.ParseSecrets(s.SignKey.text); return err }},
		{"turbo-key", func() (err error) { c.TurboKeys, err = auth.ParseSecrets(s.TurboKey.text); return err }},
		{"jwt-key", func() (err error) { c.Tokens.Keys, err = auth.ParseJWTKeys(s.JWTKey.text); return err }},
		{"origins", func() (err error) { c.Origins, err = auth.ParseOrigins(s.Origins); return err }},
		{"proxies", func() (err error) { c.Proxies, err = auth.ParseProxies(s.Proxies); return err }},
		{"authorize-url", func() error { return c.Callback.Check() }},
		{"secret-key-base", func() error {
			bases, err := auth.ParseSecrets(s.SecretKeyBase.text)
			for _, base := range bases {
				c.TurboKeys = append(c.TurboKeys, auth.TurboKeys(base)...)
			}
			return err
		}},
	} {
		if err := part.read(); err != nil {
			return auth.Config{}, fmt.Errorf("--%s: %w", part.flag, err)
		}
	}
	for i, secret := range secrets {
		if s.PublishKey.empty() {
			c.PublishKeys = append(c.PublishKeys, auth.PublishKey{Key: auth.DerivePublishKey(secret)})
		}
		if s.SignKey.empty() {
			c.SignKeys = append(c.SignKeys, secret)
		}
		if s.JWTKey.empty() && s.JWKS == "" {
			c.Tokens.Keys = append(c.Tokens.Keys, auth.NewHMACKey(secret))
		}
		if i == 0 {
			c.Callback.Key = auth.DeriveCallbackKey(secret)
		}
	}
	return c, nil
}

// check returns what is wrong, naming the flag and its bound.
func (s *security) check() error {
	if _, err := s.authorizer(zap.NewNop()); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "auth: "))
	}
	for _, n := range []struct {
		flag          string
		value, lo, hi int64
	}{
		{"max-auth-failures", int64(s.MaxAuthFailures), 0, 1_000_000},
		{"max-connections", int64(s.MaxConnections), 0, 100_000_000},
		{"max-address-connections", int64(s.MaxAddressConnections), 0, 100_000_000},
		{"max-command-rate", int64(s.MaxCommandRate), 1, 1_000_000},
		{"body-budget", int64(s.BodyBudget), 1 << 20, 1 << 40},
	} {
		if n.value < n.lo || n.value > n.hi {
			return fmt.Errorf("--%s %d must be from %d to %d", n.flag, n.value, n.lo, n.hi)
		}
	}
	for _, d := range []struct {
		flag          string
		value, lo, hi time.Duration
	}{
		{"authorize-timeout", s.AuthorizeTimeout, 10 * time.Millisecond, 30 * time.Second},
		{"first-command-timeout", s.FirstCommandTimeout, 0, 24 * time.Hour},
	} {
		if d.value < d.lo || d.value > d.hi {
			return fmt.Errorf("--%s %v must be from %v to %v", d.flag, d.value, d.lo, d.hi)
		}
	}
	return nil
}

// apply sets what the server is to know of it.
func (s *security) apply(o *server.Options) error {
	proxies, err := auth.ParseProxies(s.Proxies)
	if err != nil {
		return err
	}
	o.Proxies = proxies
	o.MaxConnections, o.MaxAddressConnections, o.MaxCommandRate = s.MaxConnections, s.MaxAddressConnections, s.MaxCommandRate
	o.BodyBudget = int(s.BodyBudget)
	if o.FirstCommandTimeout = s.FirstCommandTimeout; s.FirstCommandTimeout == 0 {
		o.FirstCommandTimeout = -1
	}
	return nil
}

// list splits at commas.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// secretFlag is a flag whose value is never shown: not in the help, and not in
// an error, which is why Set takes everything and what is wrong is found later.
type secretFlag struct {
	text    string
	environ bool // it comes from the environment, and the first flag replaces it
}

func (s *secretFlag) String() string { return "" }
func (s *secretFlag) empty() bool    { return s.text == "" }

// Set adds a value to those given before.
func (s *secretFlag) Set(text string) error {
	if s.environ || s.text == "" {
		s.text, s.environ = text, false
		return nil
	}
	s.text += ";" + text
	return nil
}

// GoString keeps the value out of a printed configuration.
func (s secretFlag) GoString() string { return "[redacted]" }

// Format does so for the other verbs.
func (s secretFlag) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[redacted]")) }

// publicStreams are prefixes; the flag alone means all streams.
type publicStreams []string

func (p *publicStreams) String() string { return "" }

// IsBoolFlag lets the flag stand alone.
func (p *publicStreams) IsBoolFlag() bool { return true }

// Set reads true, false or prefixes.
func (p *publicStreams) Set(text string) error {
	*p = nil
	if all, err := strconv.ParseBool(text); err == nil {
		if all {
			*p = publicStreams{""}
		}
		return nil
	}
	for _, prefix := range list(text) {
		if protocol.CheckStream(prefix) != nil {
			return fmt.Errorf("%q cannot be the beginning of a stream's name", prefix)
		}
		*p = append(*p, prefix)
	}
	return nil
}
