package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// ruby runs a script to its end, with the server under test and the gem at
// hand, and returns what it printed.
func ruby(t testing.TB, within time.Duration, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("ruby", args...)
	cmd.Dir = railsGem(t)
	binary, err := filepath.Abs(serverBinary)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(append(os.Environ(), "CHRONOCAST_BINARY="+binary), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("ruby does not start, `make test` installs it: %v", err)
	}
	timer := time.AfterFunc(within, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("ruby %s: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return out.String()
}

func railsGem(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../integrations/rails")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The gem's own tests, of the adapter, the helpers and the broadcasts inside
// transactions, with the real server, Debian's Rails and a real PostgreSQL.
func TestRails_TheGemsOwnTests(t *testing.T) {
	t.Parallel()
	out := ruby(t, 120*time.Second, []string{"CHRONOCAST_TEST_DATABASE=" + pgtest.Database(t)}, "test/run.rb")
	if !strings.Contains(out, " 0 failures, 0 errors, 0 skips") {
		t.Errorf("the gem's tests:\n%s", out)
	}
	for _, line := range strings.Split(out, "\n") {
		if _, said, ok := strings.Cut(line, "rails adapter: "); ok {
			figure(t, "rails adapter: %s", said)
		}
	}
}
