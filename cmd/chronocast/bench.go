package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/chronocast/chronocast/internal/load"
)

const benchHelp = `Usage: chronocast bench SCENARIO [URL] [flags]

Puts load on an Action Cable server and measures what comes back: this one,
AnyCable, Rails. URL is that of the cable, such as ws://127.0.0.1:8080/cable.
Without it a server of this binary is started on a free port with a database
of its own, measured as well, and ended.

Each message carries the time it was due and a number, so that each client
counts what was lost, doubled and out of order. Latency is from due to read.

Scenarios:
`

const benchExamples = `  chronocast bench lecture
  chronocast bench lecture --clients 1000 --rate 100,300 --for 10s --html lecture.html
  chronocast bench herd ws://127.0.0.1:8080/cable --clients 10000 --pid 4711
  chronocast bench storm --protocol chronocast-v1-json --json storm.json
  chronocast bench rtt ws://127.0.0.1:8081/cable --publish anycable --publish-url http://127.0.0.1:8090/_broadcast
  chronocast bench constant ws://127.0.0.1:3000/cable --publish perform \
      --channel '{"channel":"BenchChannel","id":"{stream}"}' --perform '{"action":"speak","message":{payload}}'
`

// benching is one run of the bench command.
type benching struct {
	*clientFlags
	options      load.Options
	html, asJSON string
	strict       bool
}

// benchChild is the first argument of a process that the bench itself starts.
const benchChild = "worker"

func runBench(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 2 && args[0] == benchChild {
		if err := load.RunChild(ctx, args[1], stdin, stdout); err != nil {
			fmt.Fprintf(stderr, "chronocast bench: %v\n", err)
			return exitFailed
		}
		return exitOK
	}
	f, code := parseBench(args, stdout, stderr)
	if code >= 0 {
		return code
	}
	return f.run(ctx, stdout)
}

func parseBench(args []string, stdout, stderr io.Writer) (*benching, int) {
	var text strings.Builder
	text.WriteString(benchHelp)
	for _, s := range load.Scenarios() {
		fmt.Fprintf(&text, "  %-9s %s\n", s[0], wrapped(s[1], 12))
	}
	f := &benching{clientFlags: newClientFlags("bench", text.String(), benchExamples, stderr)}
	o := &f.options
	f.IntVar(&o.PID, "pid", 0, "measure the processor time and memory of this `process`, a server on this machine")
	f.StringVar(&o.Protocol, "protocol", "", "`subprotocol` to speak: actioncable-v1-json, actioncable-v1-ext-json or chronocast-v1-json (default the first; tokens on our own server: the last)")
	f.StringVar(&o.Channel, "channel", "", "subscription identifier, a `JSON` object in which {stream} stands for the name of a stream (default {\"channel\":\"$pubsub\",\"stream_name\":\"{stream}\"})")
	f.Var((*textList)(&o.Headers), "header", "one more `line` of the handshake, such as 'Cookie: a=b'; may be repeated")
	f.StringVar(&o.Origin, "origin", "", "`origin` that the handshake names")
	f.BoolVar(&o.Insecure, "insecure", false, "believe any certificate of a wss server")
	f.StringVar(&o.Publish, "publish", "", "`way` to publish: api (POST /streams/…/messages), broadcast (POST /broadcast, many in one body), anycable (POST /_broadcast, one in a body), perform (a command on the socket) (default api; storm and rate: broadcast)")
	f.StringVar(&o.PublishURL, "publish-url", "", "where to publish, a `URL`; normally the host of the cable")
	f.StringVar(&o.Key, "publish-key", os.Getenv("CHRONOCAST_PUBLISH_KEY"), "publish `key`; better in the environment variable CHRONOCAST_PUBLISH_KEY, where ps does not show it")
	f.StringVar(&o.Perform, "perform", "", "data of a command that publishes, `JSON` in which {payload} stands for the payload (default {\"action\":\"speak\",\"message\":{payload}})")
	f.IntVar(&o.Publishers, "publishers", 0, "connections that publish (default 4; constant and herd: 64; tokens: one for each answer)")
	f.IntVar(&o.Pipeline, "pipeline", 0, "requests under way on each of them (default 16, anycable: 1)")
	f.IntVar(&o.Batch, "batch", 0, "messages in one body of --publish broadcast (default 256)")
	f.Var((*intList)(&o.Clients), "clients", "how many clients, a `list` such as 250,500 with a step for each")
	f.Var((*floatList)(&o.Rates), "rate", "messages a second, a `list` with a step for each")
	f.DurationVar(&o.For, "for", 0, "how long each step lasts")
	f.IntVar(&o.Rounds, "rounds", 0, "how often: round trips of a visit, messages of a step, turns of a comparison")
	f.StringVar(&o.Shape, "payload", "", "what payloads look like, a `shape`: text, json or turbo (an HTML element)")
	f.IntVar(&o.Size, "size", 0, "how large a payload is, in `bytes`")
	f.IntVar(&o.Streams, "streams", 0, "how many streams (payload; hold, where every connection has its own otherwise)")
	f.IntVar(&o.Readers, "readers", 0, "readers of each answer (tokens)")
	f.Float64Var(&o.Ramp, "ramp", 0, "connections opened each second; 0 is what the scenario says")
	f.DurationVar(&o.Timeout, "timeout", 30*time.Second, "how long a connection, a publish or a round trip may take")
	f.BoolVar(&o.Goroutines, "goroutines", false, "use the portable engine instead of epoll")
	f.IntVar(&o.Loops, "loops", 0, "threads that serve the connections (default 1)")
	f.IntVar(&o.Servers, "servers", 0, "how many servers of our own to start, when there is no URL")
	f.Var((*textList)(&o.ServeFlags), "serve-flag", "one more `flag` for a server of our own, such as --serve-flag=--queue=4MiB; may be repeated")
	f.StringVar(&f.asJSON, "json", "", "write the result to this `file`; - is standard output")
	f.StringVar(&f.html, "html", "", "write a report with plots to this `file`, one page that needs nothing else")
	f.BoolVar(&f.strict, "strict", false, "exit with 1 when a check does not hold")
	f.BoolVar(&f.quiet, "quiet", false, "no progress")
	rest, code := f.parseArgs(args, stdout)
	if code >= 0 {
		return nil, code
	}
	if len(rest) == 0 {
		return nil, f.misused("SCENARIO is missing")
	}
	if len(rest) > 2 {
		return nil, f.misused("unexpected argument %q", clean(rest[2]))
	}
	o.Scenario = rest[0]
	if len(rest) == 2 {
		o.URL = rest[1]
	}
	if err := f.complete(); err != nil {
		return nil, f.misused("%v", err)
	}
	return f, -1
}

// complete checks the flags against one another and fills what depends on the
// scenario.
func (f *benching) complete() error {
	o := &f.options
	var known []string
	for _, s := range load.Scenarios() {
		known = append(known, s[0])
	}
	if err := o.Validate(); err != nil {
		text := strings.TrimPrefix(err.Error(), "load: ")
		if near := nearest(o.Scenario, known); near != "" && near != o.Scenario {
			text += "; did you mean " + near + "?"
		}
		return errors.New(text)
	}
	switch {
	case o.Timeout <= 0:
		return errors.New("--timeout must be greater than 0")
	case o.URL == "" && o.PID != 0:
		return errors.New("--pid is for a server given by its URL")
	case o.URL != "" && (o.Servers > 0 || len(o.ServeFlags) > 0):
		return errors.New("--servers and --serve-flag are for servers of our own, without a URL")
	}
	if o.Publish == "" && (o.Scenario == "storm" || o.Scenario == "rate") {
		o.Publish = load.PublishBroadcast
	}
	if o.Protocol == "" && o.Scenario == "tokens" && o.URL == "" {
		o.Protocol = "chronocast-v1-json"
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program does not find itself: %w", err)
	}
	if o.Scenario == "rate" && o.URL == "" {
		// It sends as many commands as it gets messages, from one connection.
		o.ServeFlags = append([]string{"--max-command-rate=20000"}, o.ServeFlags...)
	}
	o.Serve, o.Child = []string{self, "serve"}, []string{self, "bench", benchChild}
	return nil
}

// run runs the scenario and writes what was asked for.
func (f *benching) run(ctx context.Context, stdout io.Writer) int {
	// The files first: whoever has waited for the result wants to have it.
	outputs := map[string]io.WriteCloser{}
	for _, name := range []string{f.asJSON, f.html} {
		if name == "" || name == "-" {
			continue
		}
		file, err := os.Create(name)
		if err != nil {
			f.tell("%v", err)
			return exitFailed
		}
		defer file.Close()
		outputs[name] = file
	}
	live := newLiveLine(f.stderr, isTerminal(f.stderr))
	if !f.quiet {
		f.options.Live = live.show
	}
	result, err := load.Run(ctx, f.options)
	live.clear()
	if result == nil {
		if ctx.Err() != nil {
			return exitInterrupted
		}
		f.tell("%s", strings.TrimPrefix(err.Error(), "load: "))
		return exitFailed
	}
	if err != nil {
		result.Notes = append(result.Notes, "ended early: "+err.Error())
	}
	if err := f.write(result, stdout, outputs); err != nil {
		f.tell("%v", err)
		return exitFailed
	}
	switch {
	case ctx.Err() != nil:
		return exitInterrupted
	case err != nil:
		f.tell("%s", strings.TrimPrefix(err.Error(), "load: "))
		return exitFailed
	case f.strict && !result.OK():
		f.tell("a check does not hold")
		return exitFailed
	}
	return exitOK
}

func (f *benching) write(r *load.Result, stdout io.Writer, outputs map[string]io.WriteCloser) error {
	if f.asJSON == "-" {
		if err := r.WriteJSON(stdout); err != nil {
			return &outputError{err}
		}
	} else if err := r.WriteText(stdout); err != nil {
		return &outputError{err}
	}
	if w := outputs[f.asJSON]; w != nil {
		if err := errors.Join(r.WriteJSON(w), w.Close()); err != nil {
			return fmt.Errorf("--json: %w", err)
		}
	}
	if w := outputs[f.html]; w != nil {
		if err := errors.Join(r.WriteHTML(w), w.Close()); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	return nil
}

// wrapped breaks text into lines that begin at a column.
func wrapped(text string, column int) string {
	var b strings.Builder
	at := column
	for i, word := range strings.Fields(text) {
		if i > 0 {
			if at+1+len(word) > 79 {
				b.WriteString("\n" + strings.Repeat(" ", column))
				at = column
			} else {
				b.WriteByte(' ')
				at++
			}
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}

// textList is a flag that may be repeated.
type textList []string

func (l *textList) String() string     { return "" }
func (l *textList) Set(s string) error { *l = append(*l, s); return nil }

// intList is a flag with a list of whole numbers.
type intList []int

func (l *intList) String() string { return "" }
func (l *intList) Set(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(strings.ReplaceAll(strings.TrimSpace(part), "_", ""))
		if err != nil {
			return errors.New("it is a list of numbers such as 250,500")
		}
		*l = append(*l, n)
	}
	return nil
}

// floatList is a flag with a list of numbers.
type floatList []float64

func (l *floatList) String() string { return "" }
func (l *floatList) Set(s string) error {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil {
			return errors.New("it is a list of numbers such as 20,100")
		}
		*l = append(*l, n)
	}
	return nil
}

var (
	_ flag.Value = (*textList)(nil)
	_ flag.Value = (*intList)(nil)
	_ flag.Value = (*floatList)(nil)
)
