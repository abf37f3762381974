package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/chronocast/chronocast/internal/pgtest"
)

// What a client asks of one stream, and what it is told. The log is a counter:
// what each message holds is compared with the final log apart from this.
type streamOp struct{ kind string } // append, history, head, confirm

// model is one stream as its users may think of it: an append returns the next
// offset; history read to its end, and the head, tell how many there are. A
// confirmation names a position that exists: on many nodes it may be one that
// another node has just passed, and what lies between comes as live messages.
var model = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		last, told := state.(uint64), output.(uint64)
		switch input.(streamOp).kind {
		case "append":
			return told == last+1, last + 1
		case "confirm":
			return told <= last, last
		default:
			return told == last, last
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%s → %v", input.(streamOp).kind, output) },
}

// Linearizability of publish, history, head and confirmation per stream, over
// three nodes, while nodes and backends are killed. An append whose outcome
// nobody was told counts if, and where, the final log has it.
func TestNodes_PublishHistoryAndConfirmAreLinearizable(t *testing.T) {
	url := pgtest.Database(t)
	nodes := newNodes(t, 3, url, keepAll...)
	streams := []string{"lin/0", "lin/1", "lin/2"}
	began := time.Now()
	var mu sync.Mutex
	ops := map[string][]porcupine.Operation{}
	doubt := map[string]map[string]porcupine.Operation{} // stream → payload → append without answer
	for _, name := range streams {
		doubt[name] = map[string]porcupine.Operation{}
	}
	note := func(stream string, op porcupine.Operation) {
		mu.Lock()
		defer mu.Unlock()
		ops[stream] = append(ops[stream], op)
	}
	since := func() int64 { return int64(time.Since(began)) }

	// Somebody listens on every node, so that each has the streams in memory.
	for _, s := range nodes {
		ours(t, s.ws(), "start", streams...)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Duration(scale(8, 60))*time.Second)
	defer stop()
	var clients atomic.Int64
	var wg sync.WaitGroup
	for w := range 18 {
		stream := streams[w%len(streams)]
		wg.Go(func() {
			id := int(clients.Add(1)) - 1
			appended := false
			for i := 0; ctx.Err() == nil; i++ {
				s := nodes[rand.IntN(len(nodes))]
				op := porcupine.Operation{ClientId: id, Call: since()}
				kind := rand.IntN(10)
				if appended { // what one node has acknowledged, another one must tell at once
					kind = 5 + rand.IntN(4)
				}
				appended = false
				switch {
				case kind < 5:
					op.Input = streamOp{"append"}
					payload := fmt.Sprintf(`{"w":%d,"i":%d}`, w, i)
					at, answered := appendOnce(ctx, s, stream, payload)
					op.Return = since()
					if !answered {
						// It may happen at any later time, and this client goes on as another one.
						op.Return = math.MaxInt64
						mu.Lock()
						doubt[stream][payload] = op
						mu.Unlock()
						id = int(clients.Add(1)) - 1
						continue
					}
					op.Output = at
					appended = true
				case kind < 7:
					op.Input = streamOp{"history"}
					last, ok := readAll(ctx, s, stream)
					if !ok {
						continue
					}
					op.Output, op.Return = last, since()
				case kind < 9:
					op.Input = streamOp{"head"}
					var pg page
					if !tryGet(ctx, s, "/streams/"+pathOf(stream), &pg) {
						continue
					}
					op.Output, op.Return = pg.Last, since()
				default:
					op.Input = streamOp{"confirm"}
					last, ok := confirmOnce(t, s, stream)
					if !ok {
						continue
					}
					op.Output, op.Return = last, since()
				}
				note(stream, op)
			}
		})
	}
	admin := psql(t, url)
	kills := 0
	for ctx.Err() == nil {
		pause(time.Duration(600+rand.IntN(600)) * time.Millisecond)
		if rand.IntN(2) == 0 {
			s := nodes[rand.IntN(len(nodes))]
			s.kill()
			s.start()
		} else if _, err := admin.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'chronocast %' AND random() < 0.5`); err != nil {
			t.Fatal(err)
		}
		kills++
	}
	wg.Wait()
	total, unanswered := 0, 0
	for _, name := range streams {
		log := nodes[0].log(name)
		at := map[string]uint64{}
		for _, m := range log {
			if _, twice := at[m.data]; twice {
				t.Errorf("%s holds %s twice", name, m.data)
			}
			at[m.data] = m.Offset
		}
		for payload, op := range doubt[name] {
			unanswered++
			if offset, stored := at[payload]; stored {
				op.Output = offset
				ops[name] = append(ops[name], op)
			}
		}
		total += len(ops[name])
		switch porcupine.CheckOperationsTimeout(model, ops[name], time.Minute) {
		case porcupine.Illegal:
			t.Errorf("%s: %d operations that no order explains; %s", name, len(ops[name]), contradiction(ops[name]))
		case porcupine.Unknown:
			t.Errorf("%s: no verdict on %d operations", name, len(ops[name]))
		}
	}
	figure(t, "Porcupine accepts %d operations on %d streams over 3 nodes with %d kills of nodes and backends, %d publishes without answer", total, len(streams), kills, unanswered)
}

// contradiction finds two operations that show plainly what is wrong.
func contradiction(ops []porcupine.Operation) string {
	show := func(op porcupine.Operation) string {
		return fmt.Sprintf("%s → %v (%v to %v)", op.Input.(streamOp).kind, op.Output, time.Duration(op.Call), time.Duration(op.Return))
	}
	for _, a := range ops {
		for _, b := range ops {
			ka, kb := a.Input.(streamOp).kind, b.Input.(streamOp).kind
			ta, tb := a.Output.(uint64), b.Output.(uint64)
			if a.Return < b.Call && (tb < ta && kb != "confirm" || tb == ta && kb == "append") {
				return fmt.Sprintf("%s was over before %s began", show(a), show(b))
			}
			if ka == "append" && kb == "append" && a.Call != b.Call && ta == tb {
				return fmt.Sprintf("%s and %s", show(a), show(b))
			}
		}
	}
	return "no pair alone shows it"
}

// The model itself has to refuse what is wrong.
func TestNodes_TheModelRefusesStaleAndDoubledAnswers(t *testing.T) {
	op := func(client int, kind string, call, ret int64, told uint64) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: streamOp{kind}, Call: call, Return: ret, Output: told}
	}
	for name, c := range map[string]struct {
		ops []porcupine.Operation
		ok  bool
	}{
		"in order":             {[]porcupine.Operation{op(0, "append", 0, 1, 1), op(1, "history", 2, 3, 1), op(0, "append", 4, 5, 2), op(1, "confirm", 6, 7, 1)}, true},
		"together":             {[]porcupine.Operation{op(0, "append", 0, 9, 2), op(1, "append", 0, 9, 1), op(2, "head", 0, 9, 1)}, true},
		"stale history":        {[]porcupine.Operation{op(0, "append", 0, 1, 1), op(1, "history", 2, 3, 0)}, false},
		"stale head":           {[]porcupine.Operation{op(0, "append", 0, 1, 1), op(1, "head", 2, 3, 0)}, false},
		"place given twice":    {[]porcupine.Operation{op(0, "append", 0, 1, 1), op(1, "append", 2, 3, 1)}, false},
		"later, lower":         {[]porcupine.Operation{op(0, "append", 0, 1, 2), op(1, "append", 2, 3, 1)}, false},
		"confirmed, not there": {[]porcupine.Operation{op(0, "append", 0, 1, 1), op(1, "confirm", 2, 3, 2)}, false},
		"read, then gone":      {[]porcupine.Operation{op(0, "append", 0, 9, 1), op(1, "history", 1, 2, 1), op(1, "history", 3, 4, 0)}, false},
	} {
		if got := porcupine.CheckOperations(model, c.ops); got != c.ok {
			t.Errorf("%s: accepted is %v", name, got)
		}
	}
}

// appendOnce publishes under a key and says whether it was acknowledged.
func appendOnce(ctx context.Context, s *server, stream, payload string) (offset uint64, answered bool) {
	var got place
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, s.url(messagesPath(stream)), bodyOf(payload))
	if err != nil {
		return 0, false
	}
	req.Header.Set("Content-Type", "application/json")
	status, err := fetchJSON(s.http, req, &got)
	return got.Offset, err == nil && status == http.StatusCreated
}

// readAll reads the whole stream, in pages, and returns its last offset.
func readAll(ctx context.Context, s *server, stream string) (last uint64, ok bool) {
	for {
		var pg page
		if !tryGet(ctx, s, fmt.Sprintf("%s?after=%d&limit=500", messagesPath(stream), last), &pg) {
			return 0, false
		}
		for _, m := range pg.Messages {
			if m.Offset != last+1 {
				s.t.Errorf("history of %q: %d comes after %d", stream, m.Offset, last)
			}
			last = m.Offset
		}
		if !pg.More {
			return last, true
		}
	}
}

// confirmOnce subscribes on a socket of its own and returns the position it was
// told. A message that comes must be the next one.
func confirmOnce(t testing.TB, s *server, stream string) (last uint64, ok bool) {
	sock, _, err := tryDial(t, s.ws(), dialOptions{}, extended)
	if err != nil {
		return 0, false
	}
	defer sock.close()
	if sock.conn.WriteJSON(command{Command: "subscribe", Identifier: identifier(stream)}) != nil {
		return 0, false
	}
	var f frame
	got := sock.tryUntil(6*time.Second, func() bool {
		for _, c := range sock.control {
			if c.Type == "confirm_subscription" {
				f = c
				return true
			}
		}
		return false
	})
	if !got {
		return 0, false
	}
	return f.Streams[stream].Offset, true
}

func pathOf(stream string) string {
	return messagesPath(stream)[len("/streams/") : len(messagesPath(stream))-len("/messages")]
}

// tryGet reads JSON; false when the node did not answer with 200.
func tryGet(ctx context.Context, s *server, path string, into any) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(path), nil)
	if err != nil {
		return false
	}
	status, err := fetchJSON(s.http, req, into)
	return err == nil && status == http.StatusOK
}
