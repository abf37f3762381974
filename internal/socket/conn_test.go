package socket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/hub/hubtest"
	"github.com/chronocast/chronocast/protocol"
)

// TestConn_RFC6455 sends every case over a real socket to a server that echoes.
func TestConn_RFC6455(t *testing.T) {
	transports(t, Options{MaxMessageBytes: testLimit}, func(t *testing.T, r *rig) {
		for _, c := range rawCases() {
			p := r.open(echo)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = p.nc.Write(c.bytes) // the server may not want all of it
				if c.code == 0 {
					_, _ = p.nc.Write(frame(finBit|opClose, "\x03\xe8"))
				}
			}()
			got := decoded{pong: "-"}
			for {
				op, s, err := p.next()
				if err != nil {
					t.Errorf("%s: %v before the close frame", c.name, err)
					break
				}
				if op == opClose {
					got.code = int(s[0])<<8 | int(s[1])
					break
				}
				if op == opPong {
					got.pong = s
				} else {
					got.texts = append(got.texts, s)
				}
			}
			want := decoded{c.texts, c.pong, c.code}
			if want.code == 0 {
				want.code = CloseNormal
			}
			if r.e.opts.Goroutines {
				// What is queued when the client is at fault, or closes, is not sent.
				want.texts = want.texts[:min(len(want.texts), len(got.texts))]
				if got.pong == "-" {
					want.pong = "-"
				}
			}
			if got.String() != want.String() {
				t.Errorf("%s:\n got %.200s\nwant %.200s", c.name, got, want)
			}
			if rest, err := io.ReadAll(p.r); len(rest) > 0 || err != nil && !errors.Is(err, io.EOF) && !isReset(err) {
				t.Errorf("%s: %q, %v after the close frame", c.name, rest, err)
			}
			p.nc.Close()
			<-p.ended
			<-sent
		}
	})
}

func isReset(err error) bool { return strings.Contains(err.Error(), "reset by peer") }

// sink is a connection as the hub sees it.
type sink struct{ p *peer }

func (s sink) Push(frames [][]byte) bool { return s.p.conn.Push(frames) }
func (s sink) Room(f func())             { s.p.conn.Room(f) }
func (s sink) Cut(reason protocol.DisconnectReason) {
	last := fmt.Sprintf(`{"type":"disconnect","reason":%q,"reconnect":true}`, reason)
	s.p.conn.End(End{Frame: textFrame(last), Code: 1013, Grace: goodbyeTime, Drop: true})
}

// TestConn_IsASink holds both kinds to what the hub relies on.
func TestConn_IsASink(t *testing.T) {
	transports(t, Options{}, func(t *testing.T, r *rig) {
		hubtest.SinkSuite(t, func(t *testing.T) hubtest.Peer {
			p := r.open(echo)
			return hubtest.Peer{Sink: sink{p}, Next: func() ([]byte, bool) {
				op, s, err := p.next()
				return []byte(s), err == nil && op == opText
			}}
		})
	})
}

// TestConn_WhatIsWrittenIsWhole: with a client that takes little, elements of
// one and of many frames, pings, pongs and the end come out as whole frames, in
// order, and nothing is written over a frame that is partly out.
func TestConn_WhatIsWrittenIsWhole(t *testing.T) {
	transports(t, Options{QueueBytes: 128 << 10}, func(t *testing.T, r *rig) {
		for seed := range uint64(12) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			p := r.open(echo)
			if err := p.nc.SetReadBuffer(32 << 10); err != nil {
				t.Fatal(err)
			}
			var pushed []string
			done := make(chan struct{})
			go func() {
				defer close(done)
				for n := range 100 {
					var batch [][]byte
					var texts []string
					for range 1 + rnd.IntN(12) {
						var element []byte
						for range 1 + rnd.IntN(4) {
							s := fmt.Sprintf("%d %d %s", n, len(texts), repeat("x", rnd.IntN(1<<rnd.IntN(15))))
							texts = append(texts, s)
							element = append(element, textFrame(s)...)
						}
						batch = append(batch, element)
					}
					switch rnd.IntN(3) {
					case 0:
						p.conn.Ping(textFrame("ping"))
					case 1:
						p.send(frame(finBit|opPing, "?"))
					}
					for !p.conn.Push(batch) {
						room := make(chan struct{})
						p.conn.Room(func() { close(room) })
						<-room
					}
					pushed = append(pushed, texts...)
				}
				if seed%2 == 0 {
					p.conn.End(End{Frame: textFrame("cut"), Code: 1013, Grace: patience, Drop: true})
				} else {
					p.conn.End(End{Frame: textFrame("end"), Code: 1012, Grace: patience})
				}
			}()
			var got []string
			code := 0
			for code == 0 {
				op, s, err := p.next()
				if err != nil {
					t.Fatalf("seed %d, after %d texts: %v", seed, len(got), err)
				}
				switch {
				case op == opClose:
					code = int(s[0])<<8 | int(s[1])
				case op == opText && s != "ping":
					got = append(got, s)
				}
			}
			<-done
			last := got[len(got)-1]
			got = got[:len(got)-1]
			if seed%2 == 1 && (last != "end" || code != 1012 || len(got) != len(pushed)) || seed%2 == 0 && (last != "cut" || code != 1013) {
				t.Fatalf("seed %d: ended by %.20q and %d after %d of %d", seed, last, code, len(got), len(pushed))
			}
			for i, s := range got {
				if s != pushed[i] {
					t.Fatalf("seed %d: text %d is %.20q, want %.20q", seed, i, s, pushed[i])
				}
			}
			sum := len(last)
			for _, s := range got {
				sum += len(s)
			}
			eventually(t, "everything is counted", func() bool {
				frames, size := p.conn.Sent()
				return frames == uint64(len(got)+1) && size == uint64(sum)
			})
			p.nc.Close()
		}
	})
}

// TestConn_CommandsRunOneByOne: in the order sent, however they are cut, and
// the connection is still heard when the flood is over.
func TestConn_CommandsRunOneByOne(t *testing.T) {
	transports(t, Options{}, func(t *testing.T, r *rig) {
		var running atomic.Int32
		p := r.open(func(ctx context.Context, p *peer, text []byte) {
			if running.Add(1) != 1 {
				t.Error("two commands at once")
			}
			runtime.Gosched()
			echo(ctx, p, text)
			running.Add(-1)
		})
		const n = 3000
		go func() {
			var flood []byte
			for i := range n {
				flood = append(flood, frame(finBit|opText, fmt.Sprint(i))...)
			}
			for len(flood) > 0 {
				k := min(len(flood), 1+rand.IntN(5000))
				p.send(flood[:k])
				flood = flood[k:]
			}
		}()
		for i := range n {
			p.expect(fmt.Sprint(i))
		}
		p.send(frame(finBit|opText, "after"))
		p.expect("after")
	})
}

// TestConn_SlowCommandsHoldUpNobody: while hundreds of commands wait for
// something, others are still served at once.
func TestConn_SlowCommandsHoldUpNobody(t *testing.T) {
	transports(t, Options{}, func(t *testing.T, r *rig) {
		const n = poolBusy + 44
		var waiting atomic.Int32
		store := make(chan struct{})
		defer close(store)
		slow := func(context.Context, *peer, []byte) {
			waiting.Add(1)
			<-store
		}
		for range n {
			r.open(slow).send(frame(finBit|opText, "x"))
		}
		eventually(t, "all wait", func() bool { return waiting.Load() == n })
		quick := r.open(echo)
		for i := range 20 {
			quick.send(frame(finBit|opText, fmt.Sprint(i)))
			quick.expect(fmt.Sprint(i))
		}
	})
}

// TestConn_FloodIsBounded: a client that asks and does not read is not read
// either; it may have its queue and no more.
func TestConn_FloodIsBounded(t *testing.T) {
	transports(t, Options{QueueBytes: 64 << 10}, func(t *testing.T, r *rig) {
		var handled atomic.Int64
		p := r.open(func(ctx context.Context, p *peer, text []byte) {
			handled.Add(1)
			p.conn.Push([][]byte{textFrame(repeat("answer", 2000))})
		})
		if err := p.nc.SetReadBuffer(32 << 10); err != nil {
			t.Fatal(err)
		}
		flood := bytes.Repeat(frame(finBit|opText, "?"), 1000)
		for {
			if err := p.nc.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.nc.Write(flood); err != nil {
				break
			}
		}
		if n := handled.Load(); n > 2000 {
			t.Errorf("%d commands were taken from a client that reads none of the answers", n)
		}
		p.conn.mu.Lock()
		queued := p.conn.queued
		p.conn.mu.Unlock()
		if queued > 64<<10 {
			t.Errorf("%d bytes are queued", queued)
		}
		// It is heard again when it reads.
		before := handled.Load()
		go func() { _, _ = io.Copy(io.Discard, p.nc) }()
		eventually(t, "more commands are taken", func() bool { return handled.Load() > before+100 })
	})
}

// TestConn_RateOfCommands: more than a burst is taken at the rate.
func TestConn_RateOfCommands(t *testing.T) {
	transports(t, Options{}, func(t *testing.T, r *rig) {
		var handled atomic.Int64
		p := r.open(func(context.Context, *peer, []byte) { handled.Add(1) })
		began := time.Now()
		const n = commandBurst + commandRate/2
		p.send(bytes.Repeat(frame(finBit|opText, "?"), n))
		eventually(t, "all are handled", func() bool { return handled.Load() == n })
		if took := time.Since(began); took < 400*time.Millisecond {
			t.Errorf("%d commands were taken in %v", n, took)
		}
	})
}

// TestConn_FloodsShareARate: clients that go on after a burst get no more
// together than one alone.
func TestConn_FloodsShareARate(t *testing.T) {
	transports(t, Options{}, func(t *testing.T, r *rig) {
		const clients, each = 8, commandBurst + floodRate/8
		var handled atomic.Int64
		began := time.Now()
		for range clients {
			p := r.open(func(context.Context, *peer, []byte) { handled.Add(1) })
			p.send(bytes.Repeat(frame(finBit|opText, "?"), each))
		}
		eventually(t, "all are handled", func() bool { return handled.Load() == clients*each })
		if took := time.Since(began); took < 700*time.Millisecond {
			t.Errorf("%d commands of %d clients were taken in %v", clients*each, clients, took)
		}
	})
}

// TestConn_WelcomeBeforePing: nothing overtakes what was pushed first.
func TestConn_WelcomeBeforePing(t *testing.T) {
	transports(t, Options{}, func(t *testing.T, r *rig) {
		for range 50 {
			p := r.quiet(echo)
			p.conn.Push([][]byte{textFrame("welcome")})
			p.conn.Ping(textFrame("ping"))
			p.conn.Start()
			p.expect("welcome", "ping")
			p.nc.Close()
		}
	})
}

// TestConn_Stall: a client that takes nothing is told of in time, one that
// takes little by little is not, and an idle one neither.
func TestConn_Stall(t *testing.T) {
	transports(t, Options{WriteStall: 200 * time.Millisecond, QueueBytes: 64 << 10}, func(t *testing.T, r *rig) {
		idle, slow, stuck := r.open(echo), r.open(echo), r.open(echo)
		big := [][]byte{textFrame(repeat("x", 8<<20))}
		idle.conn.Push([][]byte{textFrame("hello")})
		began := time.Now()
		stuck.conn.Push(big)
		slow.conn.Push(big)
		go func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			b := make([]byte, 64<<10)
			for range tick.C {
				if _, err := slow.nc.Read(b); err != nil {
					return
				}
			}
		}()
		eventually(t, "the stall is noticed", func() bool { return stuck.stalled.Load() == 1 })
		if took := time.Since(began); took < 200*time.Millisecond {
			t.Errorf("after %v", took)
		}
		eventually(t, "it is closed", stuck.hasEnded)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("closed after %v", took)
		}
		if slow.stalled.Load() != 0 || idle.stalled.Load() != 0 {
			t.Error("a client that reads slowly, or has nothing to read, was taken for gone")
		}
		slow.nc.Close()
	})
}

// TestConn_WaysToEnd: whatever the client does, the handler hears of the end,
// once.
func TestConn_WaysToEnd(t *testing.T) {
	transports(t, Options{}, func(t *testing.T, r *rig) {
		for name, way := range map[string]func(p *peer){
			"FIN":         func(p *peer) { p.nc.Close() },
			"half closed": func(p *peer) { _ = p.nc.CloseWrite() },
			"RST":         func(p *peer) { _ = p.nc.SetLinger(0); p.nc.Close() },
			"close frame": func(p *peer) { p.send(frame(finBit|opClose, "\x03\xe8")) },
			"in a frame":  func(p *peer) { p.send(frame(finBit|opText, "hello")[:7]); p.nc.Close() },
			"in a message": func(p *peer) {
				p.send(frame(opText, "hello"))
				p.nc.Close()
			},
			"while a command runs": func(p *peer) { p.send(frame(finBit|opText, "wait")); _ = p.nc.SetLinger(0); p.nc.Close() },
			"aborted":              func(p *peer) { p.conn.Abort(); p.conn.Abort() },
			"ended without a word": func(p *peer) { p.conn.End(End{}) },
			"ended, and the client stays": func(p *peer) {
				p.conn.End(End{Frame: textFrame("bye"), Code: 1012, Grace: time.Second})
				_, _ = p.closed()
			},
			"with much queued": func(p *peer) {
				p.conn.Push([][]byte{textFrame(repeat("x", 8<<20))})
				p.nc.Close()
			},
			"cut with much queued, not reading": func(p *peer) {
				p.conn.Push([][]byte{textFrame(repeat("x", 8<<20))})
				p.conn.End(End{Frame: textFrame("cut"), Code: 1013, Grace: 300 * time.Millisecond, Drop: true})
			},
		} {
			t.Run(name, func(t *testing.T) {
				p := r.open(func(ctx context.Context, _ *peer, _ []byte) {
					select {
					case <-ctx.Done():
					case <-time.After(100 * time.Millisecond):
					}
				})
				way(p)
				eventually(t, "the end", p.hasEnded)
				p.nc.Close()
				if !p.conn.Push([][]byte{textFrame("x")}) {
					t.Error("a push on what is gone was refused")
				}
				called := make(chan struct{})
				p.conn.Room(func() { close(called) })
				<-called
			})
		}
	})
}

// TestConn_NobodyElsesFrames: connections come and go while others push to them.
// A descriptor's number is soon another connection's; were it closed by anybody
// but its loop, frames would go astray.
func TestConn_NobodyElsesFrames(t *testing.T) {
	transports(t, Options{QueueBytes: 32 << 10}, func(t *testing.T, r *rig) {
		var current [16]atomic.Pointer[peer]
		stop := make(chan struct{})
		var pushers sync.WaitGroup
		for range 3 {
			pushers.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					if p := current[n%len(current)].Load(); p != nil {
						p.conn.Push([][]byte{textFrame(fmt.Sprintf("%p %s", p, repeat("x", 200*(n%7))))})
						switch n % 97 {
						case 13:
							p.conn.Ping(textFrame(fmt.Sprintf("%p ping", p)))
						case 31:
							p.conn.Abort()
						case 57:
							p.conn.End(End{Frame: textFrame(fmt.Sprintf("%p end", p)), Code: 1012, Grace: time.Second, Drop: true})
						}
					}
				}
			})
		}
		for round := range 120 {
			p := r.open(echo)
			current[round%len(current)].Store(p)
			want := fmt.Sprintf("%p ", p)
			for range round % 9 {
				op, s, err := p.next()
				if err != nil || op == opClose {
					break
				}
				if !strings.HasPrefix(s, want) {
					t.Fatalf("%.40q reached the connection %s", s, want)
				}
			}
			if round%2 == 0 {
				_ = p.nc.SetLinger(0)
			}
			p.nc.Close()
		}
		close(stop)
		pushers.Wait()
	})
}

// TestConn_BackToBaseline: after a herd, a storm, a pause and churn no
// descriptor and no goroutine is left.
func TestConn_BackToBaseline(t *testing.T) {
	transports(t, Options{QueueBytes: 64 << 10}, func(t *testing.T, r *rig) {
		r.open(echo).nc.Close()
		before, goroutines := descriptors(t), runtime.NumGoroutine()
		for range 3 {
			peers := make([]*peer, 120)
			for i := range peers {
				peers[i] = r.open(echo)
			}
			if !r.e.opts.Goroutines && runtime.GOOS == "linux" {
				if n := runtime.NumGoroutine(); n > goroutines+20 {
					t.Errorf("%d goroutines with %d idle connections, %d without", n, len(peers), goroutines)
				}
			}
			for i, p := range peers {
				p.send(frame(finBit|opText, fmt.Sprint(i)))
			}
			for i, p := range peers {
				p.expect(fmt.Sprint(i))
			}
			storm := [][]byte{textFrame(repeat("x", 3000))}
			for range 100 {
				for _, p := range peers { // nobody reads
					if !p.conn.Push(storm) {
						p.conn.Room(func() {})
					}
				}
			}
			for i, p := range peers {
				switch i % 4 {
				case 0:
					p.conn.End(End{Code: 1013, Grace: time.Second, Drop: true})
				case 1:
					p.conn.Abort()
				case 2:
					p.send(frame(finBit|opText, "and gone"))
				}
				if i%3 == 0 {
					_ = p.nc.SetLinger(0)
				}
				p.nc.Close()
			}
			for _, p := range peers {
				eventually(t, "the end", p.hasEnded)
			}
		}
		eventually(t, "the goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines+runtime.GOMAXPROCS(0) })
		if n := descriptors(t); n > before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
	})
}

// descriptors returns how many are open, where the system tells.
func descriptors(t *testing.T) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestConn_NotOverTCP: a connection that is no TCP is served all the same.
func TestConn_NotOverTCP(t *testing.T) {
	r := newRig(t, Options{})
	ours, theirs := net.Pipe()
	p := &peer{t: t, message: echo, ended: make(chan struct{})}
	r.e.Open(&p.conn, ours, p)
	p.conn.Start()
	go func() { _, _ = theirs.Write(frame(finBit|opText, "hello")) }()
	got := make([]byte, 7)
	if _, err := io.ReadFull(theirs, got); err != nil || string(got[2:]) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	theirs.Close()
	<-p.ended
}
