package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

const testSecret = "planted-secret-of-the-application"

func TestConfig_ASecretOpensTheAddressAndClosesTheRest(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(testSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, given := range []struct {
		args []string
		env  []string
	}{
		{[]string{"--secret", testSecret}, nil},
		{[]string{"--secret-file", path}, nil},
		{nil, []string{"CHRONOCAST_SECRET", testSecret}},
		{nil, []string{"CHRONOCAST_SECRET_FILE", path}},
		{[]string{"--secret", "@" + path}, []string{"CHRONOCAST_SECRET", "another secret entirely"}},
	} {
		c, err := parseConfig(append(given.args, "--addr", "0.0.0.0:8080"), vars(given.env...))
		if err != nil {
			t.Errorf("%v: %v", given, err)
			continue
		}
		authorizer, err := c.Security.authorizer(zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		policy, ok := authorizer.(*auth.Policy)
		if !ok {
			t.Fatalf("%v: the server is open", given)
		}
		r := httptest.NewRequest("POST", "/streams/a/messages", nil)
		// hex of HMAC-SHA256(secret, "broadcast-cable"), as AnyCable derives it
		r.Header.Set("Authorization", "Bearer "+auth.DerivePublishKey(auth.NewSecret(testSecret)).Reveal())
		who, err := policy.Identify(r)
		if err != nil || policy.Publish(who, "a") != nil {
			t.Errorf("%v: the derived key does not publish: %v", given, err)
		}
		if text := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(text, testSecret) {
			t.Errorf("the configuration shows the secret: %s", text)
		}
	}
	c, err := parseConfig([]string{"--secret", testSecret, "--publish-key", "a-publish-key-of-its-own news/", "--publish-key", "another-publish-key-here"}, vars("CHRONOCAST_PUBLISH_KEY", "one-of-the-environment"))
	if err != nil {
		t.Fatal(err)
	}
	policy, err := c.Security.policy()
	if err != nil || len(policy.PublishKeys) != 2 || policy.PublishKeys[0].Prefixes[0] != "news/" || len(policy.SignKeys) != 1 {
		t.Errorf("%d publish keys, %d signing keys, %v: flags win over the environment and the secret", len(policy.PublishKeys), len(policy.SignKeys), err)
	}
	for text, want := range map[string]string{"true": "[]", "news/,status/": "[news/ status/]", "false": "[]"} {
		c, err := parseConfig([]string{"--public-streams=" + text}, vars())
		if err != nil || fmt.Sprint([]string(c.Security.PublicStreams)) != want || text == "true" && len(c.Security.PublicStreams) != 1 {
			t.Errorf("--public-streams=%s: %q, %v", text, c.Security.PublicStreams, err)
		}
	}
}

// TestConfig_RefusalsNeverShowASecret: nor does the flag package, which repeats
// what it refuses.
func TestConfig_RefusalsNeverShowASecret(t *testing.T) {
	t.Parallel()
	open := filepath.Join(t.TempDir(), "open")
	if err := os.WriteFile(open, []byte(testSecret), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--secret", "planted"}, "--secret"},
		{[]string{"--secret", "planted secret with spaces in it"}, "--secret"},
		{[]string{"--secret-file", open}, "can be read"},
		{[]string{"--secret-file", "/nowhere"}, "/nowhere"},
		{[]string{"--publish-key", "planted"}, "--publish-key"},
		{[]string{"--turbo-key", testSecret, "--secret", testSecret}, "Turbo::StreamsChannel"},
		{[]string{"--secret-key-base", "planted"}, "--secret-key-base"},
		{[]string{"--jwt-key", "planted"}, "--jwt-key"},
		{[]string{"--jwt-key", "HS256:planted"}, "--jwt-key"},
		{[]string{"--jwks", "/nowhere"}, "/nowhere"},
		{[]string{"--authorize-url", "ftp://user:planted@host"}, "--authorize-url"},
		{[]string{"--require-token", "--sign-key", testSecret}, "tokens are required"},
		{[]string{"--secret", testSecret, "--origins", "example.com"}, "--origins"},
		{[]string{"--secret", testSecret, "--proxies", "nginx"}, "--proxies"},
		{[]string{"--secret", testSecret, "--max-command-rate", "0"}, "--max-command-rate"},
		{[]string{"--secret", testSecret, "--body-budget", "1"}, "--body-budget"},
		{[]string{"--secret", testSecret, "--addr", "example"}, "HOST:PORT"},
		{[]string{"--secret", testSecret, "--authorize-timeout", "1h"}, "--authorize-timeout"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), append([]string{"serve"}, tt.args...), strings.NewReader(""), &stdout, &stderr)
		if text := stderr.String(); code != exitUsage || !strings.Contains(text, tt.want) || strings.Contains(text, "planted") {
			t.Errorf("%v: exit code %d, %s", tt.args[0], code, text)
		}
	}
}

// TestSign_IsVerified by a server with the same secret.
func TestSign_IsVerified(t *testing.T) {
	t.Setenv("CHRONOCAST_SECRET", testSecret)
	t.Setenv("CHRONOCAST_SECRET_KEY_BASE", strings.Repeat("0", 128))
	c, err := parseConfig(nil, environment)
	if err != nil {
		t.Fatal(err)
	}
	authorizer, err := c.Security.authorizer(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	say := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != exitOK {
			t.Fatalf("%v: exit code %d, %s", args, code, &stderr)
		}
		return strings.TrimSuffix(stdout.String(), "\n")
	}
	identify := func(token string) *auth.Identity {
		t.Helper()
		r := httptest.NewRequest("GET", "/", nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		who, err := authorizer.Identify(r)
		if err != nil {
			t.Fatal(err)
		}
		return who
	}
	subscribe := func(who *auth.Identity, id protocol.Identifier) string {
		access, err := authorizer.Subscribe(t.Context(), who, "", id)
		if err != nil {
			return err.Error()
		}
		return strings.Join(access.Streams, " ")
	}
	if got := say("sign", "messages", "--turbo"); got != "Im1lc3NhZ2VzIg==--fb308ec9d90c369e4e349458a6a024901bfb977f5639c6f31986c1cf353bba01" {
		t.Errorf("signed for Turbo: %s", got)
	}
	bound := say("sign", "chat/42", "--for", "alice", "--expires", "1h")
	alice := identify(say("token", "--sub", "alice"))
	if got := subscribe(alice, protocol.Identifier{Channel: auth.ChannelPubSub, SignedStreamName: bound}); got != "chat/42" {
		t.Errorf("alice: %s", got)
	}
	if got := subscribe(identify(""), protocol.Identifier{Channel: auth.ChannelPubSub, SignedStreamName: bound}); !strings.Contains(got, "unauthorized") {
		t.Errorf("nobody: %s", got)
	}
	worker := identify(say("token", "--sub", "worker", "--stream", "a", "--prefix", "jobs/", "--can", "read,publish", "--expires", "5m"))
	if authorizer.Publish(worker, "jobs/1") != nil || authorizer.Publish(worker, "b") == nil || authorizer.Read(t.Context(), worker, "a") != nil {
		t.Errorf("the token of the command grants something else: %+v", worker)
	}
	if left := time.Until(worker.Expires); left > 5*time.Minute || left < 4*time.Minute {
		t.Errorf("it is good for %v", left)
	}
	if got, want := say("keys", "derive"), auth.DerivePublishKey(auth.NewSecret(testSecret)).Reveal(); got != want {
		t.Errorf("derived %s", got)
	}
	if a, b := say("keys", "new"), say("keys", "new"); a == b || len(a) != 64 {
		t.Errorf("new keys %s and %s", a, b)
	}
	for _, args := range [][]string{{"sign"}, {"token"}, {"keys"}, {"keys", "old"}, {"token", "--sub", "a", "--can", "everything"}, {"sign", "a", "--expires", "-1s"}, {"token", "--sub", "a", "--expires", "0s"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != exitUsage || stdout.Len() > 0 {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
	t.Setenv("CHRONOCAST_SECRET", "")
	for _, args := range [][]string{{"sign", "a"}, {"token", "--sub", "a"}, {"keys", "derive"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != exitFailed || !strings.Contains(stderr.String(), "CHRONOCAST_SECRET") {
			t.Errorf("%v without a secret: exit code %d, %s", args, code, &stderr)
		}
	}
}

func TestCredentials(t *testing.T) {
	const key = "the-publish-key-of-somebody"
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("the-key-from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		env  map[string]string
		want string // or a part of the error
	}{
		{nil, nil, ""},
		{[]string{"--publish-key", key}, nil, "Bearer " + key},
		{[]string{"--publish-key", "@" + path}, nil, "Bearer the-key-from-a-file"},
		{nil, map[string]string{"CHRONOCAST_PUBLISH_KEY": key + " news/;another-key-of-sixteen"}, "Bearer " + key},
		{nil, map[string]string{"CHRONOCAST_PUBLISH_KEY": key, "CHRONOCAST_TOKEN": "t"}, "Bearer " + key},
		{[]string{"--token", "t"}, map[string]string{"CHRONOCAST_PUBLISH_KEY": key}, "Bearer t"},
		{[]string{"--token", "t"}, map[string]string{"CHRONOCAST_SECRET": testSecret}, "Bearer t"},
		{[]string{"--token", "@" + path}, nil, "Bearer the-key-from-a-file"},
		{nil, map[string]string{"CHRONOCAST_SECRET": testSecret}, "Bearer " + auth.DerivePublishKey(auth.NewSecret(testSecret)).Reveal()},
		{[]string{"--publish-key", key, "--token", "t"}, nil, "exclude"},
		{[]string{"--token", "planted\nX: y"}, nil, "--token has characters"},
		{[]string{"--publish-key", "plantedplantedplantedß"}, nil, "--publish-key has characters"},
		{[]string{"--publish-key", "planted"}, nil, "--publish-key"},
		{[]string{"--publish-key", "@/nowhere"}, nil, "/nowhere"},
	} {
		for _, name := range []string{"CHRONOCAST_PUBLISH_KEY", "CHRONOCAST_TOKEN", "CHRONOCAST_SECRET", "CHRONOCAST_SECRET_FILE"} {
			t.Setenv(name, tt.env[name])
		}
		f := newClientFlags("history", "", "", &bytes.Buffer{})
		f.addServer(0, "")
		if _, code := f.parse(append(tt.args, "a"), &bytes.Buffer{}, 1, 1); code >= 0 {
			t.Fatalf("%v: %d", tt.args, code)
		}
		a, err := f.api()
		switch {
		case err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "planted")):
			t.Errorf("%v: %v", tt.args, err)
		case err == nil && a.authorization != tt.want:
			t.Errorf("%v with %v: %q, want %q", tt.args, tt.env, a.authorization, tt.want)
		}
	}
}
