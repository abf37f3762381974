package history

import (
	"context"
	"errors"

	"github.com/chronocast/chronocast/protocol"
)

// Log reads what was committed. A store implements it. All methods may be
// called concurrently, never wait for a writer, and honour ctx.
type Log interface {
	// Range reads messages of one stream with offsets greater than after,
	// ascending and without holes, at most limit of them and at most maxBytes
	// of payload (but at least one message when there is one). The Span and
	// the messages are of one snapshot. When messages after the given offset
	// were trimmed, Range returns no messages and the Span tells: callers use
	// Span.Check. A stream that was never used has a Span all the same.
	Range(ctx context.Context, stream string, after uint64, limit, maxBytes int) (Page, error)
	// Since returns the highest offset such that every message committed at or
	// after the time at (microseconds since 1970) has a greater offset. When
	// such messages may have been trimmed the offset lies below Span.First-1,
	// so that Span.Check calls it trimmed.
	Since(ctx context.Context, stream string, at int64) (protocol.Span, uint64, error)
	// Heads returns the Span of each stream, in the order asked.
	Heads(ctx context.Context, streams []string) ([]protocol.Span, error)
	// Trim removes a small step of what retention no longer keeps, in one
	// short transaction, and says whether there is more to do now.
	Trim(ctx context.Context, r Retention) (more bool, err error)
}

// Page is a run of consecutive messages and the span they were read from.
type Page struct {
	protocol.Span
	Messages []protocol.Message
}

// ErrUnavailable: the log does not answer in time. Test with errors.Is.
var ErrUnavailable = errors.New("history: the log does not answer in time")
