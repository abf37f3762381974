package hub

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// queue hands items to a pool of workers, first in, first out.
type queue[T any] struct {
	mu    sync.Mutex // guards items
	items []T
	wake  chan struct{} // holds a token while items may be waiting
}

func (q *queue[T]) init() { q.wake = make(chan struct{}, 1) }

func (q *queue[T]) push(items ...T) {
	if len(items) == 0 {
		return
	}
	q.mu.Lock()
	q.items = append(q.items, items...)
	q.mu.Unlock()
	signal(q.wake)
}

func (q *queue[T]) pop() (item T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return item, false
	}
	var none T
	item, q.items[0] = q.items[0], none
	if q.items = q.items[1:]; len(q.items) == 0 {
		q.items = nil
	} else {
		signal(q.wake) // another worker may take the next
	}
	return item, true
}

// work runs f for the items until ctx ends.
func (q *queue[T]) work(ctx context.Context, f func(T, context.Context)) {
	for ctx.Err() == nil {
		if item, ok := q.pop(); ok {
			f(item, ctx)
			continue
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

// later calls functions at their time, from one goroutine: they must be quick.
type later struct {
	mu   sync.Mutex // guards due
	due  dueHeap
	wake chan struct{}
}

type due struct {
	at time.Time
	f  func()
}

type dueHeap []due

func (d dueHeap) Len() int           { return len(d) }
func (d dueHeap) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d dueHeap) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dueHeap) Push(x any)        { *d = append(*d, x.(due)) }
func (d *dueHeap) Pop() any {
	old := *d
	n := len(old) - 1
	x := old[n]
	old[n] = due{}
	*d = old[:n]
	return x
}

func (l *later) init() { l.wake = make(chan struct{}, 1) }

func (l *later) after(d time.Duration, f func()) {
	l.mu.Lock()
	at := time.Now().Add(d)
	first := len(l.due) == 0 || at.Before(l.due[0].at)
	heap.Push(&l.due, due{at, f})
	l.mu.Unlock()
	if first {
		signal(l.wake)
	}
}

// next returns what is due now, or else how long there is to wait.
func (l *later) next() (f func(), wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.due) == 0 {
		return nil, time.Hour
	}
	if wait = time.Until(l.due[0].at); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&l.due).(due).f, 0
}

func (l *later) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		f, wait := l.next()
		if f != nil {
			f()
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
		}
	}
}
