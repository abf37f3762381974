package e2e

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// railsApp is a Rails application served by puma.
type railsApp struct {
	t    testing.TB
	addr string
	dir  string
	env  []string
	out  *tailBuffer
}

// rails serves the application whose config.ru is given, and waits until it
// answers. Its processes run in dir.
func rails(t testing.TB, dir, rackup string, env ...string) *railsApp {
	t.Helper()
	rackup, err := filepath.Abs(rackup)
	if err != nil {
		t.Fatal(err)
	}
	turbo, err := filepath.Abs("node_modules/@hotwired/turbo/dist/turbo.es2017-esm.js")
	if err != nil {
		t.Fatal(err)
	}
	a := &railsApp{
		t: t, addr: freePort(t), dir: dir, out: &tailBuffer{keep: 64 << 10},
		env: append(append(os.Environ(), "LOG_LEVEL=warn", "TURBO_JS="+turbo, "RAILS_ENV=development"), env...),
	}
	cmd := exec.Command("puma", "--quiet", "-b", "tcp://"+a.addr, "-t", "1:5", rackup)
	a.run(cmd)
	done := make(chan struct{})
	if err := cmd.Start(); err != nil {
		t.Fatalf("puma does not start, `make test` installs it: %v", err)
	}
	go func() {
		defer close(done)
		cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("the application's last words:\n%s", a.out.last(30))
		}
	})
	eventually(t, 60*time.Second, "the application answers", func() bool {
		select {
		case <-done:
			t.Fatalf("the application ended at once:\n%s", a.out)
		default:
		}
		return a.get("/") == http.StatusOK
	})
	return a
}

func (a *railsApp) run(cmd *exec.Cmd) {
	cmd.Dir, cmd.Env = a.dir, a.env
	cmd.Stdout, cmd.Stderr = a.out, a.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

func (a *railsApp) url(path string) string { return "http://" + a.addr + path }

// get asks for a path and returns the status, 0 when there was no answer.
func (a *railsApp) get(path string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, a.url(path), nil)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// process runs a script in another process of the application, beside the one
// that serves. The returned function waits for its end.
func (a *railsApp) process(script string, args ...string) (wait func()) {
	a.t.Helper()
	cmd := exec.Command("ruby", append([]string{"-r", "./app.rb", "-e", script}, args...)...)
	a.run(cmd)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	a.t.Cleanup(func() { cmd.Process.Kill() })
	return func() {
		a.t.Helper()
		select {
		case err := <-done:
			if err != nil {
				a.t.Fatalf("a process of the application: %v\n%s", err, out.String())
			}
		case <-time.After(5 * time.Minute):
			a.t.Fatal("a process of the application does not end")
		}
	}
}
