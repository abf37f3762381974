package main

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/chronocast/chronocast/internal/auth"
)

// credentials are what a client command shows the server: a publish key or a
// token. Flags are seen by everybody on the machine, so the environment is the
// better place, and @PATH names a file.
type credentials struct {
	key, token secretFlag
}

func (c *credentials) flags(f *flag.FlagSet) {
	f.Var(&c.key, "publish-key", "the publish `KEY` to show the server, or @PATH; better in CHRONOCAST_PUBLISH_KEY. With CHRONOCAST_SECRET it is derived")
	f.Var(&c.token, "token", "the `TOKEN` to show the server instead, or @PATH; better in CHRONOCAST_TOKEN")
}

// header returns the Authorization header, or "".
func (c *credentials) header() (string, error) {
	key, err := c.publishKey()
	if err != nil {
		return "", err
	}
	token, err := c.tokenText()
	switch {
	case err != nil:
		return "", err
	case !c.key.empty() && !c.token.empty():
		return "", errors.New("--publish-key and --token exclude one another")
	case !c.token.empty():
		return "Bearer " + token.Reveal(), nil
	case !key.Empty():
		return "Bearer " + key.Reveal(), nil
	case !token.Empty():
		return "Bearer " + token.Reveal(), nil
	}
	s := security{}
	s.Secret.text, s.SecretFile = os.Getenv("CHRONOCAST_SECRET"), os.Getenv("CHRONOCAST_SECRET_FILE")
	secrets, err := s.secrets()
	if err != nil || len(secrets) == 0 {
		return "", err
	}
	return "Bearer " + auth.DerivePublishKey(secrets[0]).Reveal(), nil
}

// publishKey is the first of those the flag gives, or the variable.
func (c *credentials) publishKey() (auth.Secret, error) {
	keys, err := auth.ParsePublishKeys(given(&c.key, "publish-key"))
	if err != nil {
		return auth.Secret{}, fmt.Errorf("--publish-key: %w", err)
	}
	if len(keys) == 0 {
		return auth.Secret{}, nil
	}
	return printable(keys[0].Key, "publish-key")
}

// tokenText is what the flag gives, or the variable, or the file they name.
func (c *credentials) tokenText() (auth.Secret, error) {
	text := given(&c.token, "token")
	secret := auth.NewSecret(text)
	if path, ok := strings.CutPrefix(text, "@"); ok {
		var err error
		if secret, err = auth.ReadSecretFile(path); err != nil {
			return auth.Secret{}, errors.New(strings.TrimPrefix(err.Error(), "auth: "))
		}
	}
	return printable(secret, "token")
}

func given(s *secretFlag, name string) string {
	if !s.empty() {
		return s.text
	}
	text, _ := environment(variable(name))
	return text
}

func printable(secret auth.Secret, name string) (auth.Secret, error) {
	if strings.ContainsFunc(secret.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return auth.Secret{}, fmt.Errorf("--%s has characters that no header can carry", name)
	}
	return secret, nil
}

// setAuthorization adds the header.
func setAuthorization(h http.Header, authorization string) {
	if authorization != "" {
		h.Set("Authorization", authorization)
	}
}
