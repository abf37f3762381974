package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/chronocast/chronocast/protocol"
)

const (
	// maxDataBytes bounds what is read into memory for one broadcast. The
	// server has its own, lower limit; its answer names it.
	maxDataBytes = 64 << 20
	// keyWindow is how long a server remembers an idempotency key by default.
	// Retrying for longer could publish twice.
	keyWindow = time.Hour
	// interruptGrace lets the request under way tell its outcome.
	interruptGrace = 2 * time.Second
)

const publishHelp = `Usage: chronocast publish STREAM [DATA|-] [flags]

Broadcasts DATA to STREAM and prints its position, EPOCH:OFFSET. Data that is
JSON is sent as it is; anything else is sent as text and arrives as one JSON
string. With - instead of DATA, or without it, all of standard input is one
broadcast, its last line break included.

With --lines each line of standard input is one broadcast, in order, without
its line break. What has been read while a request was under way goes with the
next one, so that a fast input is sent in batches and a slow one at once.

A request without an answer is repeated under the same idempotency key: it is
stored once, also when the server restarts in between.
`

const publishExamples = `  chronocast publish chat/42 '{"text":"hello"}'
  chronocast publish chat/42 -- -5
  date | chronocast publish clock
  my-model | chronocast publish answers/7 --lines
  chronocast publish answers/7 --lines --key generation-3 < tokens.txt
`

// publication is one run of the publish command.
type publication struct {
	flags  *clientFlags
	api    *api
	stream string
	data   *string // nil: standard input
	key    string
	lines  bool
	asJSON bool
	stdout io.Writer
	silent bool // nobody reads stdout

	maxItems int // of the next batch; both shrink when the server takes less
	maxBytes int
	lineMax  int // longest line, in bytes
}

func runPublish(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p, code := parsePublish(args, stdin, stdout, stderr)
	if code >= 0 {
		return code
	}
	return p.run(ctx, stdin)
}

// parsePublish reads the command line. A non-negative code means that the
// command is over.
func parsePublish(args []string, stdin io.Reader, stdout, stderr io.Writer) (p *publication, code int) {
	p = &publication{stdout: stdout, maxItems: batchItems, maxBytes: batchBytes, lineMax: maxLineBytes}
	f := newClientFlags("publish", publishHelp, publishExamples, stderr)
	f.addServer(30*time.Second, "how long to keep trying when the server does not answer")
	f.StringVar(&p.key, "key", "", "idempotency `key`: what was published under it within the last hour is not published again; with --lines each line has the key KEY#LINE and a request of its own")
	f.BoolVar(&p.asJSON, "json", false, "refuse data that is not JSON instead of sending it as text")
	f.BoolVar(&f.quiet, "quiet", false, "print no positions and no progress")
	f.BoolVar(&p.lines, "lines", false, "each line of standard input is one broadcast")
	rest, code := f.parse(args, stdout, 1, 2)
	if code >= 0 {
		return nil, code
	}
	var err error
	if p.api, err = f.api(); err != nil {
		return nil, f.misused("%v", err)
	}
	p.api.grace = interruptGrace
	p.flags, p.stream = f, rest[0]
	if len(rest) == 2 && rest[1] != "-" {
		p.data = &rest[1]
	}
	keyGiven := false
	f.Visit(func(fl *flag.Flag) { keyGiven = keyGiven || fl.Name == "key" })
	switch {
	case keyGiven && !isKey(p.key):
		return nil, f.misused("--key must not be empty and takes printable ASCII without spaces around it")
	case f.retryFor >= keyWindow:
		return nil, f.misused("--retry-for must be less than %v: the server forgets idempotency keys", keyWindow)
	case p.lines && p.data != nil:
		return nil, f.misused("--lines reads standard input; leave DATA out")
	case len(rest) == 1 && isTerminal(stdin):
		return nil, f.misused("DATA is missing; give - to type it on standard input")
	}
	return p, -1
}

// run publishes and returns the exit code.
func (p *publication) run(ctx context.Context, stdin io.Reader) int {
	defer p.api.close()
	if p.lines {
		return p.publishLines(ctx, stdin)
	}
	return p.flags.fail(ctx, p.publishOne(ctx, stdin))
}

func (p *publication) publishOne(ctx context.Context, stdin io.Reader) error {
	var data []byte
	if p.data != nil {
		data = []byte(*p.data)
	} else {
		var err error
		if data, err = readWhole(stdin); err != nil {
			return err
		}
	}
	isJSON, err := p.kind(data)
	if err != nil {
		return err
	}
	at, err := p.one(ctx, data, isJSON, p.key)
	if err != nil {
		return explainPublish(err)
	}
	return p.print([]protocol.Position{at})
}

// readWhole reads standard input to its end.
func readWhole(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDataBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read standard input: %w", err)
	case len(data) > maxDataBytes:
		return nil, fmt.Errorf("standard input is longer than %d bytes; --lines publishes it line by line", maxDataBytes)
	case len(data) == 0:
		return nil, errors.New(`standard input is empty; give "" as DATA to publish an empty text`)
	}
	return data, nil
}

// kind tells JSON from text, and refuses what can be published as neither.
func (p *publication) kind(data []byte) (isJSON bool, err error) {
	if !utf8.Valid(data) {
		return false, errors.New("the data is not valid UTF-8")
	}
	if json.Valid(data) {
		return true, nil
	}
	if p.asJSON {
		return false, errors.New("the data is not valid JSON")
	}
	return false, nil
}

// isKey reports whether s can be an Idempotency-Key header.
func isKey(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && strings.TrimSpace(s) == s
}

// one publishes one broadcast under key, or under a key of its own.
func (p *publication) one(ctx context.Context, data []byte, isJSON bool, key string) (protocol.Position, error) {
	if key == "" {
		key = uuid.NewString()
	}
	kind := "text/plain; charset=utf-8"
	if isJSON {
		kind = "application/json"
	}
	var answer wirePosition
	_, err := p.api.do(ctx, call{
		method: http.MethodPost,
		path:   streamPath(p.stream, "/messages"),
		header: map[string]string{"Content-Type": kind, "Idempotency-Key": key},
		body:   data,
	}, &answer)
	if err != nil {
		return protocol.Position{}, err
	}
	return answer.position()
}

// print writes positions, one a line. When nobody reads them any more it stays
// silent from then on: publishing goes on.
func (p *publication) print(at []protocol.Position) error {
	if p.silent || p.flags.quiet {
		return nil
	}
	var out []byte
	for _, position := range at {
		out = append(append(out, position.String()...), '\n')
	}
	if _, err := p.stdout.Write(out); err != nil {
		if err = (&outputError{err}); !isClosedPipe(err) {
			return err
		}
		p.silent = true
	}
	return nil
}

// explainPublish adds what the caller cannot see: whether the broadcast of a
// request that was given up may be stored all the same.
func explainPublish(err error) error {
	var f *failure
	if errors.As(err, &f) && f.unknown {
		return fmt.Errorf("%w; it is unknown whether the broadcast was stored", err)
	}
	return err
}
