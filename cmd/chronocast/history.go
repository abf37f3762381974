package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/chronocast/chronocast/protocol"
)

// pageLimit is how many messages one request asks for.
const pageLimit = 1000

const historyHelp = `Usage: chronocast history STREAM [--after start|EPOCH:OFFSET] [flags]

Prints what STREAM has kept, oldest first, up to its newest message: one line
each with the offset, a tab and the data as JSON. Control characters that a
terminal would obey are printed as \u00XX; --json changes nothing in the data.

A position that cannot be continued is never skipped over in silence: exit
code 3, and the reason on standard error.
`

const historyExamples = `  chronocast history chat/42
  chronocast history chat/42 --after 1796061414123456:41
  chronocast history chat/42 --limit 10 --json
`

// reading is one run of the history command.
type reading struct {
	api    *api
	stream string
	from   start
	limit  int // messages in all; 0 is no limit
	out    *printer
}

func runHistory(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	f := newClientFlags("history", historyHelp, historyExamples, stderr)
	f.addServer(30*time.Second, "how long to keep trying when the server does not answer")
	after := f.String("after", "start", "print what follows this `position`: start, EPOCH:OFFSET, or OFFSET in the current epoch")
	limit := f.Int("limit", 0, "print at most `n` messages")
	asJSON := f.Bool("json", false, `print {"stream","epoch","offset","data"} on each line`)
	rest, code := f.parse(args, stdout, 1, 1)
	if code >= 0 {
		return code
	}
	a, err := f.api()
	if err != nil {
		return f.misused("%v", err)
	}
	defer a.close()
	from, err := parseStart(*after)
	switch {
	case err != nil || from.word == "now":
		return f.misused("--after: it is EPOCH:OFFSET as publish prints it, an OFFSET, or start")
	case *limit < 0:
		return f.misused("--limit must not be negative")
	}
	r := &reading{api: a, stream: rest[0], from: from, limit: *limit, out: newPrinter(stdout, *asJSON, rest[0])}
	return f.fail(ctx, r.run(ctx))
}

// run prints page after page, each continuing exactly where the last one ended.
func (r *reading) run(ctx context.Context) error {
	at := r.from.at
	if r.from.word == "start" {
		span, err := r.api.head(ctx, r.stream)
		if err != nil {
			return err
		}
		at = protocol.Position{Epoch: span.Epoch, Offset: span.First - 1}
	}
	printed := 0
	for {
		n := pageLimit
		if r.limit > 0 {
			n = min(n, r.limit-printed)
		}
		page, err := r.api.page(ctx, r.stream, at, n)
		var reset *resetError
		if errors.As(err, &reset) && reset.reason == protocol.ReasonTrimmed && reset.span.First > at.Offset+1 && r.from.word == "start" && printed == 0 {
			// Trimmed between the two requests; begin with what is kept now.
			at = protocol.Position{Epoch: reset.span.Epoch, Offset: reset.span.First - 1}
			continue
		}
		if err != nil && printed > 0 && reset == nil {
			return fmt.Errorf("%w; printed up to %v, continue with --after %v", err, at, at)
		}
		if err != nil {
			return err
		}
		for _, m := range page.Messages {
			r.out.message(page.span.Epoch, m.Offset, m.Data)
		}
		if err := r.out.flush(); err != nil {
			return err
		}
		printed += len(page.Messages)
		at = page.end
		if !page.More || r.limit > 0 && printed >= r.limit {
			return nil
		}
	}
}

// page is one stretch of history.
type page struct {
	wireSpan
	Messages []struct {
		Offset uint64          `json:"offset"`
		Data   json.RawMessage `json:"data"`
	} `json:"messages"`
	More bool `json:"more"`

	span protocol.Span
	end  protocol.Position // of the last message, or where the page was asked for
}

// page reads up to limit messages after a position. The messages it returns
// follow the position without a hole; anything else is an error.
func (a *api) page(ctx context.Context, stream string, after protocol.Position, limit int) (*page, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}, "after": {after.String()}}
	if after.Epoch == 0 {
		query.Set("after", strconv.FormatUint(after.Offset, 10))
	}
	p := &page{}
	_, err := a.do(ctx, call{method: http.MethodGet, path: streamPath(stream, "/messages"), query: query}, p)
	var refused *serverError
	if errors.As(err, &refused) && refused.Status == http.StatusGone {
		reset := &resetError{reason: protocol.Reason(refused.Code), after: after}
		reset.span, _ = wireSpan{refused.Epoch, refused.First, refused.Last}.span()
		return nil, reset
	}
	if err != nil {
		return nil, err
	}
	if p.span, err = p.wireSpan.span(); err != nil {
		return nil, err
	}
	if after.Epoch == 0 {
		after.Epoch = p.span.Epoch
	}
	p.end = after
	if p.span.Epoch != after.Epoch {
		return nil, &protocolError{fmt.Sprintf("asked for epoch %v, the answer is of epoch %v", after.Epoch, p.span.Epoch)}
	}
	for _, m := range p.Messages {
		if m.Offset != p.end.Offset+1 || len(m.Data) == 0 {
			return nil, &protocolError{fmt.Sprintf("the answer continues offset %d with %d", p.end.Offset, m.Offset)}
		}
		p.end.Offset = m.Offset
	}
	if len(p.Messages) == 0 && p.More {
		return nil, &protocolError{"the answer is empty but promises more"}
	}
	return p, nil
}
