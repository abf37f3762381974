package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chronocast/chronocast/internal/auth"
)

// TestServe_WithASecret: the whole program, and the whole of its log.
func TestServe_WithASecret(t *testing.T) {
	secret := auth.GenerateSecret().Reveal()
	t.Setenv("CHRONOCAST_SECRET", secret)
	s := startServe(t, "--database", "sqlite:"+filepath.Join(t.TempDir(), "log.db"), "--log-level", "debug")
	say := func(want int, args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(context.WithoutCancel(t.Context()), args, strings.NewReader(""), &stdout, &stderr); code != want {
			t.Fatalf("%v: exit code %d, %s", args, code, &stderr)
		}
		return stdout.String() + stderr.String()
	}
	server := []string{"--server", s.url}
	const payload = `"planted-payload"`
	say(exitOK, append([]string{"publish", "chat/42", payload}, server...)...)
	if got := say(exitOK, append([]string{"history", "chat/42"}, server...)...); !strings.Contains(got, payload) {
		t.Errorf("history: %s", got)
	}
	if got := say(exitOK, append([]string{"tail", "chat/42", "--after", "start", "--count", "1"}, server...)...); !strings.Contains(got, payload) {
		t.Errorf("tail: %s", got)
	}
	token := strings.TrimSpace(say(exitOK, "token", "--sub", "alice", "--stream", "chat/42"))
	signed := strings.TrimSpace(say(exitOK, "sign", "chat/42"))
	if code, body := fetch(t, "GET", s.url+"/signed/"+signed+"/messages", ""); code != 200 || !strings.Contains(body, payload) {
		t.Errorf("by a signed name: %d %s", code, body)
	}
	t.Setenv("CHRONOCAST_SECRET", "")
	if got := say(exitOK, append([]string{"history", "chat/42", "--token", token}, server...)...); !strings.Contains(got, payload) {
		t.Errorf("history with a token: %s", got)
	}
	for _, args := range [][]string{{"publish", "chat/42", "1"}, {"publish", "chat/42", "1", "--token", token}, {"history", "chat/42"}, {"history", "chat/43", "--token", token}, {"tail", "chat/43", "--token", token}, {"tail", "chat/42", "--publish-key", "wrong-key-of-somebody"}} {
		if got := say(exitFailed, append(args, server...)...); !strings.Contains(got, "unauthorized") && !strings.Contains(got, "forbidden") {
			t.Errorf("%v: %s", args[:2], got)
		}
	}
	if code, body := fetch(t, "GET", s.url+"/", ""); code != 404 {
		t.Errorf("the demo page of a server with a secret: %d %s", code, body)
	}
	if code := s.stop(); code != exitOK {
		t.Errorf("serve ended with %d", code)
	}
	log := s.stderr.String()
	for what, text := range map[string]string{
		"the secret": secret, "the publish key": auth.DerivePublishKey(auth.NewSecret(secret)).Reveal(), "a token": token, "a signed name": signed, "a payload": "planted-payload",
	} {
		if strings.Contains(log, text) {
			t.Errorf("B149: the log shows %s:\n%s", what, log)
		}
	}
}
