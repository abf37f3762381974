//go:build unix

// Package pgtest gives tests real PostgreSQL servers: throwaway clusters made
// with initdb, run as an unprivileged user, and ended with the test. The server
// named by TEST_POSTGRES_URL is used instead where a test does not stop, crash
// or promote it.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Cluster is one PostgreSQL server of a test's own.
type Cluster struct {
	Dir  string // data directory
	Port int
	Env  []string // added to the environment of the programs, from the next start

	bin  string
	cred *syscall.Credential
	logs string
}

// Start makes and starts a cluster that ends with the test. settings are lines
// of postgresql.conf, added to settings that suit tests but keep fsync and
// synchronous_commit as they are by default. All clusters of one process have
// the same system identifier, see Foreign.
func Start(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	return start(t, template, settings...)
}

// Foreign is Start for a cluster with a system identifier of its own.
func Foreign(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	return start(t, (*Cluster).initdb, settings...)
}

func start(t testing.TB, fill func(*Cluster) error, settings ...string) *Cluster {
	t.Helper()
	c, err := create(t.TempDir(), fill, settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop("immediate") })
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// create makes a cluster in dir, whose data directory fill fills.
func create(dir string, fill func(*Cluster) error, settings ...string) (*Cluster, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: filepath.Join(dir, "pg"), bin: bin, logs: filepath.Join(dir, "pg.log")}
	if err := c.unprivileged(dir); err != nil {
		return nil, err
	}
	if err := fill(c); err != nil {
		return nil, err
	}
	return c, c.Configure(append([]string{"max_connections = 150", "log_min_messages = warning"}, settings...)...)
}

func (c *Cluster) initdb() error {
	return c.run("initdb", "-D", c.Dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
}

// template fills c with a copy of a data directory that is made once: initdb
// takes seconds.
func template(c *Cluster) error {
	shared.Lock()
	defer shared.Unlock()
	if shared.template == "" {
		dir, err := os.MkdirTemp("", "chronocast-initdb-")
		if err != nil {
			return err
		}
		made, err := create(dir, (*Cluster).initdb)
		if err != nil {
			os.RemoveAll(dir)
			return err
		}
		shared.template = made.Dir
	}
	return c.Copy(shared.template, c.Dir)
}

// unprivileged chooses whom the server runs as: ourselves, unless we are root.
func (c *Cluster) unprivileged(dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		c.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		// The folders above are the test's own; the server must reach its data.
		for up := dir; strings.HasPrefix(up, os.TempDir()) && up != os.TempDir(); up = filepath.Dir(up) {
			if err := os.Chmod(up, 0o755); err != nil {
				return err
			}
		}
		return os.Chown(dir, uid, gid)
	}
	return errors.New("pgtest: PostgreSQL does not run as root and there is no user postgres or nobody to run it as")
}

// Configure appends settings to postgresql.conf; they hold from the next start.
func (c *Cluster) Configure(settings ...string) error {
	conf, err := os.OpenFile(filepath.Join(c.Dir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer conf.Close()
	_, err = fmt.Fprintln(conf, strings.Join(settings, "\n"))
	return err
}

// Start starts the server, on the port it had before or a free one.
func (c *Cluster) Start() error {
	if c.Port == 0 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		c.Port = l.Addr().(*net.TCPAddr).Port
		l.Close()
	}
	return c.run("pg_ctl", "-D", c.Dir, "-w", "-t", "60", "-l", c.logs, "-o",
		fmt.Sprintf("-p %d -c listen_addresses=127.0.0.1 -c unix_socket_directories=''", c.Port), "start")
}

// Stop stops the server; mode is smart, fast or immediate (a crash).
func (c *Cluster) Stop(mode string) error {
	return c.run("pg_ctl", "-D", c.Dir, "-w", "-t", "60", "-m", mode, "stop")
}

// Promote makes a replica a primary.
func (c *Cluster) Promote() error { return c.run("pg_ctl", "-D", c.Dir, "-w", "promote") }

// Replica makes a streaming replica of c, not yet started.
func (c *Cluster) Replica(t testing.TB) *Cluster {
	t.Helper()
	dir := t.TempDir()
	r := &Cluster{Dir: filepath.Join(dir, "pg"), bin: c.bin, logs: filepath.Join(dir, "pg.log")}
	if err := r.unprivileged(dir); err != nil {
		t.Fatal(err)
	}
	if err := r.run("pg_basebackup", "-d", c.URL("postgres"), "-D", r.Dir, "-R", "-X", "stream", "-c", "fast", "--no-sync"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop("immediate") })
	return r
}

// URL addresses a database of the server.
func (c *Cluster) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", c.Port, database)
}

// Tool runs one of PostgreSQL's programs, such as pg_dump, with arguments.
func (c *Cluster) Tool(name string, args ...string) error { return c.run(name, args...) }

func (c *Cluster) run(name string, args ...string) error {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred}
	cmd.Dir = filepath.Dir(c.Dir)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C.UTF-8"), c.Env...)
	var out bytes.Buffer
	if name != "pg_ctl" { // the server pg_ctl starts would keep the pipe open
		cmd.Stdout, cmd.Stderr = &out, &out
	}
	if err := cmd.Run(); err != nil {
		logs, _ := os.ReadFile(c.logs)
		return fmt.Errorf("pgtest: %s: %w\n%s%s", name, err, out.String(), logs)
	}
	return nil
}

// binaries finds PostgreSQL's programs: on PATH or where Debian puts them, the
// newest version first.
func binaries() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		// What is on PATH may be a link; its companions stand beside the program.
		if p, err = filepath.EvalSymlinks(p); err == nil {
			return filepath.Dir(p), nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", errors.New("pgtest: PostgreSQL's server programs are missing; `make test` installs them (Debian package postgresql)")
	}
	sort.Slice(found, func(i, j int) bool { return version(found[i]) > version(found[j]) })
	return filepath.Dir(found[0]), nil
}

func version(path string) int {
	n, _ := strconv.Atoi(strings.Split(path, "/")[4])
	return n
}

var shared struct {
	sync.Mutex
	cluster  *Cluster
	dir      string
	template string // a data directory to copy
}

// Main runs the tests of a package and ends the shared server afterwards. Call
// it from TestMain and exit with what it returns.
func Main(run func() int) int {
	code := run()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster != nil {
		_ = shared.cluster.Stop("immediate")
		_ = os.RemoveAll(shared.dir)
		shared.cluster = nil
	}
	if shared.template != "" {
		_ = os.RemoveAll(filepath.Dir(shared.template))
		shared.template = ""
	}
	return code
}

// Database makes an empty database on the shared server (TEST_POSTGRES_URL, or
// a cluster started once for the package) and returns its address. It is
// dropped when the test ends.
func Database(t testing.TB) string {
	t.Helper()
	admin := os.Getenv("TEST_POSTGRES_URL")
	if admin == "" {
		admin = sharedCluster(t).URL("postgres")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	name := "chronocast_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	exec1(t, ctx, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		exec1(t, ctx, admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	})
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatalf("TEST_POSTGRES_URL: %v", err)
	}
	u.Path = "/" + name
	return u.String()
}

func sharedCluster(t testing.TB) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		dir, err := os.MkdirTemp("", "chronocast-pg-")
		if err != nil {
			t.Fatal(err)
		}
		c, err := create(dir, (*Cluster).initdb)
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		shared.cluster, shared.dir = c, dir
	}
	return shared.cluster
}

func exec1(t testing.TB, ctx context.Context, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// Copy copies a data directory of a server that is stopped.
func (c *Cluster) Copy(from, to string) error {
	out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgtest: %w: %s", err, out)
	}
	return nil
}
