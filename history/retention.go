package history

import (
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
