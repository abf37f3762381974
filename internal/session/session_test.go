package session_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/internal/session"
	"github.com/chronocast/chronocast/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var rewrite = flag.Bool("rewrite", false, "write what the sessions say into testdata; commit it only when every change is understood and wanted")

const epoch = 1700000000000000

// TestConversations plays the scripts of testdata. A line of a script is
//
//	level plain|ext|chronocast      the subprotocol; ext unless said, before the first step
//	max-subscriptions N             a limit, before the first step
//	max-identifier N                another
//	< FRAME                         the client sends a frame and waits for all that comes of it
//	<+ FRAME                        the client sends a frame and does not wait
//	append STREAM DATA…             broadcasts are committed, and the hub is told
//	hide STREAM DATA…               broadcasts are committed, and the hub is not told
//	trim STREAM FIRST               messages before the offset are dropped
//	wipe EPOCH                      the log begins another life
//	down [OP], up                   the log stops answering (heads, range or since only), answers again
//	stall, resume                   the client stops reading, reads again
//	again                           the connection ends and the client connects anew
//	beside                          the client connects anew, and the server does not know that the connection is dead
//	sleep DURATION                  time passes
//	ping UNIX                       the server pings
//	many N FRAME                    < N times, # in FRAME being the count
//	> FRAME                         what the client is sent by the step above
//	! TEXT                          what else became of it
//
// and the lines with > and ! are what is compared.
func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got []byte
			synctest.Test(t, func(t *testing.T) { got = play(t, want) })
			if bytes.Equal(got, want) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
			for i := range max(len(g), len(w)) {
				if i >= len(g) || i >= len(w) || g[i] != w[i] {
					t.Fatalf("line %d:\n got %s\nwant %s", i+1, at(g, i), at(w, i))
				}
			}
		})
	}
}

// eager is a sink under which something is committed at the worst moment: when
// a confirmation is about to be queued.
type eager struct {
	*hubtest.Sink
	publish func()
}

func (e *eager) Push(frames [][]byte) bool {
	if text, _, _ := protocol.CutTextFrame(frames[0]); bytes.HasPrefix(text, []byte(`{"type":"confirm_subscription"`)) {
		e.publish()
		synctest.Wait()
	}
	return e.Sink.Push(frames)
}

// TestB22_PositionsTellWhereTheWireStands: a confirmation repeated and a
// history refused while messages pass name the message right before them.
func TestB22_PositionsTellWhereTheWireStands(t *testing.T) {
	const name = `"identifier":"{\"channel\":\"$pubsub\",\"stream_name\":\"a\"}"`
	for _, level := range []string{"plain", "ext", "chronocast"} {
		for _, command := range []string{
			`{"command":"subscribe",` + name + `}`,
			`{"command":"history",` + name + `,"history":{"streams":{"a":{"epoch":"1700000000000000","offset":9000000}}}}`,
			`{"command":"history",` + name + `,"history":{"streams":{"a":{"epoch":"5","offset":3}}}}`,
		} {
			if level == "plain" && strings.Contains(command, "history") {
				continue
			}
			log := hubtest.NewLog(epoch)
			h := hub.New(log, hub.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- h.Run(ctx) }()
			codec, _ := protocol.ForSubprotocols([]string{levels[level]})
			sink := hubtest.NewSink(64 << 10)
			s := session.NewFactory(session.Config{Hub: h, Authorizer: auth.Open{}}).New(codec, sink, "sid-1")
			if err := s.Handle(ctx, []byte(`{"command":"subscribe",`+name+`}`)); err != nil {
				t.Error(err)
			}
			published := make(chan struct{})
			go func() {
				defer close(published)
				for range 500 {
					h.Publish([]protocol.Batch{log.AppendN("a", 1)})
					runtime.Gosched()
				}
			}()
			for busy := true; busy; {
				select {
				case <-published:
					busy = false
				default:
					if err := s.Handle(ctx, []byte(command)); err != nil {
						t.Error(err)
						busy = false
					}
				}
			}
			s.Close()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			wire, told := uint64(0), 0
			for _, f := range sink.Frames() {
				events, err := hubtest.Decode(f)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range events {
					at := e.Position.Offset
					if e.Type == "confirm_subscription" {
						var c struct {
							Streams map[string]struct{ Offset uint64 }
						}
						if err := json.Unmarshal(f, &c); err != nil {
							t.Fatal(err)
						}
						at = c.Streams["a"].Offset
					}
					if e.Type == "message" {
						wire++
					} else {
						told++
					}
					if at != wire {
						t.Fatalf("%s, %.24s: %s where the wire is at %d", level, command, f, wire)
					}
				}
			}
			if told < 2 {
				t.Errorf("%s, %.24s: nothing was told", level, command)
			}
		}
	}
}

// TestB44_NothingComesBeforeTheConfirmation: what is committed between
// registration and confirmation comes after it, with and without a replay.
func TestB44_NothingComesBeforeTheConfirmation(t *testing.T) {
	for _, level := range []string{"plain", "ext", "chronocast"} {
		for _, history := range []string{``, `,"history":{"streams":{"a":{"epoch":"1700000000000000","offset":0}}}`} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				log := hubtest.NewLog(epoch)
				h := hub.New(log, hub.Options{})
				ended := make(chan error, 1)
				go func() { ended <- h.Run(ctx) }()
				log.AppendN("a", 3)
				sink := &eager{hubtest.NewSink(64 << 10), func() { h.Publish([]protocol.Batch{log.AppendN("a", 2)}) }}
				codec, _ := protocol.ForSubprotocols([]string{levels[level]})
				s := session.NewFactory(session.Config{Hub: h, Authorizer: auth.Open{}}).New(codec, sink, "sid-1")
				if err := s.Handle(ctx, []byte(`{"command":"subscribe","identifier":"{\"channel\":\"$pubsub\",\"stream_name\":\"a\"}"`+history+`}`)); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				next := uint64(4)
				if history != "" {
					next = 1
				}
				for i, f := range sink.Frames() {
					events, err := hubtest.Decode(f)
					if err != nil {
						t.Fatal(err)
					}
					if (i == 0) != (events[0].Type == "confirm_subscription") {
						t.Errorf("%s, history %t: frame %d is %s", level, history != "", i, f)
					}
					for _, e := range events {
						if e.Type != "message" {
							continue
						}
						if e.Position.Offset != next {
							t.Errorf("%s, history %t: offset %d where %d is due", level, history != "", e.Position.Offset, next)
						}
						next = e.Position.Offset + 1
					}
				}
				if next != 6 {
					t.Errorf("%s, history %t: ended before offset %d", level, history != "", next)
				}
				s.Close()
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func at(lines []string, i int) string {
	if i >= len(lines) {
		return "(the end)"
	}
	return lines[i]
}

// stage is everything behind one script.
type stage struct {
	t    *testing.T
	ctx  context.Context
	log  *hubtest.Log
	hub  *hub.Hub
	sink *hubtest.Sink
	sess *session.Session
	all  []*session.Session
	made *session.Factory

	level string
	cfg   session.Config
	seen  int
	out   bytes.Buffer
}

// play runs a script and returns it with what was really said.
func play(t *testing.T, script []byte) []byte {
	s := &stage{t: t, log: hubtest.NewLog(epoch), level: "ext"}
	ctx, cancel := context.WithCancel(t.Context())
	s.ctx = ctx
	s.hub = hub.New(s.log, hub.Options{})
	ended := make(chan error, 1)
	go func() { ended <- s.hub.Run(ctx) }()
	for line := range strings.Lines(string(script)) {
		if line[0] == '>' || line[0] == '!' {
			continue
		}
		s.out.WriteString(line)
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if verb != "" && verb != "#" {
			s.step(verb, rest)
		}
	}
	for _, sess := range s.all {
		sess.Close()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return s.out.Bytes()
}

var levels = map[string]string{
	"plain": protocol.SubprotocolPlain, "ext": protocol.SubprotocolExtended, "chronocast": protocol.SubprotocolChronocast,
}

// open begins the session at the first step that is no setting.
func (s *stage) open() {
	codec, ok := protocol.ForSubprotocols([]string{levels[s.level]})
	if !ok {
		s.t.Fatalf("no level %q", s.level)
	}
	s.sink = hubtest.NewSink(64 << 10)
	s.cfg.Hub, s.cfg.Authorizer = s.hub, auth.Open{}
	if s.made == nil {
		s.made = session.NewFactory(s.cfg)
	}
	s.sess = s.made.New(codec, s.sink, "sid-1")
	s.all = append(s.all, s.sess)
	s.seen = 0
}

func (s *stage) step(verb, rest string) {
	switch verb {
	case "level":
		s.level = rest
		return
	case "max-subscriptions":
		s.cfg.MaxSubscriptions = s.number(rest)
		return
	case "max-identifier":
		s.cfg.MaxIdentifierBytes = s.number(rest)
		return
	}
	if s.sess == nil {
		s.open()
	}
	words := strings.Fields(rest)
	switch verb {
	case "welcome":
		s.sess.Welcome(s.ctx)
	case "<", "<+":
		s.handle(rest)
		if verb == "<+" {
			return
		}
	case "many":
		count, frame, _ := strings.Cut(rest, " ")
		for i := range s.number(count) {
			s.handle(strings.ReplaceAll(frame, "#", strconv.Itoa(i)))
		}
	case "append":
		s.hub.Publish([]protocol.Batch{s.log.Append(words[0], words[1:]...)})
	case "hide":
		s.log.Append(words[0], words[1:]...)
	case "trim":
		s.log.Trimmed(words[0], uint64(s.number(words[1])))
	case "wipe":
		s.log.Wipe(protocol.Epoch(s.number(words[0])))
	case "down":
		s.log.Fault(func(_ context.Context, op, _ string) error {
			if rest == "" || rest == op {
				return history.ErrUnavailable
			}
			return nil
		})
	case "up":
		s.log.Fault(nil)
	case "stall":
		s.sink.Stall()
	case "resume":
		s.sink.Resume()
	case "again":
		s.sess.Close()
		s.open()
	case "beside":
		s.open()
	case "sleep":
		d, err := time.ParseDuration(rest)
		if err != nil {
			s.t.Fatal(err)
		}
		time.Sleep(d) // of the bubble's clock
	case "ping":
		if !s.sess.Ping(int64(s.number(rest))) {
			s.note("a bare ping is due")
		}
	default:
		s.t.Fatalf("no verb %q", verb)
	}
	synctest.Wait()
	frames := s.sink.Frames()
	for _, f := range frames[s.seen:] {
		fmt.Fprintf(&s.out, "> %s\n", f)
	}
	s.seen = len(frames)
}

func (s *stage) handle(frame string) {
	// The command may cut the connection, which ends its context.
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	if s.sink.WasCut() != "" {
		cancel()
	}
	err := s.sess.Handle(ctx, []byte(frame))
	switch {
	case errors.Is(err, session.ErrMistakes):
		s.note("the session is over")
	case errors.Is(err, context.Canceled):
		s.note("the connection has ended")
	case err != nil:
		s.t.Error(err)
	}
}

func (s *stage) note(text string) { fmt.Fprintf(&s.out, "! %s\n", text) }

func (s *stage) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}
