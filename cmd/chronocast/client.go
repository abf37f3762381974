package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-isatty"

	"github.com/chronocast/chronocast/protocol"
)

// The exit codes of every client command; help prints them too.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitReset       = 3   // the position cannot be continued
	exitInterrupted = 130 // SIGINT, as shells report it
)

const exitCodesHelp = `
Exit codes:
  0    done
  1    failed; the reason is on standard error
  2    called wrongly
  3    the position cannot be continued (trimmed, epoch_changed or ahead)
  130  interrupted
`

const defaultServer = "http://127.0.0.1:8080"

// clientFlags is one client command's command line. Flags may stand before,
// between and behind the arguments; everything after -- is an argument.
type clientFlags struct {
	*flag.FlagSet
	stderr io.Writer

	server   string
	timeout  time.Duration
	retryFor time.Duration
	quiet    bool
	shown    credentials
}

// newClientFlags makes the flag set of one command. text is the help that
// stands above the list of flags, examples what stands below it.
func newClientFlags(name, text, examples string, stderr io.Writer) *clientFlags {
	f := &clientFlags{FlagSet: flag.NewFlagSet(name, flag.ContinueOnError), stderr: stderr}
	f.SetOutput(io.Discard) // what goes wrong is told by parse, once
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "%s\nFlags:\n", text)
		f.VisitAll(func(fl *flag.Flag) { printFlag(f.Output(), fl) })
		fmt.Fprintf(f.Output(), "\nExamples:\n%s%s", examples, exitCodesHelp)
	}
	return f
}

// printFlag writes one flag the way the help shows it: two dashes, the word
// for its value, and its default when it says something, in lines of less than
// 80 columns.
func printFlag(w io.Writer, fl *flag.Flag) {
	word, text := flag.UnquoteUsage(fl)
	name := "--" + fl.Name
	if word != "" {
		name += " " + word
	}
	if fl.DefValue != "" && fl.DefValue != "false" && fl.DefValue != "0" && fl.DefValue != "0s" {
		text += " (default " + fl.DefValue + ")"
	}
	line := fmt.Sprintf("  %-18s", name)
	if len(line) > 20 {
		fmt.Fprintln(w, line)
		line = strings.Repeat(" ", 20)
	}
	for _, word := range strings.Fields(text) {
		if len(line)+len(word) >= 79 {
			fmt.Fprintln(w, line)
			line = strings.Repeat(" ", 20)
		}
		line += " " + word
	}
	fmt.Fprintln(w, line)
}

// addServer adds the flags of every command that talks to a server.
// retryFor is the default of --retry-for, and retryHelp its help.
func (f *clientFlags) addServer(retryFor time.Duration, retryHelp string) {
	server := os.Getenv("CHRONOCAST_SERVER")
	if server == "" {
		server = defaultServer
	}
	f.StringVar(&f.server, "server", server, "where the server is, a `URL`; the environment variable CHRONOCAST_SERVER sets the default")
	f.shown.flags(f.FlagSet)
	f.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long one request may take")
	f.DurationVar(&f.retryFor, "retry-for", retryFor, retryHelp)
}

// parse reads args and returns the arguments that are no flags. A non-negative
// code means that the command is over: help was printed, or an error.
func (f *clientFlags) parse(args []string, stdout io.Writer, min, max int) (rest []string, code int) {
	if rest, code = f.parseArgs(args, stdout); code >= 0 {
		return nil, code
	}
	switch {
	case len(rest) < min:
		return nil, f.misused("STREAM is missing")
	case len(rest) > max:
		return nil, f.misused("unexpected argument %q; quote an argument that contains spaces", clean(rest[max]))
	}
	if err := protocol.CheckStream(rest[0]); err != nil {
		return nil, f.misused("a stream name is 1 to %d bytes of UTF-8 without control characters", protocol.MaxStreamBytes)
	}
	return rest, -1
}

// parseArgs is parse for a command whose arguments are no streams: it reads the
// flags and returns everything else.
func (f *clientFlags) parseArgs(args []string, stdout io.Writer) (rest []string, code int) {
	for {
		if err := f.FlagSet.Parse(args); errors.Is(err, flag.ErrHelp) {
			f.SetOutput(stdout)
			f.Usage()
			return nil, exitOK
		} else if err != nil {
			return nil, f.misused("%s", f.explain(err))
		}
		left := f.Args()
		if read := len(args) - len(left); read > 0 && args[read-1] == "--" {
			rest = append(rest, left...)
			break
		}
		if len(left) == 0 {
			break
		}
		rest = append(rest, left[0])
		args = left[1:]
	}
	return rest, -1
}

// explain words a flag error for people and adds the nearest flag there is.
func (f *clientFlags) explain(err error) string {
	text := err.Error()
	name, undefined := strings.CutPrefix(text, "flag provided but not defined: -")
	if !undefined {
		return text
	}
	var known []string
	f.VisitAll(func(fl *flag.Flag) { known = append(known, fl.Name) })
	name, _, _ = strings.Cut(strings.TrimLeft(name, "-"), "=")
	dashes := "--"
	if len(name) == 1 {
		dashes = "-"
	}
	text = "there is no flag " + dashes + clean(name)
	if near := nearest(name, known); near != "" {
		return text + "; did you mean --" + near + "?"
	}
	return text + "; an argument that begins with a dash goes after --"
}

// misused reports a wrong call.
func (f *clientFlags) misused(format string, args ...any) int {
	f.tell(format, args...)
	fmt.Fprintf(f.stderr, "Run 'chronocast %s --help' for usage.\n", f.Name())
	return exitUsage
}

// tell writes one line to standard error, with the command's name in front.
func (f *clientFlags) tell(format string, args ...any) {
	fmt.Fprintf(f.stderr, "chronocast %s: %s\n", f.Name(), fmt.Sprintf(format, args...))
}

// note is tell for what --quiet leaves out.
func (f *clientFlags) note(format string, args ...any) {
	if !f.quiet {
		f.tell(format, args...)
	}
}

// fail reports err and returns the exit code that goes with it.
func (f *clientFlags) fail(ctx context.Context, err error) int {
	var reset *resetError
	var given *failure
	switch {
	case err == nil, isClosedPipe(err):
		return exitOK
	case ctx.Err() != nil && errors.As(err, &given) && given.unknown:
		f.tell("%v", err)
		return exitInterrupted
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.As(err, &reset):
		f.tell("%v", err)
		return exitReset
	}
	f.tell("%v", err)
	return exitFailed
}

// api returns the way to the server the flags name.
func (f *clientFlags) api() (*api, error) {
	base, err := parseServer(f.server)
	switch {
	case err != nil:
		return nil, err
	case f.timeout <= 0:
		return nil, errors.New("--timeout must be greater than 0")
	case f.retryFor < 0:
		return nil, errors.New("--retry-for must not be negative")
	}
	a := newAPI(base, f.timeout, f.retryFor, f.note)
	if a.authorization, err = f.shown.header(); err != nil {
		return nil, err
	}
	return a, nil
}

// parseServer reads a server URL. The error never repeats a user name or
// password that stands in it.
func parseServer(s string) (*url.URL, error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, errors.New("--server is not a URL like " + defaultServer)
	case u.User != nil:
		return nil, errors.New("--server must not carry a user name or a password")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("--server must begin with http:// or https://, not %s://", clean(u.Scheme))
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("--server must end with the host or a path, without ? and #")
	}
	u.RawPath = strings.TrimRight(u.EscapedPath(), "/")
	if u.Path, err = url.PathUnescape(u.RawPath); err != nil {
		return nil, errors.New("--server is not a URL like " + defaultServer)
	}
	return u, nil
}

// start is where a reader begins: at the first message kept, at the head, or
// after a position.
type start struct {
	word string // start, now, or "" for a position
	at   protocol.Position
}

func parseStart(s string) (start, error) {
	if s == "start" || s == "now" {
		return start{word: s}, nil
	}
	at, err := protocol.ParsePosition(s)
	if err != nil {
		return start{}, errors.New("it is EPOCH:OFFSET as publish prints it, an OFFSET, or start")
	}
	return start{at: at}, nil
}

// printer writes messages, one line each. Lines reach the writer with flush.
type printer struct {
	buf    []byte
	w      io.Writer
	asJSON bool
	stream []byte // quoted
}

func newPrinter(w io.Writer, asJSON bool, stream string) *printer {
	return &printer{w: w, asJSON: asJSON, stream: quoted([]byte(stream))}
}

// message adds one line. Line breaks in data can only stand between JSON
// tokens, so they become spaces and the line stays one line. For people the
// controls that JSON lets stand are escaped.
func (p *printer) message(epoch protocol.Epoch, offset uint64, data []byte) {
	b := p.buf
	if p.asJSON {
		b = append(append(b, `{"stream":`...), p.stream...)
		b = strconv.AppendInt(append(b, `,"epoch":"`...), int64(epoch), 10)
		b = strconv.AppendUint(append(b, `","offset":`...), offset, 10)
		b = append(b, `,"data":`...)
	} else {
		b = append(strconv.AppendUint(b, offset, 10), '\t')
	}
	at := len(b)
	if p.asJSON {
		b = append(b, data...)
	} else {
		b = appendVisible(b, data)
	}
	for i, c := range b[at:] {
		if c == '\n' || c == '\r' {
			b[at+i] = ' '
		}
	}
	if p.asJSON {
		b = append(b, '}')
	}
	p.buf = append(b, '\n')
}

// appendVisible appends JSON text with DEL and the C1 controls, which a terminal
// would obey, as escapes of the same meaning: they can only stand in strings.
func appendVisible(b, data []byte) []byte {
	for len(data) > 0 {
		n := bytes.IndexFunc(data, func(r rune) bool { return r >= 0x7f && r <= 0x9f })
		if n < 0 {
			break
		}
		r, size := utf8.DecodeRune(data[n:])
		b = fmt.Appendf(append(b, data[:n]...), `\u%04x`, r)
		data = data[n+size:]
	}
	return append(b, data...)
}

func (p *printer) flush() error {
	if len(p.buf) == 0 {
		return nil
	}
	_, err := p.w.Write(p.buf)
	if p.buf = p.buf[:0]; cap(p.buf) > 1<<20 {
		p.buf = nil
	}
	if err != nil {
		return &outputError{err}
	}
	return nil
}

// outputError is a failure to write to standard output.
type outputError struct{ err error }

func (e *outputError) Error() string { return "write to standard output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// isClosedPipe reports whether whoever read our output has gone, as head does
// when it has seen enough: no failure of ours.
func isClosedPipe(err error) bool {
	var out *outputError
	return errors.As(err, &out) && (errors.Is(out, syscall.EPIPE) || errors.Is(out, io.ErrClosedPipe))
}

// quoted returns text, valid UTF-8, as a JSON string.
func quoted(text []byte) []byte {
	q, err := protocol.QuotePayload(text)
	if err != nil {
		panic(err) // every caller has checked that it is UTF-8
	}
	return q
}

// clean makes text from elsewhere safe to print: no control characters that a
// terminal would obey, and not without end.
func clean(s string) string {
	const most = 500
	s = strings.ToValidUTF8(s, "\uFFFD")
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// isTerminal reports whether a person sits at the other end.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
