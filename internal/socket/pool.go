package socket

import (
	"runtime"
	"sync"
	"time"
)

// Bounds of the pool. A command may wait for the log, and for as long as it does
// it has a worker for itself; whoever only computes needs no more workers than
// there are processors.
const (
	// poolBusy is how many workers there are at most while commands come to an
	// end, poolStuck how many while none does.
	poolBusy  = 256
	poolStuck = 4096
	// poolTick is how long the next connection waits for a worker before there
	// are more of them.
	poolTick = 2 * time.Millisecond
)

// pool runs connections that have something to do. A connection is in it at
// most once.
type pool struct {
	tasks *sync.WaitGroup
	base  int // workers that stay

	mu       sync.Mutex // guards what follows
	wake     sync.Cond
	queue    []*Conn // those before head have been taken
	head     int
	workers  int
	idle     int
	taken    uint64 // connections taken from the queue, ever
	watching bool
	closed   bool
}

func newPool(tasks *sync.WaitGroup) *pool {
	p := &pool{tasks: tasks, base: runtime.GOMAXPROCS(0)}
	p.wake.L = &p.mu
	return p
}

// submit has c.turn called soon.
func (p *pool) submit(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, c)
	switch {
	case p.idle > 0:
		p.wake.Signal()
	case p.workers < p.base:
		p.growLocked(1)
	case !p.watching:
		p.watching = true
		taken := p.taken
		time.AfterFunc(poolTick, func() { p.watch(taken) })
	}
}

// watch adds workers while connections have to wait for one.
func (p *pool) watch(before uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.head == len(p.queue) {
		p.watching = false
		return
	}
	bound := poolBusy
	if p.taken == before {
		bound = poolStuck
	}
	p.growLocked(min(p.workers, bound-p.workers, len(p.queue)-p.head))
	taken := p.taken
	time.AfterFunc(poolTick, func() { p.watch(taken) })
}

func (p *pool) growLocked(n int) {
	for range n {
		p.workers++
		p.tasks.Go(p.work)
	}
}

// work runs connections. The workers there are beyond the base go when nothing
// waits.
func (p *pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.head == len(p.queue) {
			if p.workers > p.base || p.closed {
				p.workers--
				return
			}
			p.idle++
			p.wake.Wait()
			p.idle--
		}
		c := p.queue[p.head]
		p.queue[p.head] = nil
		if p.head++; p.head == len(p.queue) {
			p.queue, p.head = p.queue[:0], 0
			if cap(p.queue) > poolBusy {
				p.queue = nil // what a herd has needed
			}
		}
		p.taken++
		p.mu.Unlock()
		c.turn()
		p.mu.Lock()
	}
}

// close lets the workers go once nothing is left to do.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.wake.Broadcast()
}
