package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/chronocast/chronocast/protocol"
)

// script plays a server towards tail, frame by frame, for what a real server
// does only when something is broken. Each connection runs the function of its
// number; after the last one the last is repeated.
type script []func(s *scene)

// scene is one connection of a script.
type scene struct {
	t     *testing.T
	ws    *websocket.Conn
	codec protocol.Codec
	addr  *protocol.Address
	epoch protocol.Epoch
}

const scriptStream = "chat/42"

// start serves the script, and the head {epoch 7, offsets 3 to 9} over HTTP.
func (sc script) start(t *testing.T) string {
	t.Helper()
	codec, _ := protocol.ForSubprotocols([]string{protocol.SubprotocolChronocast})
	var mu sync.Mutex
	n := 0
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/cable" {
			fmt.Fprint(w, `{"stream":"chat/42","epoch":"7","first":3,"last":9}`)
			return
		}
		up := websocket.Upgrader{Subprotocols: []string{protocol.SubprotocolChronocast}}
		ws, err := up.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer ws.Close()
		mu.Lock()
		play := sc[min(n, len(sc)-1)]
		n++
		mu.Unlock()
		s := &scene{t: t, ws: ws, codec: codec, epoch: 7, addr: protocol.NewAddress(identifierOf(scriptStream), scriptStream)}
		s.send(codec.AppendWelcome(nil, "sid"))
		play(s)
	}))
}

// send writes one frame. Once the client has gone it does nothing.
func (s *scene) send(frame []byte) { _ = s.ws.WriteMessage(websocket.TextMessage, frame) }

// expect reads one command and compares it. It returns false when there is
// none, which the assertions on tail's output then show.
func (s *scene) expect(command, after string) bool {
	_, text, err := s.ws.ReadMessage()
	if err != nil {
		return false
	}
	var got clientCommand
	if err := json.Unmarshal(text, &got); err != nil {
		s.t.Errorf("tail sent %s", text)
		return false
	}
	position := "-"
	if got.History != nil {
		at := got.History.Streams[scriptStream]
		position = fmt.Sprintf("%s:%d", at.Epoch, at.Offset)
	}
	if got.Command != command || got.Identifier != s.addr.Identifier || position != after {
		s.t.Errorf("tail sent %s, want %s after %s", text, command, after)
		return false
	}
	return true
}

func (s *scene) confirm(offset uint64) {
	s.send(s.codec.AppendConfirm(nil, s.addr.Identifier, []protocol.StreamPosition{{Stream: scriptStream, Position: protocol.Position{Epoch: s.epoch, Offset: offset}}}))
}

func (s *scene) confirmHistory() { s.send(s.codec.AppendConfirmHistory(nil, s.addr.Identifier)) }

// messages sends these offsets, each run in one frame.
func (s *scene) messages(replay bool, offsets ...uint64) {
	var msgs []protocol.Message
	for _, offset := range offsets {
		msgs = append(msgs, protocol.Message{Offset: offset, Data: fmt.Appendf(nil, `"%v.%d"`, s.epoch, offset)})
	}
	for _, wire := range s.codec.Frames(nil, s.addr, s.epoch, msgs, replay) {
		for text, rest, ok := protocol.CutTextFrame(wire); ok; text, rest, ok = protocol.CutTextFrame(rest) {
			s.send(text)
		}
	}
}

func (s *scene) ping(offset uint64) {
	s.send(s.codec.AppendPing(nil, 1, []protocol.StreamPosition{{Stream: scriptStream, Position: protocol.Position{Epoch: s.epoch, Offset: offset}}}))
}

func (s *scene) reset(reason protocol.Reason, first, last uint64) {
	s.send(s.codec.AppendReset(nil, s.addr, reason, protocol.Span{Epoch: s.epoch, First: first, Last: last}))
}

// wait returns when tail closes the connection.
func (s *scene) wait() {
	for {
		if _, _, err := s.ws.ReadMessage(); err != nil {
			return
		}
	}
}

// tailScript runs tail against a script.
func tailScript(t *testing.T, sc script, args ...string) result {
	t.Helper()
	return cli(t, quickTail, nil, append([]string{scriptStream, "--server", sc.start(t)}, args...)...)
}

// line is what the scripts' messages are printed as.
func scriptLines(epoch protocol.Epoch, offsets ...uint64) string {
	var b strings.Builder
	for _, offset := range offsets {
		fmt.Fprintf(&b, "%d\t\"%v.%d\"\n", offset, epoch, offset)
	}
	return b.String()
}

func TestTail_ResumesAfterTheNewestMessagePrinted(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{
		func(s *scene) {
			s.expect("subscribe", "-")
			s.confirm(9)
			s.messages(false, 10)
			s.messages(false, 11)
		},
		func(s *scene) { s.expect("subscribe", "7:11") }, // lost before anything came
		func(s *scene) {
			s.expect("subscribe", "7:11")
			s.confirm(13)
			s.messages(true, 12, 13)
			s.confirmHistory()
			s.messages(false, 13) // again
			s.messages(false, 14)
			s.wait()
		},
	}, "--count", "5")
	wantCode(t, r, exitOK)
	if want := scriptLines(7, 10, 11, 12, 13, 14); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
	wantText(t, "stderr", r.stderr, "following chat/42 after 7:9", "following chat/42 after 7:11", "ended at 7:14")
}

// A tail that began "now" and got nothing resumes where it began, not at the
// head it finds when it comes back.
func TestTail_ALostConnectionBeforeTheFirstMessageLosesNothing(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{
		func(s *scene) { s.expect("subscribe", "-"); s.confirm(9) },
		func(s *scene) {
			s.expect("subscribe", "7:9")
			s.confirm(10)
			s.messages(true, 10)
			s.confirmHistory()
			s.wait()
		},
	}, "--count", "1")
	wantCode(t, r, exitOK)
	if want := scriptLines(7, 10); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
}

func TestTail_AGapIsFilledFromHistoryBeforeAnythingBehindItIsPrinted(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{func(s *scene) {
		s.expect("subscribe", "-")
		s.confirm(9)
		s.messages(false, 12)
		s.messages(false, 11)
		s.expect("history", "7:9")
		s.messages(false, 13)
		s.messages(true, 10, 11, 12)
		s.messages(true, 13)
		s.confirmHistory()
		s.messages(false, 14)
		s.wait()
	}}, "--count", "5")
	wantCode(t, r, exitOK)
	if want := scriptLines(7, 10, 11, 12, 13, 14); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
}

// B37: nothing comes after a lost newest message; the ping tells.
func TestB37_TailAsksForALostNewestMessageWhenAPingTellsOfIt(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{func(s *scene) {
		s.expect("subscribe", "-")
		s.confirm(9)
		s.ping(9)
		s.ping(10)
		s.expect("history", "7:9")
		s.messages(true, 10)
		s.confirmHistory()
		s.wait()
	}}, "--count", "1")
	wantCode(t, r, exitOK)
	if want := scriptLines(7, 10); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
}

func TestTail_ConnectsAgainWhenHistoryDoesNotFillTheGap(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{
		func(s *scene) {
			s.expect("subscribe", "-")
			s.confirm(9)
			s.messages(false, 11)
			for s.expect("history", "7:9") {
				s.confirmHistory() // without the message
			}
		},
		func(s *scene) {
			s.expect("subscribe", "7:9")
			s.confirm(11)
			s.messages(true, 10, 11)
			s.confirmHistory()
			s.wait()
		},
	}, "--count", "2")
	wantCode(t, r, exitOK)
	if want := scriptLines(7, 10, 11); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
}

func TestTail_StartBeginsWithTheOldestMessageKept(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{func(s *scene) {
		s.expect("subscribe", "7:2")
		s.confirm(9)
		s.messages(true, 3, 4)
		s.wait()
	}}, "--count", "2", "--after", "start")
	wantCode(t, r, exitOK)
	if want := scriptLines(7, 3, 4); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
	wantText(t, "stderr", r.stderr, "older messages are no longer kept; the stream holds offsets 3 to 9")
}

func TestTail_ABareOffsetIsOfTheCurrentEpoch(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{func(s *scene) {
		s.expect("subscribe", "7:5")
		s.confirm(9)
		s.messages(true, 6)
		s.wait()
	}}, "--count", "1", "--after", "5")
	wantCode(t, r, exitOK)
}

func TestTail_GoesOnAfterAResetAndTellsIt(t *testing.T) {
	t.Parallel()
	resets := script{
		func(s *scene) {
			s.expect("subscribe", "7:2")
			s.confirm(9)
			s.messages(true, 3)
			s.confirmHistory()
		},
		func(s *scene) {
			s.expect("subscribe", "7:3")
			s.epoch = 8
			s.confirm(5)
			s.reset(protocol.ReasonEpochChanged, 2, 5)
			if s.expect("history", "8:1") {
				s.messages(true, 2, 3, 4, 5)
				s.confirmHistory()
			}
			s.messages(false, 6)
			s.wait()
		},
	}
	r := tailScript(t, resets, "--after", "start", "--count", "6")
	wantCode(t, r, exitOK)
	if want := scriptLines(7, 3) + scriptLines(8, 2, 3, 4, 5, 6); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
	wantText(t, "stderr", r.stderr, "reset: cannot continue after 7:3: the numbering began anew", "(epoch_changed)", "going on after 8:1")

	r = tailScript(t, resets, "--after", "start", "--count", "6", "--fail-on-reset")
	wantCode(t, r, exitReset)

	live := script{
		func(s *scene) { s.expect("subscribe", "-"); s.confirm(9) },
		func(s *scene) {
			s.expect("subscribe", "7:9")
			s.confirm(50)
			s.reset(protocol.ReasonTrimmed, 20, 50)
			s.messages(false, 51)
			s.wait()
		},
	}
	r = tailScript(t, live, "--count", "1")
	wantCode(t, r, exitOK)
	if want := scriptLines(7, 51); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
	wantText(t, "stderr", r.stderr, "(trimmed)", "going on after 7:50")
}

func TestTail_APositionThatCannotBeContinuedExitsWith3(t *testing.T) {
	t.Parallel()
	for _, reason := range []protocol.Reason{protocol.ReasonTrimmed, protocol.ReasonEpochChanged, protocol.ReasonAhead} {
		r := tailScript(t, script{func(s *scene) {
			s.expect("subscribe", "7:40")
			s.confirm(50)
			s.reset(reason, 45, 50)
			s.messages(false, 51)
			s.wait()
		}}, "--after", "7:40", "--count", "1")
		wantCode(t, r, exitReset)
		wantText(t, "stderr", r.stderr, "cannot continue after 7:40", "("+string(reason)+")", "--after start")
		if r.stdout != "" {
			t.Errorf("printed %q", r.stdout)
		}
	}
}

// The numbering began anew and neither a reset nor the old messages arrived:
// only subscribing again tells how to go on.
func TestTail_NeverMixesTwoEpochs(t *testing.T) {
	t.Parallel()
	for name, signs := range map[string]func(s *scene){
		"a message": func(s *scene) { s.messages(false, 10) },
		"a ping":    func(s *scene) { s.ping(10) },
	} {
		r := tailScript(t, script{
			func(s *scene) {
				s.expect("subscribe", "-")
				s.confirm(9)
				s.epoch = 6
				s.messages(false, 10) // of a life long gone
				s.epoch = 8
				signs(s)
				s.wait()
			},
			func(s *scene) {
				s.expect("subscribe", "7:9")
				s.epoch = 8
				s.confirm(10)
				s.reset(protocol.ReasonEpochChanged, 1, 10)
				s.messages(false, 11)
				s.wait()
			},
		}, "--count", "1")
		wantCode(t, r, exitOK)
		if want := scriptLines(8, 11); r.stdout != want {
			t.Errorf("%s of a new epoch: printed %q, want %q", name, r.stdout, want)
		}
		wantText(t, "stderr", r.stderr, "the numbering began anew; connecting again")
	}
}

func TestTail_EndsWhenConnectingAgainWouldNotHelp(t *testing.T) {
	t.Parallel()
	for want, play := range map[string]func(s *scene){
		"refuses the subscription: unauthorized": func(s *scene) {
			s.expect("subscribe", "-")
			s.send(s.codec.AppendReject(nil, s.addr.Identifier, "unauthorized"))
			s.wait()
		},
		"ended the connection for good: unauthorized": func(s *scene) {
			s.send(s.codec.AppendDisconnect(nil, protocol.DisconnectUnauthorized, false))
			s.wait()
		},
		"refuses subscribe: no such thing (malformed)": func(s *scene) {
			s.expect("subscribe", "-")
			s.send(s.codec.AppendError(nil, "subscribe", s.addr.Identifier, "malformed", "no such thing"))
			s.wait()
		},
		"no Chronocast server": func(s *scene) {
			s.expect("subscribe", "-")
			s.send(s.codec.AppendConfirm(nil, s.addr.Identifier, nil))
			s.wait()
		},
	} {
		r := tailScript(t, script{play})
		wantCode(t, r, exitFailed)
		wantText(t, "stderr", r.stderr, want)
	}
	for want, h := range map[string]http.HandlerFunc{
		"answered 403: told by the server (forbidden)": func(w http.ResponseWriter, _ *http.Request) { fakeError(w, 403, "forbidden") },
		"does not speak chronocast-v1-json": func(w http.ResponseWriter, r *http.Request) {
			var up websocket.Upgrader
			if ws, err := up.Upgrade(w, r, nil); err == nil {
				ws.Close()
			}
		},
	} {
		r := cli(t, quickTail, nil, "s", "--server", serve(t, h))
		wantCode(t, r, exitFailed)
		wantText(t, "stderr", r.stderr, want)
	}
}

func TestTail_ComesBackAfterWhatPasses(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{
		func(s *scene) {
			s.expect("subscribe", "-")
			s.send(s.codec.AppendError(nil, "subscribe", s.addr.Identifier, "store_unavailable", "later"))
			s.wait()
		},
		func(s *scene) {
			s.send(s.codec.AppendDisconnect(nil, protocol.DisconnectServerRestart, true))
			s.wait()
		},
		func(s *scene) { s.send([]byte("{")); s.wait() },
		func(s *scene) { _ = s.ws.WriteMessage(websocket.BinaryMessage, []byte{1}); s.wait() },
		func(s *scene) {
			s.expect("subscribe", "-")
			s.confirm(9)
			s.send([]byte(`{"type":"something_new","identifier":"x"}`))
			s.send([]byte(`{"type":"confirm_subscription","identifier":"another"}`))
			s.messages(false, 10)
			s.wait()
		},
	}, "--count", "1")
	wantCode(t, r, exitOK)
	wantText(t, "stderr", r.stderr, "cannot serve the stream now: later", "still trying")
	if want := scriptLines(7, 10); r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
}

func TestTail_GivesUpWhenTold(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"now", "start"} {
		r := cli(t, quickTail, nil, "s", "--server", "127.0.0.1:1", "--retry-for", "30ms", "--after", after)
		wantCode(t, r, exitFailed)
		wantText(t, "stderr", r.stderr, "connection refused", "gave up after 30ms")
	}
}

// A connection on which nothing is heard any more is given up: no FIN, no RST.
func TestTail_ASilentConnectionIsStale(t *testing.T) {
	t.Parallel()
	url := script{
		func(s *scene) { s.expect("subscribe", "-"); s.confirm(9); s.wait() },
		func(s *scene) {
			s.expect("subscribe", "7:9")
			s.confirm(10)
			s.messages(true, 10)
			s.wait()
		},
	}.start(t)
	var stdout, stderr bytes.Buffer
	tl, code := parseTail([]string{scriptStream, "--server", url, "--count", "1"}, &stdout, &stderr)
	if code >= 0 {
		t.Fatal(stderr.String())
	}
	tl.dial.stale, tl.backoff = 50*time.Millisecond, quick
	code = tl.run(t.Context())
	wantCode(t, result{code, stdout.String(), stderr.String()}, exitOK)
	wantText(t, "stderr", stderr.String(), "nothing heard for 50ms")
}

// A server that pings but never answers a command is given up as well.
func TestTail_AnUnansweredCommandIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	url := script{
		func(s *scene) {
			s.expect("subscribe", "-")
			pings := time.NewTicker(5 * time.Millisecond)
			defer pings.Stop()
			for range pings.C {
				if s.ws.WriteMessage(websocket.TextMessage, s.codec.AppendPing(nil, 1, nil)) != nil {
					return
				}
			}
		},
		func(s *scene) { s.expect("subscribe", "-"); s.confirm(9); s.messages(false, 10); s.wait() },
	}.start(t)
	var stdout, stderr bytes.Buffer
	tl, code := parseTail([]string{scriptStream, "--server", url, "--count", "1"}, &stdout, &stderr)
	if code >= 0 {
		t.Fatal(stderr.String())
	}
	tl.patience, tl.backoff = 30*time.Millisecond, quick
	code = tl.run(t.Context())
	wantCode(t, result{code, stdout.String(), stderr.String()}, exitOK)
	wantText(t, "stderr", stderr.String(), "did not send what was asked for")
}

func TestTail_AnInterruptExitsWith130AndTellsThePosition(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	url := script{func(s *scene) {
		s.expect("subscribe", "-")
		s.confirm(9)
		s.messages(false, 10)
		s.wait()
	}}.start(t)
	printed, stdout := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int)
	go func() { code <- quickTail(ctx, []string{scriptStream, "--server", url}, nil, stdout, &stderr) }()
	got := make([]byte, len(scriptLines(7, 10)))
	if _, err := io.ReadFull(printed, got); err != nil || string(got) != scriptLines(7, 10) {
		t.Fatalf("printed %q, %v", got, err)
	}
	interrupt()
	if c := <-code; c != exitInterrupted {
		t.Errorf("exit code %d", c)
	}
	wantText(t, "stderr", stderr.String(), "ended at 7:10")
}

func TestTail_AnInterruptEndsItWhileNobodyTakesTheOutput(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	url := script{func(s *scene) { s.expect("subscribe", "-"); s.confirm(9); s.messages(false, 10); s.wait() }}.start(t)
	printed, stdout := io.Pipe()
	w := &announcingWriter{w: stdout, writing: make(chan struct{})}
	code := make(chan int)
	go func() { code <- quickTail(ctx, []string{scriptStream, "--server", url}, nil, w, io.Discard) }()
	<-w.writing
	interrupt()
	if c := <-code; c != exitInterrupted {
		t.Errorf("exit code %d", c)
	}
	printed.Close() // frees the write
}

// announcingWriter closes writing before its first write.
type announcingWriter struct {
	w       io.Writer
	once    sync.Once
	writing chan struct{}
}

func (a *announcingWriter) Write(p []byte) (int, error) {
	a.once.Do(func() { close(a.writing) })
	return a.w.Write(p)
}

func TestTail_EndsQuietlyWhenNobodyReads(t *testing.T) {
	t.Parallel()
	url := script{func(s *scene) { s.expect("subscribe", "-"); s.confirm(9); s.messages(false, 10); s.wait() }}.start(t)
	var stderr bytes.Buffer
	code := quickTail(t.Context(), []string{scriptStream, "--server", url, "--quiet"}, nil, brokenWriter{syscall.EPIPE}, &stderr)
	if code != exitOK || stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %q", code, stderr.String())
	}
}

func TestTail_PrintsJSONObjects(t *testing.T) {
	t.Parallel()
	r := tailScript(t, script{func(s *scene) {
		s.expect("subscribe", "-")
		s.confirm(9)
		msgs := []protocol.Message{{Offset: 10, Data: []byte("{\n\"html\": \"<b>&\\n\"\r\n}")}}
		text, _, _ := protocol.CutTextFrame(s.codec.Frames(nil, s.addr, 7, msgs, false)[0])
		s.send(text)
		s.wait()
	}}, "--count", "1", "--json")
	wantCode(t, r, exitOK)
	want := `{"stream":"chat/42","epoch":"7","offset":10,"data":{ "html": "<b>&\n"  }}` + "\n"
	if r.stdout != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
}
