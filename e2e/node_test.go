package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// event is one line of a node script: t names its kind, the rest is kept.
type event struct {
	T   string `json:"t"`
	ID  string `json:"id"`
	raw json.RawMessage
	at  time.Time
}

func (e event) into(v any) { json.Unmarshal(e.raw, v) }

// node is a running script of e2e/js that speaks JSON lines: commands in,
// events out.
type node struct {
	t     testing.TB
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	errs  *tailBuffer
	done  chan struct{}

	mu      sync.Mutex // guards what follows
	events  []event    // all but messages
	seen    map[string]int
	got     map[string][]message // by handle
	changed signal
	ended   bool
}

// needPackages fails the test when the npm packages are not there.
func needPackages(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatal("node is missing: run `make test`, which installs what the tests need")
	}
	for _, p := range []string{"ws", "@rails/actioncable", "@anycable/core", "playwright-core"} {
		if _, err := os.Stat(filepath.Join("node_modules", p)); err != nil {
			t.Fatalf("the npm package %s is missing: run `make test`, which installs what the tests need", p)
		}
	}
}

// startNode runs a script. It ends with the test.
func startNode(t testing.TB, script string) *node {
	t.Helper()
	n := launchNode(t, script)
	t.Cleanup(n.stop)
	return n
}

func launchNode(t testing.TB, script string) *node {
	t.Helper()
	needPackages(t)
	n := &node{t: t, name: script, errs: &tailBuffer{keep: 16 << 10}, done: make(chan struct{}),
		seen: map[string]int{}, got: map[string][]message{}}
	n.cmd = exec.Command("node", filepath.Join("js", script))
	n.cmd.Stderr = n.errs
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if n.stdin, err = n.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatalf("start node: %v", err)
	}
	go n.read(out)
	return n
}

func (n *node) read(out io.Reader) {
	defer close(n.done)
	r := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if len(line) > 1 {
			n.take(line)
		}
		if err != nil {
			break
		}
	}
	n.cmd.Wait()
	n.mu.Lock()
	n.ended = true
	n.changed.wake()
	n.mu.Unlock()
}

func (n *node) take(line []byte) {
	e := event{raw: line, at: time.Now()}
	if err := json.Unmarshal(line, &e); err != nil {
		fmt.Fprintf(n.errs, "not JSON: %s", line)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.T == "m" {
		// [stream, epoch, offset, JSON text of the data, replayed]
		var batch struct {
			M [][5]any `json:"m"`
		}
		e.into(&batch)
		for _, m := range batch.M {
			got := message{}
			got.stream, _ = m[0].(string)
			got.Epoch, _ = m[1].(string)
			offset, _ := m[2].(float64)
			got.Offset = uint64(offset)
			got.data, _ = m[3].(string)
			got.replay, _ = m[4].(bool)
			n.got[e.ID] = append(n.got[e.ID], got)
		}
	} else {
		n.events = append(n.events, e)
	}
	n.changed.wake()
}

// do sends one command.
func (n *node) do(what string, args map[string]any) {
	n.t.Helper()
	line := map[string]any{"do": what}
	for k, v := range args {
		line[k] = v
	}
	b, err := json.Marshal(line)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.stdin.Write(append(b, '\n')); err != nil {
		n.t.Fatalf("%s: %v\n%s", n.name, err, n.errs)
	}
}

// call sends one command and returns what the script made of it.
func (n *node) call(within time.Duration, what string, args map[string]any, into any) {
	n.t.Helper()
	n.callFor(n.t, within, what, args, into)
}

// callFor is call on behalf of a test that shares the script with others.
func (n *node) callFor(t testing.TB, within time.Duration, what string, args map[string]any, into any) {
	t.Helper()
	id := fmt.Sprintf("call-%d", runs.Add(1))
	all := map[string]any{"do": what, "call": id}
	for k, v := range args {
		all[k] = v
	}
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.stdin.Write(append(b, '\n')); err != nil {
		t.Fatalf("%s: %v\n%s", n.name, err, n.errs)
	}
	var result struct {
		Value json.RawMessage `json:"value"`
		Error string          `json:"error"`
	}
	var found event
	if !n.tryUntil(within, func() bool {
		for i := len(n.events) - 1; i >= 0; i-- {
			if n.events[i].T == "result" && n.events[i].ID == id {
				found = n.events[i]
				return true
			}
		}
		return false
	}) {
		t.Fatalf("%s: %s was not done within %v\n%s", n.name, what, within, n.errs)
	}
	found.into(&result)
	if result.Error != "" {
		t.Fatalf("%s: %s: %s", n.name, what, result.Error)
	}
	if into != nil {
		if err := json.Unmarshal(result.Value, into); err != nil {
			t.Fatalf("%s: %s gave %s: %v", n.name, what, result.Value, err)
		}
	}
}

// tryUntil waits until cond, called under the lock, is true.
func (n *node) tryUntil(within time.Duration, cond func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		n.mu.Lock()
		ok, ended, changed := cond(), n.ended, n.changed.changed()
		n.mu.Unlock()
		if ok || ended {
			return ok
		}
		select {
		case <-changed:
		case <-deadline.C:
			return false
		}
	}
}

func (n *node) until(within time.Duration, what string, cond func() bool) {
	n.t.Helper()
	if !n.tryUntil(within, cond) {
		n.mu.Lock()
		defer n.mu.Unlock()
		counts := map[string]int{}
		for id, got := range n.got {
			counts[id] = len(got)
		}
		var last []string
		for _, e := range tailOf(n.events, 15) {
			last = append(last, strings.TrimSpace(string(e.raw)))
		}
		n.t.Fatalf("%s: not within %v: %s\nmessages: %v\nlast events:\n  %s\nstderr: %s",
			n.name, within, what, counts, strings.Join(last, "\n  "), n.errs)
	}
}

// wait returns the next event of a kind for a handle ("" for any). Each kind and
// handle has its own cursor.
func (n *node) wait(within time.Duration, kind, id string) event {
	n.t.Helper()
	return n.waitFor(within, kind, id, func(event) bool { return true })
}

func (n *node) waitFor(within time.Duration, kind, id string, match func(event) bool) event {
	n.t.Helper()
	var found event
	cursor := kind + "\x00" + id
	n.until(within, "event "+kind+" "+id, func() bool {
		for n.seen[cursor] < len(n.events) {
			e := n.events[n.seen[cursor]]
			n.seen[cursor]++
			if e.T == kind && (id == "" || e.ID == id) && match(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// subscribed waits until a stock client's handle is subscribed at this moment.
//
// Tests cut @anycable/core only then: its extended protocol closes a channel
// for good when the link ends while a subscription is waiting for its answer
// (1.1.7 hands no error on to the waiting ones), whatever the server does.
func (n *node) subscribed(id string, within time.Duration) {
	n.t.Helper()
	n.until(within, id+" is subscribed", func() bool { return n.subscribedLocked(id) })
}

func (n *node) isSubscribed(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.subscribedLocked(id)
}

func (n *node) subscribedLocked(id string) bool {
	for i := len(n.events) - 1; i >= 0; i-- {
		switch e := n.events[i]; {
		case e.T == "disconnect", e.ID == id && e.T == "disconnected":
			return false
		case e.ID == id && e.T == "connected":
			return true
		}
	}
	return false
}

// all returns the events of a kind so far.
func (n *node) all(kind, id string) []event {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []event
	for _, e := range n.events {
		if e.T == kind && (id == "" || e.ID == id) {
			out = append(out, e)
		}
	}
	return out
}

// messages returns what a handle has been given so far.
func (n *node) messages(id string) []message {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]message(nil), n.got[id]...)
}

func (n *node) awaitCount(id string, count int, within time.Duration) {
	n.t.Helper()
	n.until(within, fmt.Sprintf("%d messages on %s", count, id), func() bool { return len(n.got[id]) >= count })
}

// awaitLast waits until a handle's newest message is at or past the offset.
func (n *node) awaitLast(id string, offset uint64, within time.Duration) {
	n.t.Helper()
	n.until(within, fmt.Sprintf("offset %d on %s", offset, id), func() bool {
		got := n.got[id]
		return len(got) > 0 && got[len(got)-1].Offset >= offset
	})
}

func (n *node) stop() {
	n.stdin.Close()
	select {
	case <-n.done:
		return
	case <-time.After(3 * time.Second):
	}
	n.cmd.Process.Kill()
	<-n.done
}
