package history

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Limits says how much of a stream is kept. A zero field is no limit. A
// message goes as soon as one limit no longer keeps it; the newest message of
// a stream counts like any other, and the head stays where it is all the same.
type Limits struct {
	Age   time.Duration // since the commit
	Count int           // messages per stream
	Bytes int64         // payload bytes per stream
}

// Rule gives the streams whose name begins with Prefix limits of their own.
type Rule struct {
	Prefix string
	Limits
}

// Retention says what is kept of which stream.
type Retention struct {
	Default Limits
	Rules   []Rule // the longest matching prefix wins
}

// For returns the limits of one stream.
func (r Retention) For(stream string) Limits {
	limits, longest := r.Default, -1
	for _, rule := range r.Rules {
		if len(rule.Prefix) > longest && strings.HasPrefix(stream, rule.Prefix) {
			limits, longest = rule.Limits, len(rule.Prefix)
		}
	}
	return limits
}

// DefaultLimits are the limits of a server that was told nothing else.
var DefaultLimits = Limits{Age: 24 * time.Hour, Count: 10_000, Bytes: 64 << 20}

// Validate returns an error that names the limit which cannot be.
func (l Limits) Validate() error {
	switch {
	case l.Age < 0:
		return fmt.Errorf("history: retention age %v must not be negative", l.Age)
	case l.Age > 0 && l.Age < time.Millisecond:
		return fmt.Errorf("history: retention age %v must be at least 1ms", l.Age)
	case l.Count < 0:
		return fmt.Errorf("history: retention count %d must not be negative", l.Count)
	case l.Bytes < 0:
		return fmt.Errorf("history: retention bytes %d must not be negative", l.Bytes)
	}
	return nil
}

// Validate returns an error that names the rule and the limit which cannot be.
func (r Retention) Validate() error {
	if err := r.Default.Validate(); err != nil {
		return err
	}
	seen := make(map[string]bool, len(r.Rules))
	for _, rule := range r.Rules {
		if err := rule.Validate(); err != nil {
			return fmt.Errorf("%w (streams %q…)", err, rule.Prefix)
		}
		if seen[rule.Prefix] {
			return fmt.Errorf("history: two retention rules for streams %q…", rule.Prefix)
		}
		seen[rule.Prefix] = true
	}
	return nil
}

// ParseRule reads PREFIX=LIMITS, with the limits as [ParseLimits] reads them.
// The prefix may itself contain an equals sign, and may be empty.
func ParseRule(s string) (Rule, error) {
	i := strings.LastIndexByte(s, '=')
	if i < 0 {
		return Rule{}, fmt.Errorf("history: retention rule %q should be PREFIX=age:1h,count:500,bytes:1MiB", s)
	}
	limits, err := ParseLimits(s[i+1:])
	if err != nil {
		return Rule{}, fmt.Errorf("%w (in rule %q)", err, s)
	}
	return Rule{Prefix: s[:i], Limits: limits}, nil
}

// ParseLimits reads limits such as "age:1h,count:500,bytes:1MiB", in any order.
// A limit that is left out does not apply; "unlimited" alone is no limit at
// all.
func ParseLimits(s string) (Limits, error) {
	var l Limits
	if s == "unlimited" {
		return l, nil
	}
	seen := make(map[string]bool)
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), ":")
		if seen[name] {
			return Limits{}, fmt.Errorf("history: retention limit %q is given twice", name)
		}
		seen[name] = true
		var err error
		switch name {
		case "age":
			l.Age, err = time.ParseDuration(value)
			if err == nil && l.Age <= 0 {
				err = errNotPositive
			}
		case "count":
			l.Count, err = strconv.Atoi(value)
			if err == nil && l.Count <= 0 {
				err = errNotPositive
			}
		case "bytes":
			l.Bytes, err = ParseBytes(value)
		default:
			return Limits{}, fmt.Errorf("history: retention limit %q should be age:DURATION, count:NUMBER, bytes:SIZE or unlimited", part)
		}
		if err != nil {
			return Limits{}, fmt.Errorf("history: retention limit %q: %w", part, err)
		}
	}
	return l, l.Validate()
}

var errNotPositive = errors.New("must be greater than zero; leave it out for no limit")

var units = []struct {
	name string
	size int64
}{ // longer names first where one ends like another
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// ParseBytes reads a positive size: a whole number, alone or with a unit such
// as KiB, MiB, kB or MB.
func ParseBytes(s string) (int64, error) {
	digits, size := s, int64(1)
	for _, u := range units {
		if d, ok := strings.CutSuffix(s, u.name); ok {
			digits, size = d, u.size
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a size such as 512KiB or 64MiB", s)
	case n <= 0:
		return 0, errNotPositive
	case n > math.MaxInt64/size:
		return 0, fmt.Errorf("%q is too large", s)
	}
	return n * size, nil
}
