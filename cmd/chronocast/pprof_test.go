package main

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestServe_Profiles are on their own address, only when asked for, and end
// with the server.
func TestServe_Profiles(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	s := startServe(t, "--database", "sqlite:"+filepath.Join(t.TempDir(), "log.db"), "--pprof", addr)
	get := func(url string) (int, string) {
		w, err := http.Get(url)
		if err != nil {
			return 0, err.Error()
		}
		defer w.Body.Close()
		b, _ := io.ReadAll(w.Body)
		return w.StatusCode, string(b)
	}
	if code, body := get("http://" + addr + "/debug/pprof/goroutine?debug=1"); code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d %.100s", code, body)
	}
	if code, _ := get(s.url + "/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("the service itself answers %d", code)
	}
	if code := s.stop(); code != exitOK {
		t.Errorf("exit code %d: %s", code, s.stderr)
	}
	if code, _ := get("http://" + addr + "/debug/pprof/"); code != 0 {
		t.Error("profiles are still served")
	}
}
