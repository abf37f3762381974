package auth

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// TestDerivePublishKey_IsAnyCables: the value is what
// echo -n broadcast-cable | openssl dgst -sha256 -hmac secret prints.
func TestDerivePublishKey_IsAnyCables(t *testing.T) {
	if got := DerivePublishKey(NewSecret("secret")).Reveal(); got != "fc20575eaa046c555be789f7a9df5111d64eb17e4956597597c3220c1ad14739" {
		t.Errorf("derived %s", got)
	}
	if DeriveCallbackKey(NewSecret("secret")).Equal(DerivePublishKey(NewSecret("secret"))) {
		t.Error("the application is sent the publish key")
	}
}

func TestSecret_NeverShowsItself(t *testing.T) {
	const planted = "planted-secret"
	s := NewSecret(planted)
	type holder struct {
		hidden Secret
		Shown  Secret
		list   []PublishKey
	}
	h := holder{s, s, []PublishKey{{Key: s}}}
	shown := fmt.Sprintf("%v %+v %#v %s %q %x %d %v %+v %#v %v", s, s, s, s, s, s, s, h, h, h, &h)
	asJSON, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()).EncodeEntry(zapcore.Entry{}, []zapcore.Field{
		zap.Any("a", s), zap.Stringer("b", s), zap.Reflect("c", h), zap.Any("d", h), zap.Any("e", []Secret{s})})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{shown, string(asJSON), encoded.String()} {
		if strings.Contains(text, planted) || strings.Contains(text, fmt.Sprintf("%x", planted)) {
			t.Errorf("it shows itself in %s", text)
		}
	}
	if s.Reveal() != planted || !s.Equal(NewSecret(planted)) || s.Equal(NewSecret(planted+"x")) || s.Equal(Secret{}) {
		t.Error("it is not what it was made of")
	}
}

func TestReadSecretFile_RefusesWhatOthersCanRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "secret")
	if err := os.WriteFile(path, []byte("the secret itself\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, good := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: true, 0o644: false, 0o604: false, 0o602: false, 0o601: false, 0o660: false, 0o620: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		s, err := ReadSecretFile(path)
		if (err == nil) != good || good && s.Reveal() != "the secret itself" {
			t.Errorf("mode %o: %v", mode, err)
		}
		if err != nil && strings.Contains(err.Error(), "the secret itself") {
			t.Errorf("mode %o: the error shows the secret: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link") // as Kubernetes mounts them
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecretFile(link); err != nil {
		t.Errorf("a link to a good file: %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, maxSecretFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe, large, filepath.Join(dir, "missing"), "/dev/null"} {
		if _, err := ReadSecretFile(path); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSecretFile(path); err == nil {
			t.Error("a file of another user was read")
		}
	}
}

func TestParseKeys_ListsAndFiles(t *testing.T) {
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("# of the blog\n"+a+" blog/ news/\r\n\n"+b+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{a + " blog/ news/;" + b, "@" + path, "  " + a + "  blog/\tnews/ \n;" + b + ";"} {
		keys, err := ParsePublishKeys(text)
		if err != nil || len(keys) != 2 || keys[0].Key.Reveal() != a || strings.Join(keys[0].Prefixes, "|") != "blog/|news/" || keys[1].Key.Reveal() != b || len(keys[1].Prefixes) != 0 {
			t.Errorf("%q: %d keys, %v", text, len(keys), err)
		}
	}
	if keys, err := ParseSecrets(a + ";" + b); err != nil || len(keys) != 2 || keys[1].Reveal() != b {
		t.Errorf("%d secrets, %v", len(keys), err)
	}
	for _, text := range []string{"short", a + " spaced", "@" + path, strings.Repeat(a+";", maxKeys+1), "@/nowhere"} {
		if _, err := ParseSecrets(text); err == nil || strings.Contains(err.Error(), a) || strings.Contains(err.Error(), "short") {
			t.Errorf("%.50q: %v", text, err)
		}
	}
	if err := os.WriteFile(path, []byte("@"+path), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseSecrets("@" + path); err == nil {
		t.Error("a file that names itself was followed")
	}
}

func FuzzKeys(f *testing.F) {
	f.Add("HS256:0123456789abcdef;RS256/k:-----BEGIN PUBLIC KEY----- AA -----END PUBLIC KEY-----")
	f.Add(`{"keys":[{"kty":"EC","crv":"P-256","x":"","y":""},{"kty":"OKP","crv":"Ed25519","x":""}]}`)
	f.Add("0123456789abcdef a/ b/\n# none\r\n;;")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "@") {
			return // names a file
		}
		if keys, err := ParsePublishKeys(text); err == nil {
			for _, k := range keys {
				if len(k.Key.Reveal()) < MinSecretBytes {
					t.Errorf("a key of %d bytes was taken", len(k.Key.Reveal()))
				}
			}
		}
		_, _ = ParseSecrets(text)
		_, _ = ParseJWTKeys(text)
		_, _, _ = parseJWKS([]byte(text))
	})
}

func TestOrigins(t *testing.T) {
	const none = "-"
	for _, tt := range []struct {
		list, origin, host string
		admitted           bool
	}{
		{"", none, "live.example.com", true},
		{"", "https://live.example.com", "live.example.com", true},
		{"", "https://live.example.com", "live.example.com:443", true},
		{"", "http://live.example.com", "live.example.com:80", true},
		{"", "https://LIVE.example.com", "live.EXAMPLE.com", true},
		{"", "http://live.example.com:8080", "live.example.com:8080", true},
		{"", "http://live.example.com", "live.example.com:8080", false},
		{"", "https://example.com", "live.example.com", false},
		{"", "https://live.example.com.evil.example", "live.example.com", false},
		{"", "null", "live.example.com", false},
		{"", "", "live.example.com", false},
		{"", "http://", "", false},
		{"https://a.example", "https://a.example", "live.example.com", true},
		{"https://a.example", "https://a.example:443", "live.example.com", true},
		{"https://a.example", "http://a.example", "live.example.com", false},
		{"https://a.example", "https://a.example:8443", "live.example.com", false},
		{"https://a.example", "https://x.a.example", "live.example.com", false},
		{"https://a.example", "https://xa.example", "live.example.com", false},
		{"https://a.example", "https://live.example.com", "live.example.com", false}, // its own is not on the list
		{"https://a.example", "https://a.example/", "live.example.com", false},
		{"https://a.example", "https://user@a.example", "live.example.com", false},
		{"https://a.example", "null", "live.example.com", false},
		{"https://*.a.example", "https://x.a.example", "h", true},
		{"https://*.a.example", "https://x.y.a.example", "h", true},
		{"https://*.a.example", "https://a.example", "h", false},
		{"https://*.a.example", "https://.a.example", "h", false},
		{"https://*.a.example", "https://xa.example", "h", false},
		{"https://*.a.example", "http://x.a.example", "h", false},
		{"https://*.a.example:8443", "https://x.a.example:8443", "h", true},
		{"https://*.a.example:8443", "https://x.a.example", "h", false},
		{"https://a.example, http://localhost:3000", "http://localhost:3000", "h", true},
		{"*", "https://any.example", "h", true},
		{"*", "null", "h", false},
		{"*", "file://", "h", false},
	} {
		list, err := ParseOrigins(tt.list)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "/cable", nil)
		r.Host = tt.host
		if tt.origin != none {
			r.Header.Set("Origin", tt.origin)
		}
		if err := list.check(r); (err == nil) != tt.admitted {
			t.Errorf("list %q, origin %q, host %q: %v", tt.list, tt.origin, tt.host, err)
		}
	}
	r := httptest.NewRequest("GET", "/cable", nil)
	r.Header["Origin"] = []string{"https://a.example", "https://a.example"}
	list, _ := ParseOrigins("*")
	if list.check(r) == nil {
		t.Error("two origins in one request are admitted")
	}
	for _, text := range []string{"a.example", "ftp://a.example", "https://a.*.example", "https://*", "https://a.example/x", "null", "https://**.a.example"} {
		if _, err := ParseOrigins(text); err == nil {
			t.Errorf("%q was taken for an origin", text)
		}
	}
}

func TestProxies_Address(t *testing.T) {
	for _, tt := range []struct{ proxies, peer, forwarded, want string }{
		{"", "198.51.100.7:1", "203.0.113.9", "198.51.100.7"}, // nobody is believed
		{"10.0.0.0/8", "10.0.0.1:1", "203.0.113.9", "203.0.113.9"},
		{"10.0.0.0/8", "198.51.100.7:1", "203.0.113.9", "198.51.100.7"},
		{"10.0.0.0/8", "10.0.0.1:1", "1.1.1.1, 203.0.113.9", "203.0.113.9"}, // the first was made up
		{"10.0.0.0/8", "10.0.0.1:1", "203.0.113.9, 10.2.2.2", "203.0.113.9"},
		{"10.0.0.0/8", "10.0.0.1:1", "10.3.3.3, 10.2.2.2", "10.3.3.3"},
		{"10.0.0.0/8", "10.0.0.1:1", "", "10.0.0.1"},
		{"10.0.0.0/8", "10.0.0.1:1", "unknown", "10.0.0.1"},
		{"10.0.0.0/8", "10.0.0.1:1", "203.0.113.9:4711", "203.0.113.9"},
		{"127.0.0.1, ::1", "[::1]:1", "[2001:db8::1]:99", "2001:db8::1"},
		{"127.0.0.1", "[::ffff:127.0.0.1]:1", "203.0.113.9", "203.0.113.9"},
	} {
		list, err := ParseProxies(tt.proxies)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.peer
		if tt.forwarded != "" {
			r.Header.Set("X-Forwarded-For", tt.forwarded)
		}
		if got, err := list.Address(r); err != nil || got.String() != tt.want {
			t.Errorf("%+v: %v, %v", tt, got, err)
		}
	}
	if _, err := ParseProxies("nginx"); err == nil {
		t.Error("a name was taken for an address")
	}
}
