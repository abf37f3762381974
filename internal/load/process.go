package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// usage is what a process has used.
type usage struct {
	cpu  time.Duration
	rss  uint64
	peak uint64
}

// ownServer is a server of ours, running as a child with a database of its own.
type ownServer struct {
	cmd  *exec.Cmd
	url  string
	dir  string
	said *lastWords
	done chan struct{}
	err  error // of Wait; read after done
}

// startServer starts a server on a free port and waits until it listens.
func startServer(ctx context.Context, command, flags []string) (*ownServer, error) {
	dir, err := os.MkdirTemp("", "chronocast-bench-")
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	args := append([]string{}, command[1:]...)
	args = append(args, "--addr", "127.0.0.1:0", "--demo=false", "--log-level", "error")
	if !hasFlag(flags, "database") {
		args = append(args, "--database", "sqlite:"+filepath.Join(dir, "bench.db"))
	}
	cmd := exec.Command(command[0], append(args, flags...)...)
	s := &ownServer{cmd: cmd, dir: dir, said: &lastWords{}, done: make(chan struct{})}
	cmd.Dir = dir
	cmd.Stderr = s.said
	endWithUs(cmd)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("load: start a server: %w", err)
	}
	found := make(chan string, 1)
	go func() {
		defer close(s.done)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadString('\n')
			if _, rest, ok := strings.Cut(line, "listening on http://"); ok {
				host, _, _ := strings.Cut(rest, "/")
				select {
				case found <- "ws://" + host + "/cable":
				default:
				}
			}
			if err != nil {
				break
			}
		}
		s.err = cmd.Wait()
	}()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	select {
	case s.url = <-found:
		return s, nil
	case <-s.done:
		err = fmt.Errorf("load: the server ended at once: %s", s.said.line())
	case <-limit.C:
		err = errors.New("load: the server did not begin to listen within 30s")
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.stop()
	return nil, err
}

func hasFlag(flags []string, name string) bool {
	for _, f := range flags {
		f, _, _ = strings.Cut(strings.TrimLeft(f, "-"), "=")
		if f == name {
			return true
		}
	}
	return false
}

// stop ends the server in good order, or else at once, and removes its
// database.
func (s *ownServer) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	limit := time.NewTimer(15 * time.Second)
	defer limit.Stop()
	select {
	case <-s.done:
	case <-limit.C:
		_ = s.cmd.Process.Kill()
		<-s.done
	}
	_ = os.RemoveAll(s.dir) // a temporary directory
}

// lastWords keeps the last line written to it.
type lastWords struct {
	mu   sync.Mutex
	text string
}

func (w *lastWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text += string(p)
	if len(w.text) > 4096 {
		w.text = w.text[len(w.text)-4096:]
	}
	return len(p), nil
}

func (w *lastWords) line() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(w.text), "\n")
	return oneLine(lines[len(lines)-1], 300)
}

// child is a process of ours that obeys lines on its standard input and answers
// in lines on its standard output. It ends when its input does.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log *lastWords
}

func startChild(command []string, args ...string) (*child, error) {
	if len(command) == 0 {
		return nil, errors.New("load: there is no command to start a worker with")
	}
	cmd := exec.Command(command[0], append(append([]string{}, command[1:]...), args...)...)
	c := &child{cmd: cmd, log: &lastWords{}}
	cmd.Stderr = c.log
	endWithUs(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("load: start a worker: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("load: start a worker: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("load: start a worker: %w", err)
	}
	c.in, c.out = in, bufio.NewReaderSize(out, 64<<10)
	return c, nil
}

// read returns the next line. The error tells the child's last words.
func (c *child) read() (string, error) {
	line, err := c.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("load: a worker ended: %s", c.log.line())
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// stop ends the child.
func (c *child) stop() {
	_ = c.in.Close()
	timer := time.AfterFunc(5*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, c.out)
	_ = c.cmd.Wait()
}
