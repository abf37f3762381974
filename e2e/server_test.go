package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// server is one process of the real binary with a database and a port that it
// keeps over restarts.
type server struct {
	t     testing.TB
	addr  string
	dir   string
	db    string // file, or the address of a PostgreSQL database
	extra []string
	http  *http.Client
	out   *tailBuffer

	mu   sync.Mutex // guards what follows
	cmd  *exec.Cmd
	done chan struct{}
}

// freePort finds a port below the range the kernel hands to outgoing
// connections, so that nobody takes it while the server is down.
func freePort(t testing.TB) string {
	t.Helper()
	for range 200 {
		addr := fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(18000))
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		ln.Close()
		return addr
	}
	t.Fatal("no free port")
	return ""
}

// newServer starts a server on a new database and waits until it is ready.
func newServer(t testing.TB, flags ...string) *server {
	t.Helper()
	s := unstartedServer(t, flags...)
	s.start()
	return s
}

func unstartedServer(t testing.TB, flags ...string) *server {
	t.Helper()
	dir := t.TempDir()
	s := &server{
		t: t, addr: freePort(t), dir: dir, db: filepath.Join(dir, "chronocast.db"), extra: flags,
		out: &tailBuffer{keep: 64 << 10},
		http: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
			MaxIdleConnsPerHost: 256, DisableCompression: true, Proxy: nil,
		}},
	}
	t.Cleanup(func() {
		s.http.CloseIdleConnections()
		s.kill()
		if t.Failed() {
			t.Logf("the server's last words:\n%s", s.out.last(30))
		}
	})
	return s
}

// launch starts the process without waiting for it.
func (s *server) launch() {
	s.t.Helper()
	args := []string{"serve", "--addr", s.addr}
	env := append(os.Environ(), "GORACE=halt_on_error=1")
	if strings.HasPrefix(s.db, "postgres:") {
		env = append(env, "CHRONOCAST_DATABASE="+s.db)
		args = append(args, "--life-file", filepath.Join(s.dir, "life.json"))
	} else {
		args = append(args, "--database", "sqlite:"+s.db)
	}
	args = append(args, s.extra...)
	cmd := exec.Command(serverBinary, args...)
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = s.out, s.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("start the server: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cmd.Wait()
	}()
	s.mu.Lock()
	s.cmd, s.done = cmd, done
	s.mu.Unlock()
}

// start launches the process and waits until it answers as ready.
func (s *server) start() {
	s.t.Helper()
	s.launch()
	s.awaitReady(15 * time.Second)
}

func (s *server) awaitReady(within time.Duration) {
	s.t.Helper()
	exited := s.exited()
	eventually(s.t, within, "the server is ready on "+s.addr, func() bool {
		select {
		case <-exited:
			s.t.Fatalf("the server ended at once:\n%s", s.out)
		default:
		}
		return s.ready()
	})
}

func (s *server) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.url("/readyz"), nil)
	resp, err := s.http.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode == http.StatusOK
}

func (s *server) exited() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func (s *server) process() *os.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	return s.cmd.Process
}

// kill ends the process with SIGKILL and waits for its end.
func (s *server) kill() {
	p, done := s.process(), s.exited()
	if p == nil {
		return
	}
	p.Signal(syscall.SIGCONT)
	p.Kill()
	<-done
}

// terminate asks the process to stop and returns how long it took and its exit
// code; it fails the test when that takes longer than within.
func (s *server) terminate(within time.Duration) (time.Duration, int) {
	s.t.Helper()
	p, done := s.process(), s.exited()
	began := time.Now()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatalf("SIGTERM: %v", err)
	}
	select {
	case <-done:
	case <-time.After(within):
		s.t.Fatalf("the server did not stop within %v of SIGTERM:\n%s", within, s.out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(began), s.cmd.ProcessState.ExitCode()
}

// freeze stops the process as a whole and returns when it stands.
func (s *server) freeze() {
	s.t.Helper()
	p := s.process()
	p.Signal(syscall.SIGSTOP)
	eventually(s.t, 5*time.Second, "the process stands", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		_, after, _ := bytes.Cut(b, []byte(") "))
		return err == nil && bytes.HasPrefix(after, []byte("T"))
	})
}

// thaw lets it go on.
func (s *server) thaw() { s.process().Signal(syscall.SIGCONT) }

// rss is the resident memory of the process in bytes.
func (s *server) rss() int64 {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.process().Pid))
	if err != nil {
		s.t.Fatalf("memory of the server: %v", err)
	}
	var size, resident int64
	fmt.Sscan(string(b), &size, &resident)
	return resident * int64(os.Getpagesize())
}

func (s *server) url(path string) string { return "http://" + s.addr + path }
func (s *server) ws() string             { return "ws://" + s.addr + "/cable" }

// metric reads one value of the metrics page.
func (s *server) metric(name string) (float64, bool) {
	resp, err := s.http.Get(s.url("/metrics"))
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	for _, line := range strings.Split(string(body), "\n") {
		if strings.HasPrefix(line, name+" ") {
			fields := strings.Fields(line)
			var v float64
			if _, err := fmt.Sscan(fields[len(fields)-1], &v); err == nil {
				return v, true
			}
		}
	}
	return 0, false
}

// tailBuffer keeps the last bytes written to it.
type tailBuffer struct {
	mu   sync.Mutex
	b    []byte
	keep int
}

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b = append(b.b, p...)
	if over := len(b.b) - b.keep; over > 0 {
		b.b = append([]byte(nil), b.b[over:]...)
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(bytes.TrimSpace(b.b))
}

// last returns the last n lines.
func (b *tailBuffer) last(n int) string {
	return strings.Join(tailOf(strings.Split(b.String(), "\n"), n), "\n")
}
