package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Secret is a key or another text that must never be shown. However it is
// printed or encoded, alone or inside something else, it shows "[redacted]" or
// an address.
type Secret struct {
	text *string // a pointer, because fmt follows fields but not pointers inside them
}

const redacted = "[redacted]"

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{&text} }

// Reveal returns the text itself, for the one place that needs it.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Empty says whether there is nothing in it.
func (s Secret) Empty() bool { return s.text == nil || *s.text == "" }

// Equal compares in a time that tells nothing about where the two differ.
func (s Secret) Equal(other Secret) bool { return equalText(s.Reveal(), other.Reveal()) }

func (Secret) String() string                { return redacted }
func (Secret) GoString() string              { return redacted }
func (Secret) MarshalText() ([]byte, error)  { return []byte(redacted), nil }
func (Secret) Format(f fmt.State, verb rune) { _, _ = io.WriteString(f, redacted) }

// equalText compares digests, so that not even the length of the secret shows.
func equalText(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// MinSecretBytes is the least a secret may have. What is shorter can be
// guessed by whoever holds one signed name, without asking the server.
const MinSecretBytes = 16

// GenerateSecret returns a new secret of 256 random bits, as hex.
func GenerateSecret() Secret {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return NewSecret(hex.EncodeToString(b[:]))
}

// Phrases AnyCable derives its keys with.
const (
	phraseBroadcast = "broadcast-cable"
	phraseRPC       = "rpc-cable"
)

// DerivePublishKey returns the publish key that belongs to an application
// secret, as AnyCable derives it: hex of HMAC-SHA256(secret, "broadcast-cable").
func DerivePublishKey(secret Secret) Secret { return derive(secret, phraseBroadcast) }

// DeriveCallbackKey returns the key that authorization requests carry, as
// AnyCable derives the one of its RPC over HTTP: hex of HMAC-SHA256(secret,
// "rpc-cable").
func DeriveCallbackKey(secret Secret) Secret { return derive(secret, phraseRPC) }

func derive(secret Secret, phrase string) Secret {
	return NewSecret(hex.EncodeToString(mac([]byte(secret.Reveal()), phrase)))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}

// maxSecretFile bounds a file of secrets.
const maxSecretFile = 256 << 10

// ReadSecretFile reads a file that holds secrets. It must be a regular file
// that belongs to this user or root, and to which others have no access at all
// and its group none that writes. The error names the file and never shows what
// is in it.
func ReadSecretFile(path string) (Secret, error) {
	data, err := readFile(path, true)
	if err != nil {
		return Secret{}, err
	}
	return NewSecret(strings.TrimRight(string(data), "\r\n")), nil
}

// readFile reads a regular file that nobody else can change; private also
// refuses one that others can read.
func readFile(path string, private bool) ([]byte, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	if err := checkFile(info, private); err != nil {
		return nil, fmt.Errorf("auth: %s %w", path, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("auth: %w", err)
	case len(data) > maxSecretFile:
		return nil, fmt.Errorf("auth: %s is larger than %d bytes", path, maxSecretFile)
	}
	return data, nil
}

func checkFile(info os.FileInfo, private bool) error {
	mode := info.Mode()
	switch {
	case !mode.IsRegular():
		return errors.New("is not a regular file")
	case private && mode.Perm()&0o007 != 0:
		return errors.New("can be read or changed by everybody on this machine: chmod o-rwx")
	case mode.Perm()&0o022 != 0:
		return errors.New("can be changed by others on this machine: chmod go-w")
	}
	return checkOwner(info)
}

// decodeBase64 reads either alphabet, with or without padding.
func decodeBase64(text string) ([]byte, error) {
	text = strings.TrimRight(text, "=")
	if strings.ContainsAny(text, "-_") {
		return base64.RawURLEncoding.DecodeString(text)
	}
	return base64.RawStdEncoding.DecodeString(text)
}
