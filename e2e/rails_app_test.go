package e2e

import (
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

// rails serves the application whose config.ru is given at addr, and waits
// until it answers. Its processes run in dir.
func rails(t testing.TB, addr, dir, rackup string, env ...string) *railsApp {
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
		t: t, addr: addr, dir: dir, out: &tailBuffer{keep: 64 << 10},
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
// that serves, until the test ends or its standard input does.
func (a *railsApp) process(script string, args ...string) (in io.Writer, out io.Reader) {
	a.t.Helper()
	cmd := exec.Command("ruby", append([]string{"-r", "./app.rb", "-e", script}, args...)...)
	a.run(cmd)
	cmd.Stdout = nil
	in, err := cmd.StdinPipe()
	if err != nil {
		a.t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		a.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return in, out
}
