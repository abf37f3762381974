package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

// config is everything that can be set about the server. Each field has a flag
// and an environment variable of the same name; the flag wins.
type config struct {
	Addr           string
	Database       string
	ListenDatabase string
	DatabaseWait   time.Duration
	LifeFile       string
	LogLevel       string
	Demo           bool
	Pprof          string
	Transport      string
	NewLife        bool
	Security       security

	Retain    history.Limits
	Rules     []history.Rule
	KeyWindow time.Duration

	MaxPayload       size
	MaxBroadcast     size
	MaxBroadcasts    int
	MaxFrame         size
	MaxIdentifier    size
	MaxSubscriptions int
	MaxPage          int
	MaxPageBytes     size
	Queue            size

	CommandTimeout  time.Duration
	PublishTimeout  time.Duration
	PingInterval    time.Duration
	WriteStall      time.Duration
	ShutdownTimeout time.Duration
}

// defaults returns the configuration of a server that is told nothing.
func defaults() config {
	return config{
		Addr:         "127.0.0.1:8080",
		Database:     "sqlite:chronocast.db",
		DatabaseWait: 30 * time.Second,
		LogLevel:     "info",
		Demo:         true,
		Security:     defaultSecurity(),
		Transport:    "auto",

		Retain:    history.DefaultLimits,
		KeyWindow: time.Hour,

		MaxPayload:       1 << 20,
		MaxBroadcast:     8 << 20,
		MaxBroadcasts:    1000,
		MaxFrame:         64 << 10,
		MaxIdentifier:    4 << 10,
		MaxSubscriptions: 1000,
		MaxPage:          10_000,
		MaxPageBytes:     4 << 20,
		Queue:            1 << 20,

		CommandTimeout:  5 * time.Second,
		PublishTimeout:  5 * time.Second,
		PingInterval:    3 * time.Second,
		WriteStall:      10 * time.Second,
		ShutdownTimeout: 10 * time.Second,
	}
}

// flags returns the flag set that fills c.
func (c *config) flags() *flag.FlagSet {
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.Addr, "addr", c.Addr, "where to listen, `HOST:PORT`; this machine only unless there is a secret, port 0 picks a free one")
	f.StringVar(&c.Database, "database", c.Database, "where the log is: sqlite:PATH, made when it is missing, or `postgres://USER@HOST/NAME`; put an address with a password into the environment variable, where ps does not show it")
	f.StringVar(&c.ListenDatabase, "listen-database", c.ListenDatabase, "where to listen for other nodes, `postgres://…`: the same database without a pooler in between")
	f.DurationVar(&c.DatabaseWait, "database-wait", c.DatabaseWait, "how long to wait at the start for a PostgreSQL that does not answer yet")
	f.StringVar(&c.LifeFile, "life-file", c.LifeFile, "where this node remembers the PostgreSQL database last seen, a small file at `PATH` of its own for each node; normally in $STATE_DIRECTORY or ~/.local/state/chronocast")
	f.DurationVar(&c.Retain.Age, "retain-age", c.Retain.Age, "how long a message is kept; 0 is no limit")
	f.IntVar(&c.Retain.Count, "retain-count", c.Retain.Count, "how many messages of a stream are kept; 0 is no limit")
	f.Var((*size)(&c.Retain.Bytes), "retain-bytes", "how much of a stream is kept, a `size` such as 64MiB; 0 is no limit")
	f.Var((*rules)(&c.Rules), "retain", "limits of the streams whose name begins so, `PREFIX=LIMITS` such as llm/=age:1h,count:500,bytes:1MiB; may be repeated, and in the environment variable separated by semicolons")
	f.DurationVar(&c.KeyWindow, "key-window", c.KeyWindow, "how long an idempotency key is remembered from its first use")
	f.Var(&c.MaxPayload, "max-payload", "how large one broadcast may be, a `size` such as 1MiB")
	f.Var(&c.MaxBroadcast, "max-broadcast", "how large a body of /broadcast may be, a `size`")
	f.IntVar(&c.MaxBroadcasts, "max-broadcasts", c.MaxBroadcasts, "how many broadcasts a body of /broadcast may hold")
	f.Var(&c.MaxFrame, "max-frame", "how large a frame from a client may be, a `size`")
	f.Var(&c.MaxIdentifier, "max-identifier", "how large a subscription identifier may be, a `size`")
	f.IntVar(&c.MaxSubscriptions, "max-subscriptions", c.MaxSubscriptions, "how many subscriptions one connection may have")
	f.IntVar(&c.MaxPage, "max-page", c.MaxPage, "how many messages a page of history may hold")
	f.Var(&c.MaxPageBytes, "max-page-bytes", "how large the messages of a page of history may be together, a `size`")
	f.Var(&c.Queue, "queue", "how much may wait for one connection, a `size`")
	f.DurationVar(&c.CommandTimeout, "command-timeout", c.CommandTimeout, "how long a client's command may wait for the database")
	f.DurationVar(&c.PublishTimeout, "publish-timeout", c.PublishTimeout, "how long a broadcast may wait for its commit")
	f.DurationVar(&c.PingInterval, "ping-interval", c.PingInterval, "how long between two pings; Action Cable clients give up after 6s without one")
	f.DurationVar(&c.WriteStall, "write-stall", c.WriteStall, "how long a client may take nothing before its connection is cut")
	f.DurationVar(&c.ShutdownTimeout, "shutdown-timeout", c.ShutdownTimeout, "how long an orderly end may take")
	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "what is logged, a `LEVEL`: debug, info, warn or error")
	f.BoolVar(&c.Demo, "demo", c.Demo, "serve the demo page at /, unless there is a secret; --demo=false serves none")
	f.StringVar(&c.Pprof, "pprof", c.Pprof, "where to serve profiles of the server itself, `HOST:PORT`; this machine only, off unless set")
	f.StringVar(&c.Transport, "transport", c.Transport, "how connections are served, `HOW`: auto is one loop for all where the system has epoll, goroutines is two for each")
	f.BoolVar(&c.NewLife, "new-life", c.NewLife, "begin a new epoch, after the machine was set back to a snapshot")
	c.Security.flags(f)
	return f
}

// variable is the environment variable that belongs to a flag.
func variable(name string) string {
	return "CHRONOCAST_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// parseConfig reads flags and environment. The error is flag.ErrHelp when help
// was asked for.
func parseConfig(args []string, environ func(string) (string, bool)) (config, error) {
	c := defaults()
	f := c.flags()
	var err error
	f.VisitAll(func(fl *flag.Flag) {
		if value, ok := environ(variable(fl.Name)); ok && err == nil {
			if e := f.Set(fl.Name, value); e != nil {
				err = fmt.Errorf("%s=%q: %w", variable(fl.Name), value, e)
			}
			if secret, ok := fl.Value.(*secretFlag); ok {
				secret.environ = true
			}
		}
	})
	if err != nil {
		return config{}, err
	}
	c.Rules = nil // those of the environment count only when no flag names any
	if err := f.Parse(args); err != nil {
		return config{}, err
	}
	if value, ok := environ(variable("retain")); ok && len(c.Rules) == 0 {
		if err := f.Set("retain", value); err != nil {
			return config{}, err
		}
	}
	if f.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return c, c.Validate()
}

// Validate returns an error that names the field and its bound.
func (c config) Validate() error {
	if err := c.Security.check(); err != nil {
		return err
	}
	if !c.Security.secured() {
		if err := auth.Loopback(c.Addr); err != nil {
			return fmt.Errorf("--addr %w", err)
		}
	} else if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return fmt.Errorf("--addr %q is not HOST:PORT", c.Addr)
	}
	if err := checkPprof(c.Pprof); err != nil {
		return err
	}
	if c.Transport != "auto" && c.Transport != "goroutines" {
		return fmt.Errorf("--transport %q must be auto or goroutines", c.Transport)
	}
	if err := c.checkDatabase(); err != nil {
		return err
	}
	if _, err := c.level(); err != nil {
		return err
	}
	retention := c.retention()
	if err := retention.Validate(); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "history: "))
	}
	for _, n := range []struct {
		flag          string
		value, lo, hi int64
	}{
		{"max-payload", int64(c.MaxPayload), 1 << 10, 64 << 20},
		{"max-broadcast", int64(c.MaxBroadcast), 1 << 10, 256 << 20},
		{"max-broadcasts", int64(c.MaxBroadcasts), 1, 10_000},
		{"max-frame", int64(c.MaxFrame), 1 << 10, 16 << 20},
		{"max-identifier", int64(c.MaxIdentifier), 64, 1 << 20},
		{"max-subscriptions", int64(c.MaxSubscriptions), 1, 100_000},
		{"max-page", int64(c.MaxPage), 1, 100_000},
		{"max-page-bytes", int64(c.MaxPageBytes), 1 << 10, 256 << 20},
		{"queue", int64(c.Queue), 16 << 10, 1 << 30},
	} {
		if n.value < n.lo || n.value > n.hi {
			return fmt.Errorf("--%s %d must be from %d to %d", n.flag, n.value, n.lo, n.hi)
		}
	}
	for _, d := range []struct {
		flag          string
		value, lo, hi time.Duration
	}{
		{"key-window", c.KeyWindow, time.Second, 30 * 24 * time.Hour},
		{"database-wait", c.DatabaseWait, 0, 24 * time.Hour},
		{"command-timeout", c.CommandTimeout, 10 * time.Millisecond, time.Minute},
		{"publish-timeout", c.PublishTimeout, 10 * time.Millisecond, time.Minute},
		{"ping-interval", c.PingInterval, 100 * time.Millisecond, time.Minute},
		{"write-stall", c.WriteStall, 100 * time.Millisecond, 10 * time.Minute},
		{"shutdown-timeout", c.ShutdownTimeout, 100 * time.Millisecond, 10 * time.Minute},
	} {
		if d.value < d.lo || d.value > d.hi {
			return fmt.Errorf("--%s %v must be from %v to %v", d.flag, d.value, d.lo, d.hi)
		}
	}
	if c.MaxIdentifier > c.MaxFrame {
		return fmt.Errorf("--max-identifier %d must not be greater than --max-frame %d", c.MaxIdentifier, c.MaxFrame)
	}
	return nil
}

func (c config) retention() history.Retention {
	return history.Retention{Default: c.Retain, Rules: c.Rules}
}

// path returns the file of a SQLite database.
func (c config) path() (string, error) {
	path, ok := strings.CutPrefix(c.Database, "sqlite:")
	if !ok || path == "" {
		// What was given is not shown: it may be a mistyped address with a password.
		return "", errors.New("--database must be sqlite:PATH or postgres://USER@HOST/NAME")
	}
	return path, nil
}

func (c config) level() (zapcore.Level, error) {
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
		return zapcore.ParseLevel(c.LogLevel)
	}
	return 0, fmt.Errorf("--log-level %q must be debug, info, warn or error", c.LogLevel)
}

// size is a number of bytes that may be written with a unit.
type size int64

func (s *size) String() string {
	if s == nil {
		return ""
	}
	n := int64(*s)
	for _, unit := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= unit.bytes && n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// Set reads a size; 0 is allowed.
func (s *size) Set(text string) error {
	if text == "0" {
		*s = 0
		return nil
	}
	n, err := history.ParseBytes(text)
	*s = size(n)
	return err
}

// rules are retention rules, each Set adding to them.
type rules []history.Rule

func (r *rules) String() string { return "" }

// Set reads one rule, or several separated by semicolons.
func (r *rules) Set(text string) error {
	for part := range strings.SplitSeq(text, ";") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		rule, err := history.ParseRule(strings.TrimSpace(part))
		if err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), "history: "))
		}
		if len(rule.Prefix) > protocol.MaxStreamBytes {
			return fmt.Errorf("the prefix of a retention rule has at most %d bytes", protocol.MaxStreamBytes)
		}
		*r = append(*r, rule)
	}
	return nil
}

const serveHelp = `Usage: chronocast serve [flags]

Runs the server. Without a secret it serves this machine only: everybody who
reaches it may publish and read. With one it serves any address, and whoever
publishes or reads has to show that they may; docs/security.md tells how. Each flag can be given as an environment variable too, in
capitals: --retain-age 1h is CHRONOCAST_RETAIN_AGE=1h. The flag wins.

SIGINT or SIGTERM ends it in good order, a second one at once.
`

// printServeHelp writes what help says about serve.
func printServeHelp(w io.Writer) {
	c := defaults()
	fmt.Fprintf(w, "%s\nFlags:\n", serveHelp)
	c.flags().VisitAll(func(fl *flag.Flag) { printFlag(w, fl) })
	fmt.Fprint(w, "\nExamples:\n"+
		"  chronocast serve\n"+
		"  chronocast serve --addr 127.0.0.1:0 --database sqlite:/var/lib/chronocast/log.db\n"+
		"  CHRONOCAST_DATABASE=postgres://chronocast:secret@db/app chronocast serve\n"+
		"  CHRONOCAST_SECRET=… chronocast serve --addr :8080 --origins https://example.com\n"+
		"  chronocast serve --retain-age 1h --retain 'audit/=unlimited' --retain 'llm/=age:10m,count:5000'\n"+
		"\nExit codes:\n  0  ended in good order\n  1  failed; the reason is on standard error\n  2  called wrongly\n")
}

// environment looks a variable up; one that is set to nothing counts as unset.
func environment(name string) (string, bool) {
	value, ok := os.LookupEnv(name)
	return value, ok && value != ""
}
