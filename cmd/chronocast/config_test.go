package main

import (
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/chronocast/chronocast/history"
)

// vars is an environment.
func vars(pairs ...string) func(string) (string, bool) {
	m := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) (string, bool) {
		v, ok := m[name]
		return v, ok
	}
}

func TestConfig_DefaultsAreValid(t *testing.T) {
	t.Parallel()
	c, err := parseConfig(nil, vars())
	if err != nil {
		t.Fatal(err)
	}
	if c.Addr != "127.0.0.1:8080" || c.Database != "sqlite:chronocast.db" || c.Retain != history.DefaultLimits || !c.Demo {
		t.Errorf("%+v", c)
	}
}

func TestConfig_FlagWinsOverEnvironment(t *testing.T) {
	t.Parallel()
	env := vars("CHRONOCAST_ADDR", "localhost:1", "CHRONOCAST_RETAIN_AGE", "2h", "CHRONOCAST_MAX_PAYLOAD", "64KiB", "CHRONOCAST_DEMO", "false",
		"CHRONOCAST_RETAIN", "a/=count:5; b/=age:1h,bytes:1MiB")
	c, err := parseConfig([]string{"--addr", "[::1]:2", "--retain-count=0"}, env)
	if err != nil {
		t.Fatal(err)
	}
	if c.Addr != "[::1]:2" || c.Retain != (history.Limits{Age: 2 * time.Hour, Bytes: 64 << 20}) || c.MaxPayload != 64<<10 || c.Demo {
		t.Errorf("%+v", c)
	}
	if len(c.Rules) != 2 || c.Rules[1].Prefix != "b/" || c.Rules[1].Limits != (history.Limits{Age: time.Hour, Bytes: 1 << 20}) {
		t.Errorf("rules of the environment: %+v", c.Rules)
	}
	c, err = parseConfig([]string{"--retain", "x=unlimited", "--retain", "y=count:1"}, env)
	if err != nil || len(c.Rules) != 2 || c.Rules[0].Prefix != "x" {
		t.Errorf("rules of the flags: %+v, %v", c.Rules, err)
	}
}

// TestConfig_RefusalsNameFieldAndBound.
func TestConfig_RefusalsNameFieldAndBound(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args string
		want []string
	}{
		{"--addr 0.0.0.0:8080", []string{"--addr", "127.0.0.1"}},
		{"--addr :8080", []string{"--addr", "without a secret"}},
		{"--addr example.com:80", []string{"--addr"}},
		{"--addr 127.0.0.1", []string{"--addr", "HOST:PORT"}},
		{"--database mysql://x", []string{"--database", "sqlite:PATH", "postgres://"}},
		{"--database postgres://u:p@h:port/db", []string{"--database", "postgres://USER"}},
		{"--database postgres://h/db?sslmode=maybe", []string{"--database", "parameters"}},
		{"--database postgres://h/db --listen-database sqlite:x", []string{"--listen-database", "postgres://"}},
		{"--listen-database postgres://h/db", []string{"--listen-database", "SQLite"}},
		{"--database-wait -1s", []string{"--database-wait"}},
		{"--database sqlite:", []string{"--database", "sqlite:PATH"}},
		{"--pprof 0.0.0.0:6060", []string{"--pprof", "127.0.0.1"}},
		{"--pprof :6060", []string{"--pprof", "other machines"}},
		{"--pprof 6060", []string{"--pprof", "HOST:PORT"}},
		{"--transport threads", []string{"--transport", "auto or goroutines"}},
		{"--log-level loud", []string{"--log-level", "debug, info, warn or error"}},
		{"--max-payload 10", []string{"--max-payload", "1024"}},
		{"--max-payload lots", []string{"max-payload", "size"}},
		{"--max-broadcasts 0", []string{"--max-broadcasts", "1 to 10000"}},
		{"--max-subscriptions -1", []string{"--max-subscriptions"}},
		{"--queue 1", []string{"--queue", "16384"}},
		{"--key-window 1ms", []string{"--key-window", "1s"}},
		{"--publish-timeout 2h", []string{"--publish-timeout", "1m"}},
		{"--ping-interval 0s", []string{"--ping-interval"}},
		{"--max-identifier 65KiB", []string{"--max-identifier", "--max-frame"}},
		{"--retain x", []string{"retain", "PREFIX="}},
		{"--retain a=count:1 --retain a=count:2", []string{"two", "a"}},
		{"--retain-age -1s", []string{"age", "negative"}},
		{"--retain-count -1", []string{"count", "negative"}},
		{"extra", []string{`"extra"`}},
		{"--nonsense", []string{"nonsense"}},
	}
	for _, tt := range tests {
		_, err := parseConfig(strings.Fields(tt.args), vars())
		if err == nil {
			t.Errorf("%s: accepted", tt.args)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", tt.args, err, want)
			}
		}
	}
	if _, err := parseConfig(nil, vars("CHRONOCAST_KEY_WINDOW", "soon")); err == nil || !strings.Contains(err.Error(), "CHRONOCAST_KEY_WINDOW") {
		t.Errorf("a bad variable: %v, want its name", err)
	}
	if _, err := parseConfig([]string{"-h"}, vars()); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}

func TestConfig_EveryFlagIsInTheHelp(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	printServeHelp(&b)
	c := defaults()
	c.flags().VisitAll(func(f *flag.Flag) {
		if !strings.Contains(b.String(), "--"+f.Name) || f.Usage == "" {
			t.Errorf("--%s is not explained", f.Name)
		}
	})
	if !strings.Contains(b.String(), "(default 1MiB)") {
		t.Errorf("sizes have no default in the help:\n%s", b.String())
	}
}
