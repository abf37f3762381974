package pgnotify_test

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/internal/bus/pgnotify"
	"github.com/chronocast/chronocast/internal/pgtest"
)

// pooler starts pgbouncer in transaction mode in front of the database at
// address, and returns the address through it. It ends with the test.
func pooler(t *testing.T, address string) string {
	t.Helper()
	bin, err := exec.LookPath("pgbouncer")
	if err != nil {
		bin = "/usr/sbin/pgbouncer"
	}
	if _, err := os.Stat(bin); err != nil {
		t.Fatal("pgbouncer is missing: run `make test`, which installs what the tests need (Debian package pgbouncer)")
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	dir, name := t.TempDir(), u.Path[1:]
	conf := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n%s = host=%s port=%s dbname=%s user=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\n"+
		"unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 5\n", name, u.Hostname(), u.Port(), name, u.User.Username(), port)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, conf)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 { // it refuses to run as root
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		for _, d := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("pgbouncer: %s", out.String())
		}
	})
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	deadline := time.Now().Add(10 * time.Second)
	for {
		c, err := net.DialTimeout("tcp", at, time.Second)
		if err == nil {
			c.Close()
			return through(t, address, at)
		}
		if time.Now().After(deadline) {
			t.Fatalf("pgbouncer does not listen: %v", err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// B106: a pooler in transaction mode takes LISTEN and delivers nothing but what
// the same client rings. It is noticed at the first beat, said loudly and once,
// and polling brings the news within its bound. With a direct address again the
// polling ends.
func TestB106_ATransactionPoolerIsNoticedAndPolledAround(t *testing.T) {
	t.Parallel()
	direct := pgtest.Database(t)
	px := newProxy(t, hostOf(t, pooler(t, direct)))
	a, b := join(t, direct, direct, quick), join(t, direct, through(t, direct, px.addr), quick)
	a.listening()
	b.await(10*time.Second, "deaf", func() bool { return b.bus.State() == pgnotify.Deaf })
	var slowest time.Duration
	for range 20 {
		at := time.Now()
		last := a.publish("polled", 1)
		slowest = max(slowest, b.ears.awaitNews(t, 5*time.Second, "polled", last, at))
	}
	if slowest > quick.Poll+500*time.Millisecond {
		t.Errorf("news took %v, polled every %v", slowest, quick.Poll)
	}
	errors := b.logs.FilterLevelExact(zap.ErrorLevel).All()
	if len(errors) != 1 {
		t.Errorf("%d errors logged, want 1 loud line: %v", len(errors), b.logs.All())
	}
	t.Logf("figure: B106: behind pgbouncer in transaction mode news is known after %v at most, polled every %v", slowest.Round(time.Millisecond), quick.Poll)

	px.mu.Lock()
	px.target = hostOf(t, direct)
	px.mu.Unlock()
	b.listening()
	b.ears.mu.Lock()
	sweeps := b.ears.sweeps
	b.ears.mu.Unlock()
	<-time.After(10 * quick.Poll)
	b.ears.mu.Lock()
	defer b.ears.mu.Unlock()
	if more := b.ears.sweeps - sweeps; more > 2 {
		t.Errorf("%d sweeps although notifications arrive again", more)
	}
}
