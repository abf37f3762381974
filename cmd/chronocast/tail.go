package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/protocol"
)

const tailHelp = `Usage: chronocast tail STREAM [--after now|start|EPOCH:OFFSET] [flags]

Follows STREAM and prints each message once and in order: one line with the
offset, a tab and the data as JSON. A lost connection is made anew and continued
exactly where it ended, from history where needed. Control characters that a
terminal would obey are printed as \u00XX; --json changes nothing in the data.

When the server cannot continue (a reset), that is told on standard error, and
tail goes on: with --after start at the oldest message kept, otherwise with what
comes next. A position given with --after that cannot be continued at all ends
tail with exit code 3, and so does every reset with --fail-on-reset.
`

const tailExamples = `  chronocast tail chat/42
  chronocast tail chat/42 --after start --count 100
  chronocast tail chat/42 --after 1796061414123456:41 --json
  chronocast tail tokens --quiet | jq -r .
`

// tailing is one run of the tail command. It belongs to one goroutine.
type tailing struct {
	flags  *clientFlags
	api    *api
	dial   dialer
	stream string
	ident  string // the subscription identifier
	from   start
	count  int // messages to print; 0 is no limit
	strict bool
	out    *printer

	tail      *history.Tail
	placed    bool // tail has a position
	continued bool // the server has continued a position
	printed   int

	backoff  backoff
	patience time.Duration // for an answer to a command
}

// Errors that end a connection and are told apart by run.
var (
	errCounted = errors.New("printed as many messages as asked")
	errLost    = errors.New("the server did not send what was asked for in time")
	// errNewEpoch: subscribing again makes the server tell how to go on.
	errNewEpoch = errors.New("the numbering began anew")
)

// finalError ends tail: connecting again would not help.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

func final(format string, args ...any) error { return &finalError{fmt.Errorf(format, args...)} }

func runTail(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	t, code := parseTail(args, stdout, stderr)
	if code >= 0 {
		return code
	}
	return t.runUntilInterrupted(ctx)
}

// parseTail reads the command line. A non-negative code means that the command
// is over.
func parseTail(args []string, stdout, stderr io.Writer) (t *tailing, code int) {
	f := newClientFlags("tail", tailHelp, tailExamples, stderr)
	f.addServer(0, "how long to keep trying without a connection; 0 is for ever")
	after := f.String("after", "now", "print what follows this `position`: now, start, EPOCH:OFFSET, or OFFSET in the current epoch")
	t = &tailing{flags: f, backoff: backoff{base: 250 * time.Millisecond, max: 10 * time.Second}, patience: 10 * time.Second}
	f.IntVar(&t.count, "count", 0, "exit after `n` messages")
	f.BoolVar(&t.strict, "fail-on-reset", false, "exit with code 3 when the position cannot be continued")
	f.BoolVar(&f.quiet, "quiet", false, "tell about errors and resets only, not about connections")
	asJSON := f.Bool("json", false, `print {"stream","epoch","offset","data"} on each line`)
	rest, code := f.parse(args, stdout, 1, 1)
	if code >= 0 {
		return nil, code
	}
	var err error
	if t.api, err = f.api(); err != nil {
		return nil, f.misused("%v", err)
	}
	if t.from, err = parseStart(*after); err != nil {
		return nil, f.misused("--after: %v, or now", err)
	}
	if t.count < 0 {
		return nil, f.misused("--count must not be negative")
	}
	t.stream, t.out = rest[0], newPrinter(stdout, *asJSON, rest[0])
	t.ident = identifierOf(t.stream)
	t.dial = newDialer(t.api.base, f.timeout)
	t.dial.authorization = t.api.authorization
	return t, -1
}

// identifierOf returns the subscription identifier of a public stream.
func identifierOf(stream string) string {
	return `{"channel":"$pubsub","stream_name":` + string(quoted([]byte(stream))) + `}`
}

// runUntilInterrupted is run, but an interrupt ends it even while standard
// output takes nothing, as a paused pager does.
func (t *tailing) runUntilInterrupted(ctx context.Context) int {
	done := make(chan int, 1)
	go func() { done <- t.run(ctx) }() // outlives this call only in a write that blocks
	select {
	case code := <-done:
		return code
	case <-ctx.Done():
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case code := <-done:
		return code
	case <-timer.C:
		return exitInterrupted
	}
}

// run follows the stream over one connection after the other.
func (t *tailing) run(ctx context.Context) int {
	defer t.api.close()
	err := t.begin(ctx)
	for failures, lost := 0, time.Now(); err == nil; {
		before, opened := t.position(), time.Now()
		var healthy bool
		healthy, err = t.connection(ctx)
		var odd *finalError
		var reset *resetError
		switch {
		case errors.Is(err, errCounted), ctx.Err() != nil, errors.As(err, &odd), errors.As(err, &reset):
			continue // to the end of the loop
		}
		if healthy {
			lost = time.Now()
		}
		if t.position() != before || healthy && time.Since(opened) > staleAfter {
			failures = 0
		}
		if t.flags.retryFor > 0 && time.Since(lost) > t.flags.retryFor {
			err = fmt.Errorf("%w; gave up after %v", err, t.flags.retryFor)
			break
		}
		if failures == 0 {
			t.flags.note("%v; connecting again", err)
		} else if failures == 1 || failures%10 == 0 {
			t.flags.note("%v; still trying", err)
		}
		var wait time.Duration // the first time at once
		if failures > 0 {
			wait = t.backoff.after(failures - 1)
		}
		failures++
		pause(ctx, wait)
		err = nil
	}
	if t.placed && !isClosedPipe(err) {
		t.flags.note("ended at %v", t.position())
	}
	if errors.Is(err, errCounted) {
		return exitOK
	}
	return t.flags.fail(ctx, err)
}

// begin turns --after into a position where it is a word for one.
func (t *tailing) begin(ctx context.Context) error {
	t.tail = history.NewTail(history.TailLimits{WindowCount: 1, WindowBytes: 1})
	if t.from.word == "now" {
		return nil // the confirmation tells
	}
	at := t.from.at
	if t.from.word == "start" || at.Epoch == 0 {
		patient := *t.api
		if t.flags.retryFor == 0 {
			patient.retryFor = forever
		}
		span, err := patient.head(ctx, t.stream)
		if err != nil {
			return err
		}
		at.Epoch = span.Epoch
		if t.from.word == "start" {
			at.Offset = span.First - 1
			if span.First > 1 {
				t.flags.note("older messages are no longer kept; %s", kept(span))
			}
		}
	}
	t.place(at)
	return nil
}

// place starts the gate at a position.
func (t *tailing) place(at protocol.Position) {
	t.tail.Start(at)
	t.placed = true
}

func (t *tailing) position() protocol.Position {
	if !t.placed {
		return protocol.Position{}
	}
	return t.tail.Head()
}

// frame is every frame a server sends, in one.
type frame struct {
	Type       string                  `json:"type"`
	Identifier string                  `json:"identifier"`
	Message    json.RawMessage         `json:"message"`
	StreamID   string                  `json:"stream_id"`
	Epoch      string                  `json:"epoch"`
	Offset     uint64                  `json:"offset"`
	First      uint64                  `json:"first"`
	Messages   []frameMessage          `json:"messages"`
	Streams    map[string]wirePosition `json:"streams"`
	Reason     string                  `json:"reason"`
	Command    string                  `json:"command"`
	Reconnect  *bool                   `json:"reconnect"`
}

type frameMessage struct {
	Offset  uint64          `json:"offset"`
	Message json.RawMessage `json:"message"`
}

// subscription is what is known about the subscription on one connection.
type subscription struct {
	confirmed bool
	asked     time.Time         // when the answer that is awaited was asked for; zero: none is
	askedAt   protocol.Position // the position history was last asked after
	repeats   int               // how often it was asked for in a row
}

// connection follows the stream over one connection and returns why it ended,
// and whether the subscription was ever confirmed.
func (t *tailing) connection(ctx context.Context) (healthy bool, err error) {
	c, err := t.dial.open(ctx)
	if err != nil {
		return false, err
	}
	defer c.close()
	defer context.AfterFunc(ctx, c.close)()

	sub := subscription{asked: time.Now()} // the welcome is awaited first
	for {
		f, err := c.read()
		if err != nil {
			return sub.confirmed, err
		}
		before := t.printed
		if err := t.handle(c, &sub, f); err != nil {
			return sub.confirmed, err
		}
		if err := t.out.flush(); err != nil {
			return sub.confirmed, &finalError{err}
		}
		if t.printed > before && !sub.asked.IsZero() {
			sub.asked = time.Now() // it is on its way
		}
		if err := t.heal(c, &sub); err != nil {
			return sub.confirmed, err
		}
	}
}

// clientCommand is one frame to the server.
type clientCommand struct {
	Command    string         `json:"command"`
	Identifier string         `json:"identifier"`
	History    *clientHistory `json:"history,omitempty"`
}

type clientHistory struct {
	Streams map[string]wirePosition `json:"streams"`
}

// ask sends subscribe or history, with the position to continue after.
func (t *tailing) ask(c *connection, sub *subscription, name string) error {
	command := clientCommand{Command: name, Identifier: t.ident}
	if t.placed {
		at := t.position()
		sub.askedAt = at
		command.History = &clientHistory{Streams: map[string]wirePosition{t.stream: {at.Epoch.String(), at.Offset}}}
	}
	sub.asked = time.Now()
	return c.write(command)
}

// handle does what one frame asks for.
func (t *tailing) handle(c *connection, sub *subscription, f *frame) error {
	switch f.Type {
	case "welcome":
		return t.ask(c, sub, "subscribe")
	case "ping":
		return t.compareHead(sub, f)
	case "disconnect":
		reason := clean(f.Reason)
		if f.Reconnect != nil && !*f.Reconnect {
			return final("the server ended the connection for good: %s", reason)
		}
		return fmt.Errorf("the server ended the connection: %s", reason)
	}
	if f.Identifier != t.ident && f.Type != "error" {
		return nil
	}
	switch f.Type {
	case "confirm_subscription":
		return t.confirmed(sub, f)
	case "reject_subscription":
		return final("the server refuses the subscription: %s", clean(f.Reason))
	case "confirm_history":
		sub.asked, t.continued = time.Time{}, true
	case "reset":
		return t.reset(c, sub, f)
	case "error":
		return t.failed(f)
	case "messages":
		return t.messages(f, f.Messages)
	case "":
		return t.messages(f, []frameMessage{{f.Offset, f.Message}})
	}
	return nil
}

// confirmed notes the head of a new subscription.
func (t *tailing) confirmed(sub *subscription, f *frame) error {
	head, err := f.Streams[t.stream].position()
	if err != nil {
		return final("the confirmation has no position: this is no Chronocast server")
	}
	first := !sub.confirmed
	sub.confirmed = true
	if !t.placed {
		t.place(head)
		sub.asked = time.Time{}
	}
	if first {
		t.flags.note("following %s after %v", clean(t.stream), t.position())
	}
	return nil
}

// messages passes what a frame carries through the gate and prints what comes
// out.
func (t *tailing) messages(f *frame, carried []frameMessage) error {
	if f.StreamID != t.stream {
		return nil
	}
	epoch, err := protocol.ParseEpoch(f.Epoch)
	if err != nil || !t.placed {
		return errors.New("the server sent a message without a position")
	}
	msgs := make([]protocol.Message, 0, len(carried))
	for _, m := range carried {
		if m.Offset == 0 || m.Offset > protocol.MaxOffset || len(m.Message) == 0 {
			return errors.New("the server sent a message without a position")
		}
		msgs = append(msgs, protocol.Message{Offset: m.Offset, Data: m.Message})
	}
	passed, newer := t.tail.Add(epoch, msgs)
	if newer {
		return errNewEpoch
	}
	for _, m := range passed {
		t.out.message(epoch, m.Offset, m.Data)
		if t.printed++; t.printed == t.count {
			if err := t.out.flush(); err != nil {
				return &finalError{err}
			}
			return errCounted
		}
	}
	return nil
}

// compareHead looks for a lost newest message: a ping tells how far the server
// has sent each stream on this connection, and everything it sent has been
// read by now.
func (t *tailing) compareHead(sub *subscription, f *frame) error {
	w, told := f.Streams[t.stream]
	if !told || !sub.confirmed || !sub.asked.IsZero() {
		return nil
	}
	head, err := w.position()
	at := t.position()
	switch {
	case err != nil:
		return nil
	case head.Epoch != at.Epoch:
		return errNewEpoch
	}
	t.tail.Know(head.Offset)
	return nil
}

// heal asks for what is missing, and gives the connection up when asking does
// not help.
func (t *tailing) heal(c *connection, sub *subscription) error {
	if !sub.asked.IsZero() {
		if time.Since(sub.asked) < t.patience {
			return nil
		}
		return errLost
	}
	if _, _, missing := t.tail.Gap(); !missing {
		sub.repeats = 0
		return nil
	}
	if t.position() != sub.askedAt {
		sub.repeats = 0
	}
	if sub.repeats++; sub.repeats > 3 {
		return errLost
	}
	return t.ask(c, sub, "history")
}

// failed handles an error frame.
func (t *tailing) failed(f *frame) error {
	var text string
	if json.Unmarshal(f.Message, &text) != nil || text == "" {
		text = f.Reason
	}
	switch f.Reason {
	case "store_unavailable", "authorizer_unavailable", "not_subscribed":
		return fmt.Errorf("the server cannot serve the stream now: %s", clean(text))
	}
	if f.Command == "" {
		t.flags.note("the server says: %s", clean(text))
		return nil
	}
	return final("the server refuses %s: %s (%s)", clean(f.Command), clean(text), clean(f.Reason))
}

// reset handles the explicit word that the position cannot be continued.
func (t *tailing) reset(c *connection, sub *subscription, f *frame) error {
	head, err := wirePosition{f.Epoch, f.Offset}.position()
	if err != nil || f.First == 0 {
		return errors.New("the server sent a reset without a position")
	}
	// The subscription goes on after head, which a stream that was trimmed
	// meanwhile may have left behind.
	span := protocol.Span{Epoch: head.Epoch, First: min(f.First, head.Offset+1), Last: head.Offset}
	e := &resetError{reason: protocol.Reason(f.Reason), after: t.position(), span: span}
	if t.strict || t.from.word == "" && !t.continued {
		return e
	}
	at := span.Head()
	if t.from.word == "start" {
		at.Offset = span.First - 1
	}
	t.flags.tell("reset: %v", e)
	t.flags.tell("going on after %v", at)
	t.place(at)
	sub.asked = time.Time{}
	if at != span.Head() {
		return t.ask(c, sub, "history")
	}
	return nil
}
