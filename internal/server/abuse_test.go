package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

// TestSocket_10000Subscriptions: bounded, and others do not wait for it.
func TestSocket_10000Subscriptions(t *testing.T) {
	s := newStack(t, func(o *Options) { o.MaxSubscriptions = 1000; o.MaxCommandRate = 5000 })
	greedy := s.dial(protocol.SubprotocolChronocast)
	done := make(chan struct{})
	var refused, confirmed int
	go func() {
		defer close(done)
		for range 10_000 {
			switch f := string(greedy.raw()); {
			case strings.Contains(f, "confirm_subscription"):
				confirmed++
			case strings.Contains(f, "too_many_subscriptions"):
				refused++
			default:
				t.Errorf("frame %s", f)
			}
		}
	}()
	for i := range 10_000 {
		greedy.send(command("subscribe", fmt.Sprintf("greedy/%d", i), ""))
	}
	other := s.dial(protocol.SubprotocolChronocast)
	other.subscribe("a")
	began := time.Now()
	s.publish("a", "1")
	other.messages(1)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("somebody else waited %v for a message", took)
	}
	<-done
	if confirmed != 1000 || refused != 9000 {
		t.Errorf("%d subscriptions and %d refusals", confirmed, refused)
	}
}

// TestSocket_TooManyCommandsAreSlowedDown: told once, all of them run.
func TestSocket_TooManyCommandsAreSlowedDown(t *testing.T) {
	s := newStack(t, func(o *Options) { o.MaxCommandRate = 100 })
	c := s.dial(protocol.SubprotocolChronocast)
	began := time.Now()
	const commands = 1100 // the first thousand at once, the rest in a second
	for range commands {
		c.send(`{"command":"unsubscribe","identifier":"{}"}`)
	}
	told := 0
	for answered := 0; answered < commands; {
		switch f := string(c.raw()); {
		case strings.Contains(f, "not_subscribed"):
			answered++
		case strings.Contains(f, "too_many_commands"):
			told++
		default:
			t.Fatalf("frame %s", f)
		}
	}
	if took := time.Since(began); told != 1 || took < 900*time.Millisecond {
		t.Errorf("told %d times, %d commands took %v", told, commands, took)
	}
}

// footprint is what the process holds.
type footprint struct {
	goroutines, files int
	heap              uint64
}

func footprintNow(t *testing.T) footprint {
	t.Helper()
	runtime.GC()
	runtime.GC() // pools keep what they have for one more round
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	open, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return footprint{runtime.NumGoroutine(), len(open), m.HeapAlloc}
}

// TestB134_TenThousandComeAndGo: whatever becomes of 10,000 clients, and of 1,000
// that are half there at once, their places are free and nothing of them stays.
func TestB134_TenThousandComeAndGo(t *testing.T) {
	s := newStack(t, secured(t, func(_ *auth.Config, o *Options) { o.MaxAddressConnections = 3000 }))
	request := "GET /cable HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%s\r\n"
	headers := []string{"", "Authorization: Bearer planted-wrong-key-00008\r\n", "X-JID: " + goodToken(t) + "\r\n"}
	begin := func(i int) net.Conn {
		nc, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Error(err)
			return nil
		}
		text := fmt.Sprintf(request, headers[i%len(headers)])
		switch i % 4 {
		case 0: // in the middle of the head
			_, _ = io.WriteString(nc, text[:len(text)/2])
		case 1: // before the answer is read, by a reset
			_, _ = io.WriteString(nc, text)
			_ = nc.(*net.TCPConn).SetLinger(0)
		case 2: // after the answer
			_, _ = io.WriteString(nc, text)
			_, _ = bufio.NewReader(nc).ReadString('\n')
		case 3: // in the middle of a frame
			_, _ = io.WriteString(nc, text)
			_, _ = bufio.NewReader(nc).ReadString('\n')
			_, _ = nc.Write([]byte{0x81, 0xfe, 0x10})
		}
		return nc
	}
	cycles := func(n int) {
		var wg sync.WaitGroup
		turns := make(chan struct{}, 16)
		for i := range n {
			turns <- struct{}{}
			wg.Go(func() {
				defer func() { <-turns }()
				if nc := begin(i); nc != nil {
					nc.Close()
				}
			})
		}
		wg.Wait()
	}
	free := func() {
		eventually(t, "all places are free", func() bool {
			s.srv.door.mu.Lock()
			defer s.srv.door.mu.Unlock()
			return len(s.srv.door.seats) == 0 && len(s.srv.door.each) == 0 && s.srv.Connections() == 0
		})
	}
	cycles(600) // what is made once is there then
	free()
	before := footprintNow(t)
	cycles(10_000)
	var half []net.Conn
	for i := range 1000 {
		if nc := begin(4 * i); nc != nil { // half a head, and no more
			half = append(half, nc)
		}
	}
	for _, nc := range half {
		nc.Close()
	}
	free()
	eventually(t, "nothing stays", func() bool {
		now := footprintNow(t)
		return now.goroutines <= before.goroutines+4 && now.files <= before.files+2 && now.heap <= before.heap+before.heap/20+1<<20
	})
	now := footprintNow(t)
	t.Logf("figure: before %+v, after 11,000 clients %+v", before, now)
}

// TestSocket_OneByteReader: who reads byte by byte is served from the log, and
// others do not wait for it.
func TestSocket_OneByteReader(t *testing.T) {
	s := newStack(t, func(o *Options) { o.QueueBytes = 32 << 10 })
	slow := s.dial(protocol.SubprotocolPlain)
	slow.subscribe("a")
	raw := slow.ws.NetConn()
	stop := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		b := make([]byte, 1)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := raw.Read(b); err != nil {
				return
			}
		}
	})
	quick := s.dial(protocol.SubprotocolChronocast)
	at := quick.subscribe("a")
	payload := `"` + strings.Repeat("x", 16<<10) + `"`
	var slowest time.Duration
	for i := range 100 {
		began := time.Now()
		s.publish("a", payload)
		ascending(t, at.Offset+uint64(i), quick.messages(1))
		slowest = max(slowest, time.Since(began))
	}
	if slowest > 2*time.Second {
		t.Errorf("somebody else waited %v for a message", slowest)
	}
	close(stop)
	raw.Close()
	reading.Wait()
}
