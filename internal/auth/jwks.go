package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// jwk is one key of a JSON Web Key Set (RFC 7517).
type jwk struct {
	Kty, Use, Alg, Kid, Crv, K, N, E, X, Y string
}

// parseJWKS reads a key set. Keys that are for something else (encryption,
// another curve or algorithm) are left out; one that should be good and is
// broken refuses the whole set. secret says that it holds shared secrets.
func parseJWKS(data []byte) (keys []JWTKey, secret bool, err error) {
	var set struct{ Keys []json.RawMessage }
	if json.Unmarshal(data, &set) != nil || set.Keys == nil {
		return nil, false, errors.New("is not a JSON Web Key Set")
	}
	if len(set.Keys) > maxKeys {
		return nil, false, fmt.Errorf("holds more than %d keys", maxKeys)
	}
	for i, raw := range set.Keys {
		var k jwk
		if json.Unmarshal(raw, &k) != nil {
			return nil, false, fmt.Errorf("holds what is no key (number %d)", i)
		}
		alg := k.algorithm()
		if alg == "" || k.Use != "" && k.Use != "sig" {
			continue
		}
		key, err := k.public(alg)
		if err != nil {
			return nil, false, fmt.Errorf("holds a broken key (number %d): it %w", i, err)
		}
		secret = secret || k.Kty == "oct"
		keys = append(keys, JWTKey{Alg: alg, Kid: k.Kid, key: key})
	}
	return keys, secret, nil
}

// algorithm is what the key is pinned to: what it says, or the only one there
// is for its kind. "" when there is none.
func (k jwk) algorithm() string {
	var only []string
	switch {
	case k.Kty == "RSA":
		only = []string{"RS256"}
	case k.Kty == "EC" && k.Crv == "P-256":
		only = []string{"ES256"}
	case k.Kty == "OKP" && k.Crv == "Ed25519":
		only = []string{"EdDSA"}
	case k.Kty == "oct":
		only = []string{k.Alg, "HS256", "HS384", "HS512"} // it has to say which
	}
	if k.Alg == "" && len(only) == 1 {
		return only[0]
	}
	if k.Alg != "" && slices.Contains(Algorithms, k.Alg) && slices.Contains(only, k.Alg) {
		if k.Kty != "oct" || strings.HasPrefix(k.Alg, "HS") {
			return k.Alg
		}
	}
	return ""
}

func (k jwk) public(alg string) (any, error) {
	part := func(text string) []byte {
		b, err := decodeBase64(text)
		if err != nil {
			return nil
		}
		return b
	}
	switch k.Kty {
	case "oct":
		return parseKey(alg, string(part(k.K)))
	case "RSA":
		e := new(big.Int).SetBytes(part(k.E))
		if e.BitLen() < 2 || e.BitLen() > 31 {
			return nil, errors.New("has an odd exponent")
		}
		return checkKey(alg, &rsa.PublicKey{N: new(big.Int).SetBytes(part(k.N)), E: int(e.Int64())})
	case "EC":
		x, y := part(k.X), part(k.Y)
		if len(x) > 32 || len(y) > 32 {
			return nil, errors.New("is no point of its curve")
		}
		point := make([]byte, 65)
		point[0] = 4 // uncompressed
		copy(point[33-len(x):33], x)
		copy(point[65-len(y):], y)
		key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
		if err != nil {
			return nil, errors.New("is no point of its curve")
		}
		return checkKey(alg, key)
	}
	return checkKey(alg, ed25519.PublicKey(part(k.X)))
}

// keySet is a JWKS file that is read again when it changes.
type keySet struct {
	path string
	log  *zap.Logger

	mu     sync.Mutex // guards what follows
	keys   []JWTKey
	stamp  fileStamp
	looked time.Time
}

// fileStamp tells one state of a file from another.
type fileStamp struct {
	size int64
	time time.Time
	info os.FileInfo
}

// lookEvery is how often a file is looked at, and only when a token comes.
const lookEvery = time.Second

// openKeySet reads the file for the first time; it must be good then.
func openKeySet(path string, log *zap.Logger) (*keySet, error) {
	s := &keySet{path: path, log: log}
	stamp, err := s.look()
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	if s.keys, err = readKeySet(path); err != nil {
		return nil, err
	}
	s.stamp, s.looked = stamp, time.Now()
	return s, nil
}

func readKeySet(path string) ([]JWTKey, error) {
	data, err := readFile(path, false)
	if err != nil {
		return nil, err
	}
	keys, secret, err := parseJWKS(data)
	if err == nil && secret {
		_, err = readFile(path, true)
		if err != nil {
			return nil, err
		}
	}
	if err == nil && len(keys) == 0 {
		err = errors.New("holds no key to check tokens with")
	}
	if err != nil {
		return nil, fmt.Errorf("auth: %s %w", path, err)
	}
	return keys, nil
}

func (s *keySet) look() (fileStamp, error) {
	info, err := os.Stat(s.path)
	if err != nil {
		return fileStamp{}, err
	}
	return fileStamp{size: info.Size(), time: info.ModTime(), info: info}, nil
}

func (a fileStamp) same(b fileStamp) bool {
	return a.size == b.size && a.time.Equal(b.time) && a.info != nil && b.info != nil && os.SameFile(a.info, b.info)
}

// current returns the keys as the file has them now. A file that has become
// unreadable or broken leaves those it had.
func (s *keySet) current() []JWTKey {
	s.mu.Lock()
	keys := s.keys
	due := time.Since(s.looked) >= lookEvery
	stamp := s.stamp
	if due {
		s.looked = time.Now()
	}
	s.mu.Unlock()
	if !due {
		return keys
	}
	now, err := s.look()
	if err == nil && now.same(stamp) {
		return keys
	}
	var fresh []JWTKey
	if err == nil {
		fresh, err = readKeySet(s.path)
	}
	if err != nil {
		s.log.Error("the key set cannot be read again, the keys it had before stay", zap.Error(err))
		return keys
	}
	s.log.Info("the key set was read again", zap.Int("keys", len(fresh)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.stamp = fresh, now
	return fresh
}
