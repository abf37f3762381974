package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// PublishKey lets its holder broadcast, and read what may be broadcast to. One
// without prefixes is not limited, and may administer the server too.
type PublishKey struct {
	Key      Secret
	Prefixes []string // of stream names; none is no limit
}

// JWTKey checks tokens of one algorithm, and of no other.
type JWTKey struct {
	Alg string // HS256, HS384, HS512, RS256, ES256 or EdDSA
	Kid string // checks tokens that name this key, and those that name none
	key any    // []byte, *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// NewHMACKey returns the HS256 key of a shared secret.
func NewHMACKey(secret Secret) JWTKey { return JWTKey{Alg: "HS256", key: []byte(secret.Reveal())} }

func (k JWTKey) String() string             { return k.Alg + " " + redacted }
func (k JWTKey) GoString() string           { return k.String() }
func (k JWTKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// Shared returns the secret of an HS256 key, and whether it is one.
func (k JWTKey) Shared() (Secret, bool) {
	secret, ok := k.key.([]byte)
	return NewSecret(string(secret)), ok && k.Alg == "HS256"
}

// ParseSecrets reads keys as they stand in a flag, a variable or a file: one a
// line, or separated by semicolons; blank lines and lines that begin with # are
// passed over. A part @PATH is read from that file, see [ReadSecretFile]. The
// error never shows what was read.
func ParseSecrets(text string) ([]Secret, error) {
	var secrets []Secret
	err := eachKey(text, 0, func(entry string) error {
		if strings.ContainsAny(entry, " \t") {
			return errors.New("a key has no spaces in it")
		}
		if len(entry) < MinSecretBytes {
			return errShort
		}
		secrets = append(secrets, NewSecret(entry))
		return nil
	})
	return secrets, err
}

var errShort = fmt.Errorf("a key has at least %d bytes; chronocast keys new makes one", MinSecretBytes)

// ParsePublishKeys reads publish keys, each KEY or "KEY PREFIX PREFIX…"; see
// [ParseSecrets] for the rest.
func ParsePublishKeys(text string) ([]PublishKey, error) {
	var keys []PublishKey
	err := eachKey(text, 0, func(entry string) error {
		fields := strings.Fields(entry)
		if len(fields[0]) < MinSecretBytes {
			return errShort
		}
		keys = append(keys, PublishKey{Key: NewSecret(fields[0]), Prefixes: fields[1:]})
		return nil
	})
	return keys, err
}

// maxKeys bounds a list of keys: each is tried for every signature.
const maxKeys = 64

// eachKey calls f for every entry of a list. depth counts the files it is
// inside of.
func eachKey(text string, depth int, f func(entry string) error) error {
	n := 0
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' || r == ';' }) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if n++; n > maxKeys {
			return fmt.Errorf("a list has at most %d keys", maxKeys)
		}
		if path, ok := strings.CutPrefix(line, "@"); ok {
			if depth > 0 {
				return errors.New("a file of keys names no other file")
			}
			inside, err := ReadSecretFile(path)
			if err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "auth: "))
			}
			if err := eachKey(inside.Reveal(), depth+1, f); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			continue
		}
		if err := f(line); err != nil {
			return err
		}
	}
	return nil
}

// Algorithms are what a token may be signed with.
var Algorithms = []string{"HS256", "HS384", "HS512", "RS256", "ES256", "EdDSA"}

// ParseJWTKeys reads keys for tokens, each ALG:KEY or ALG/KID:KEY. KEY of HS256,
// HS384 and HS512 is the shared secret, that of the others a public key in PEM,
// in which line breaks may be written as spaces; either may be @PATH, a file
// that holds it. Entries are separated by semicolons; see [ParseSecrets].
func ParseJWTKeys(text string) ([]JWTKey, error) {
	var keys []JWTKey
	for entry := range strings.SplitSeq(text, ";") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		head, material, ok := strings.Cut(entry, ":")
		alg, kid, _ := strings.Cut(head, "/")
		if !ok || !slices.Contains(Algorithms, alg) {
			return nil, fmt.Errorf("a key for tokens is ALG:KEY or ALG/KID:KEY, with one of %s as ALG", strings.Join(Algorithms, ", "))
		}
		if len(keys) == maxKeys {
			return nil, fmt.Errorf("a list has at most %d keys", maxKeys)
		}
		if path, isFile := strings.CutPrefix(material, "@"); isFile {
			data, err := readFile(path, strings.HasPrefix(alg, "HS"))
			if err != nil {
				return nil, errors.New(strings.TrimPrefix(err.Error(), "auth: "))
			}
			material = strings.TrimSpace(string(data))
		}
		key, err := parseKey(alg, material)
		if err != nil {
			return nil, fmt.Errorf("the %s key %w", alg, err)
		}
		keys = append(keys, JWTKey{Alg: alg, Kid: kid, key: key})
	}
	return keys, nil
}

func parseKey(alg, material string) (any, error) {
	if strings.HasPrefix(alg, "HS") {
		if len(material) < MinSecretBytes {
			return nil, fmt.Errorf("has less than %d bytes", MinSecretBytes)
		}
		if strings.HasPrefix(material, "-----BEGIN") {
			return nil, errors.New("is a PEM block; a shared secret is needed")
		}
		return []byte(material), nil
	}
	block, _ := pem.Decode([]byte(pemLines(material)))
	if block == nil {
		return nil, errors.New("is not PEM")
	}
	if strings.Contains(block.Type, "PRIVATE") {
		return nil, errors.New("is a private key; this server needs the public one")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		if parsed, err = x509.ParsePKCS1PublicKey(block.Bytes); err != nil {
			return nil, errors.New("is not a public key in PEM")
		}
	}
	return checkKey(alg, parsed)
}

// pemLines turns spaces inside a PEM block back to line breaks.
func pemLines(text string) string {
	const begin, end = "-----BEGIN ", "-----END "
	if strings.Contains(text, "\n") || !strings.HasPrefix(text, begin) {
		return text
	}
	head, rest, ok := strings.Cut(text[len(begin):], "----- ")
	if !ok {
		return text
	}
	body, tail, ok := strings.Cut(rest, end)
	if !ok {
		return text
	}
	return begin + head + "-----\n" + strings.Join(strings.Fields(body), "\n") + "\n" + end + tail + "\n"
}

// minRSABits is what a signature is still worth something with.
const minRSABits = 2048

// checkKey says whether a public key is one of the algorithm.
func checkKey(alg string, key any) (any, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSABits {
			return nil, fmt.Errorf("has less than %d bits", minRSABits)
		}
		if alg == "RS256" {
			return k, nil
		}
	case *ecdsa.PublicKey:
		if alg == "ES256" && k.Curve == elliptic.P256() {
			return k, nil
		}
	case ed25519.PublicKey:
		if alg == "EdDSA" && len(k) == ed25519.PublicKeySize {
			return k, nil
		}
	}
	return nil, errors.New("is of another kind than the algorithm needs")
}
