package sequencer

import (
	"context"
	"errors"

	"github.com/chronocast/chronocast/protocol"
)

// Broadcast is one payload for one stream, before it has a place.
type Broadcast struct {
	Stream string // checked by protocol.CheckStream
	Data   []byte // valid JSON text; kept, must not be changed by the caller
	// Key makes a retry safe: within the key window the same key on the same
	// stream is stored once. Empty means no key. At most MaxKeyBytes bytes.
	Key string
}

// MaxKeyBytes is the longest idempotency key.
const MaxKeyBytes = 255

// Request is what one caller wants committed together: all of its broadcasts
// get their places in one transaction, or none does.
type Request []Broadcast

// Placed is where a broadcast stands in its stream.
type Placed struct {
	protocol.Position
	At int64 // commit time, microseconds since 1970
	// Repeat says that the key was seen before: the position is that of the
	// first broadcast under the key and nothing new was stored.
	Repeat bool
}

// Result answers one Request: a Placed for each of its broadcasts, in order,
// or the error that refused it as a whole. A refused request takes no offset.
type Result struct {
	Placed []Placed
	Err    error
}

// Log commits broadcasts. A store implements it.
//
// Append gives every broadcast of every request the next offset of its stream
// under the stream's channel row lock, in the order given, and commits all of
// them in one transaction. It returns one Result for each request. A request
// that is refused ([ErrKeyConflict], [ErrStreamFull]) is left out of the
// transaction and costs the others nothing. An error from Append itself means
// that nothing was committed when it is [ErrNotStored], and that the outcome
// is unknown otherwise.
//
// Append may be called by one goroutine at a time.
type Log interface {
	Append(ctx context.Context, batch []Request) ([]Result, error)
}

// Waiter is a [Log] in which channel rows may be held by others, such as an
// application's own transaction. Its Append does not wait for them for long: it
// leaves the requests concerned out with [ErrLocked], so that they delay nobody
// else. AppendWaiting does the same work but waits for the rows, for a bounded
// time; requests whose rows stay held get [ErrBusy] with [ErrNotStored]. It may
// be called by several goroutines at once, beside Append.
type Waiter interface {
	Log
	AppendWaiting(ctx context.Context, batch []Request) ([]Result, error)
}

// LockedError is [ErrLocked] with the stream that is held.
type LockedError struct{ Stream string }

func (e *LockedError) Error() string { return ErrLocked.Error() }

// Is makes errors.Is(e, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// heldStream is the stream that err says is held, or else the first of r.
func heldStream(err error, r Request) string {
	var locked *LockedError
	if errors.As(err, &locked) {
		return locked.Stream
	}
	return r[0].Stream
}

// Errors a caller can branch on. They are wrapped with context; test with
// errors.Is.
var (
	// ErrKeyConflict: the key was used within its window for another body.
	ErrKeyConflict = errors.New("sequencer: idempotency key was used with another payload")
	// ErrStreamFull: the stream has reached protocol.MaxOffset.
	ErrStreamFull = errors.New("sequencer: the stream has used up its offsets")
	// ErrNotStored: the log did not take the broadcast; nothing of it is
	// stored and retrying is safe without a key.
	ErrNotStored = errors.New("sequencer: not stored")
	// ErrBusy: the log is locked or does not answer in time. Comes together
	// with ErrNotStored when it is known that nothing was stored.
	ErrBusy = errors.New("sequencer: the log does not answer in time")
	// ErrDiskFull: the log has no room left. Comes together with ErrNotStored.
	ErrDiskFull = errors.New("sequencer: no space left for the log")
	// ErrOverloaded: too much is waiting to be committed. Comes together with
	// ErrNotStored.
	ErrOverloaded = errors.New("sequencer: too many broadcasts are waiting")
	// ErrLocked: the channel row of one of the streams is held by somebody
	// else's open transaction. A log that says so is a [Waiter] too.
	ErrLocked = errors.New("sequencer: the stream is locked by an open transaction")
	// ErrClosed: the sequencer is stopping. Comes together with ErrNotStored.
	ErrClosed = errors.New("sequencer: closed")
	// ErrOutcomeUnknown: the commit was under way when the caller gave up or
	// the log failed; the broadcast may or may not be stored. Retry with the
	// same key.
	ErrOutcomeUnknown = errors.New("sequencer: outcome unknown")
)
