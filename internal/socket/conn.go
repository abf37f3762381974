package socket

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
	"unsafe"
)

// Conn is one connection. The zero Conn becomes one by [Engine.Open]; it must
// not be copied then. All methods may be called concurrently.
//
// A connection is open; then ending: what is queued is still written, nothing is
// added, and the client is not listened to any more; then mute: everything is
// written, and the client has a moment to close from its side; then closed.
type Conn struct {
	e *Engine
	h Handler

	poll   *poller  // that reads from it, or nil
	nc     net.Conn // nil when there is a poller
	fd     int32    // guarded by mu; -1 once it is closed
	events uint32   // that the poller waits for; guarded by mu

	mu      sync.Mutex // guards what follows
	out     *outbox    // nil while there is nothing in it
	queued  int        // bytes in out, and of what a writing goroutine holds
	extra   int        // of these, pings and pongs put in front: they are not what the bound is for
	sent    tally      // text frames written but for pings
	cancel  context.CancelFunc
	timer   *time.Timer
	since   time.Duration // of the last progress of a queue that is not empty; once ending, the last moment of the connection
	ending  bool
	mute    bool // nothing more is written
	closed  bool
	watched bool // by the poller
	bye     bool // the client has said goodbye: close once everything is written
	linger  bool // the client may take its time to close after the last frame
	greeted bool // something was written that was pushed, so a ping may come before what is queued
	writing bool // a goroutine is writing; it clears this under mu before it goes
	busy    bool // the input belongs to a worker, or is on its way to one
	parked  bool // busy, and waits for the queue to fall below the low-water mark
	deaf    bool // what comes in is thrown away; belongs to the owner of the input

	allowed int32  // commands that may be taken before a rest; belongs to the owner of the input
	counted uint32 // when they were counted last, in milliseconds
	eager   bool   // has sent a burst and goes on; belongs to the owner of the input
	in      *inbox // nil while there is nothing in it; belongs to the owner of the input
}

// inbox is what has come in and could not be handled yet.
type inbox struct {
	dec  Decoder
	text []byte // a message that waits for a worker
	any  bool   // there is one
	rest []byte // that follows, not decoded
}

// outbox is what could not be written yet.
type outbox struct {
	q     [][]byte // those before head are written
	head  int
	off   int    // of q[head], what is written of it
	ping  []byte // to be put in front, or nil
	pong  []byte
	first []byte // the ping that was put in front and is not written, or nil
	rooms []func()
}

// The rates at which commands are taken from one client.
const (
	commandBurst = 200    // at once, and
	commandPace  = 1000   // a second, are anybody's
	commandRate  = 10_000 // a second, for one client that goes on after a burst
	floodRate    = 4000   // a second, shared by several
	commandLeast = 50     // a second, for each of them however many they are
	turnCommands = 16     // before other connections have their turn

	// answersWaiting is how much may be queued for a client whose next command
	// is taken: one that asks without reading is not worth more work.
	answersWaiting = 32 << 10
)

// lingerTime is how long a client may take to close after our close frame, and
// goodbyeTime how long it may take to receive it when it was at fault or has
// closed itself.
const (
	lingerTime  = 2 * time.Second
	goodbyeTime = 2 * time.Second
)

// Open makes c the connection of nc, after the handshake, and takes nc over. It
// can be written to at once and reads from [Conn.Start] on.
func (e *Engine) Open(c *Conn, nc net.Conn, h Handler) {
	c.e, c.h, c.fd = e, h, -1
	c.allowed, c.counted = commandBurst, uint32(e.now().Milliseconds())
	e.tasks.Add(1)
	if tcp, ok := nc.(*net.TCPConn); ok {
		tuneSocket(tcp)
	}
	if !e.running.Load() || !e.poll.adopt(c, nc) {
		c.nc = nc
	}
}

// Start begins to read.
func (c *Conn) Start() {
	if c.poll != nil {
		c.poll.watch(c)
		return
	}
	c.e.tasks.Go(c.read)
}

// Push takes whole frames in order, all or none, without waiting: false when
// there is no room, which is never so when nothing is queued. Each element is
// one or more whole frames and must not be changed any more. A connection that
// is ending takes everything and writes nothing of it.
func (c *Conn) Push(frames [][]byte) bool {
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return true
	}
	if own := c.queued - c.extra; own > 0 && own+size > c.e.opts.QueueBytes {
		return false
	}
	if c.queued == 0 && c.poll != nil {
		if len(frames) == 1 {
			c.writeOneLocked(frames[0])
		} else {
			c.writeLocked(frames, 0)
		}
		return true
	}
	c.queueLocked(frames)
	c.wakeLocked()
	return true
}

// Room has f called once, by another goroutine, when less than a quarter of the
// bound is queued, or the connection is ending.
func (c *Conn) Room(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending || c.queued <= c.e.lowWater() {
		go f()
		return
	}
	o := c.outLocked()
	o.rooms = append(o.rooms, f)
}

// Ping has a frame written before everything that waits, so that a client whose
// connection is slow still hears from the server. One ping waits at most.
func (c *Conn) Ping(frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return
	}
	if c.queued == 0 && c.poll != nil {
		c.sent.forget(frame)
		c.writeOneLocked(frame)
		return
	}
	c.outLocked().ping = frame
	c.wakeLocked()
}

func (c *Conn) pong(payload []byte) {
	frame := controlFrame(opPong, payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return
	}
	if c.queued == 0 && c.poll != nil {
		c.writeOneLocked(frame)
		return
	}
	c.outLocked().pong = frame
	c.wakeLocked()
}

// End says how a connection ends.
type End struct {
	Frame []byte        // a last text frame, ready for the wire, or nil
	Code  int           // of the close frame; 0 sends none
	Grace time.Duration // for everything to be written
	Drop  bool          // what is queued is not written, but for the rest of a frame
}

// End begins the end of the connection, unless it has begun: false then.
func (c *Conn) End(e End) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endLocked(e)
}

func (c *Conn) endLocked(e End) bool {
	if c.ending {
		return false
	}
	c.ending = true
	if c.cancel != nil {
		c.cancel()
	}
	c.linger = e.Code != 0
	if e.Drop {
		c.dropLocked()
	}
	c.roomsLocked()
	if len(e.Frame) > 0 {
		c.queueLocked([][]byte{e.Frame})
	}
	if e.Code != 0 {
		c.queueLocked([][]byte{closeFrame(e.Code)})
	}
	c.deadlineLocked(e.Grace)
	c.unparkLocked()
	switch {
	case c.poll == nil:
		c.limitLocked()
		c.wakeLocked()
	case c.queued == 0:
		c.muteLocked()
	default:
		c.wakeLocked()
	}
	return true
}

// Abort closes the connection at once.
func (c *Conn) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abortLocked()
}

// Sent returns how many text frames were written, pings apart, and the bytes of
// their payload.
func (c *Conn) Sent() (frames, bytes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent.frames, c.sent.bytes
}

func (c *Conn) outLocked() *outbox {
	if c.out == nil {
		c.out = new(outbox)
	}
	return c.out
}

// queueLocked puts frames at the end of the queue.
func (c *Conn) queueLocked(frames [][]byte) {
	o := c.outLocked()
	if o.head > 0 && len(o.q)+len(frames) > cap(o.q) {
		o.q = slices.Delete(o.q, 0, o.head)
		o.head = 0
	}
	o.q = append(o.q, frames...)
	for _, f := range frames {
		c.queued += len(f)
	}
}

// frontLocked puts a waiting ping and pong before everything that is queued but
// for the rest of a frame, and returns their bytes.
func (c *Conn) frontLocked() (size int) {
	o := c.out
	if o == nil || o.pong == nil && (o.ping == nil || o.first != nil || !c.greeted) {
		return 0
	}
	at := o.head
	if o.off > 0 {
		b := o.q[at]
		switch end := frameEnd(b, o.off); end {
		case o.off: // a frame has just ended
			c.countLocked(b[:end])
			o.q[at], o.off = b[end:], 0
		case len(b):
			at++
		default:
			o.q = slices.Insert(o.q, at, b[:end])
			at++
			o.q[at] = b[end:]
		}
	}
	if o.ping != nil && o.first == nil && c.greeted {
		o.q = slices.Insert(o.q, at, o.ping)
		size += len(o.ping)
		o.first, o.ping = o.ping, nil
	}
	if o.pong != nil {
		o.q = slices.Insert(o.q, at, o.pong)
		size += len(o.pong)
		o.pong = nil
	}
	c.queued, c.extra = c.queued+size, c.extra+size
	return size
}

// passedLocked takes note that n bytes from the front of the queue are written.
func (c *Conn) passedLocked(n int) {
	if n == 0 {
		return
	}
	o := c.out
	c.queued -= n
	if !c.ending {
		c.since = c.e.now()
	}
	n += o.off
	for o.head < len(o.q) && n >= len(o.q[o.head]) {
		b := o.q[o.head]
		n -= len(b)
		o.q[o.head] = nil
		o.head++
		c.countLocked(b)
	}
	if o.off = n; o.head == len(o.q) {
		o.q, o.head = nil, 0
	}
}

// countLocked counts what was written whole.
func (c *Conn) countLocked(b []byte) {
	if o := c.out; o != nil && o.first != nil && unsafe.SliceData(b) == unsafe.SliceData(o.first) {
		o.first = nil
		c.extra -= len(b)
		return
	}
	if c.extra > 0 && b[0] == finBit|opPong {
		c.extra -= len(b)
		return
	}
	c.sent.add(b)
	c.greeted = true
}

// dropLocked forgets what is queued but for the rest of a frame that is partly
// written.
func (c *Conn) dropLocked() {
	o := c.out
	if o == nil {
		return
	}
	o.ping, o.pong = nil, nil
	rest, off := []byte(nil), o.off
	if off > 0 {
		rest = o.q[o.head][:frameEnd(o.q[o.head], off)]
		if len(rest) == off {
			c.countLocked(rest)
			rest, off = nil, 0
		}
	}
	for i, b := range o.q[o.head:] {
		c.queued -= len(b)
		switch { // what a writer holds, or has begun, is still to be told apart
		case i == 0 && rest != nil:
		case o.first != nil && unsafe.SliceData(b) == unsafe.SliceData(o.first):
			o.first = nil
			c.extra -= len(b)
		case c.extra > 0 && b[0] == finBit|opPong:
			c.extra -= len(b)
		}
	}
	c.queued += o.off
	o.q, o.head, o.off = nil, 0, off
	if rest != nil {
		o.q, c.queued = append(o.q, rest), c.queued+len(rest)-off
	}
}

// forgetLocked drops what is queued but for the close frame, for a client that
// has said goodbye.
func (c *Conn) forgetLocked() {
	if c.out == nil || len(c.out.q) == 0 {
		return
	}
	last := c.out.q[len(c.out.q)-1]
	begun := c.out.off > 0 && c.out.head == len(c.out.q)-1
	c.dropLocked()
	if !begun && last[0] == finBit|opClose {
		c.queueLocked([][]byte{last})
	}
}

// roomsLocked calls those that wait for room, and lets a parked client go on.
func (c *Conn) roomsLocked() {
	if !c.ending && c.queued > c.e.lowWater() {
		return
	}
	c.unparkLocked()
	if c.out == nil {
		return
	}
	for _, f := range c.out.rooms {
		go f()
	}
	c.out.rooms = nil
	if c.queued == 0 && c.out.ping == nil && c.out.pong == nil {
		c.out = nil
	}
}

func (c *Conn) unparkLocked() {
	if c.parked {
		c.parked = false
		c.e.pool.submit(c)
	}
}

// wakeLocked has what is queued written.
func (c *Conn) wakeLocked() {
	switch {
	case c.mute || c.closed:
	case c.poll != nil:
		if !c.waitsLocked() {
			c.flushLocked()
		}
	case !c.writing:
		c.writing = true
		c.e.tasks.Go(c.write)
	}
}

// muteLocked ends writing after everything was written.
func (c *Conn) muteLocked() {
	if c.mute || c.closed {
		return
	}
	c.mute = true
	if c.bye || !c.linger {
		c.abortLocked()
		return
	}
	c.halfLocked()
	c.deadlineLocked(lingerTime)
}

// deadlineLocked sets the last moment of an ending connection.
func (c *Conn) deadlineLocked(d time.Duration) {
	c.since = c.e.now() + d
	c.resetLocked(d)
}

// stallLocked begins to watch over a queue that the socket takes no more of.
// The timer that may be running is left alone: it puts its moment off when that
// has come, so a connection whose queue comes and goes pays nothing.
func (c *Conn) stallLocked() {
	if c.ending {
		return
	}
	c.since = c.e.now()
	if c.timer == nil {
		c.resetLocked(c.e.opts.WriteStall)
	}
}

func (c *Conn) resetLocked(d time.Duration) {
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.due)
		return
	}
	c.timer.Reset(d)
}

// due looks what time has brought.
func (c *Conn) due() {
	c.mu.Lock()
	now := c.e.now()
	stalled := false
	switch {
	case c.closed:
		c.timer = nil
	case c.ending && now >= c.since:
		c.abortLocked()
	case c.ending:
		c.resetLocked(c.since - now)
	case c.queued == 0:
		c.timer = nil
	case now < c.since+c.e.opts.WriteStall:
		c.resetLocked(c.since + c.e.opts.WriteStall - now)
	default:
		stalled = true
		c.timer = nil
	}
	c.mu.Unlock()
	if stalled {
		c.h.Stalled()
	}
}

// abortLocked has the owner of the descriptor close the connection.
func (c *Conn) abortLocked() {
	if c.closed {
		return
	}
	c.mute = true
	c.endLocked(End{Drop: true})
	c.severLocked()
}

// goneLocked forgets everything: the socket is closed, or about to be. It says
// whether a worker must be told, because none has the connection in hand.
func (c *Conn) goneLocked() (tell bool) {
	if c.closed {
		return false
	}
	c.ending, c.mute, c.closed = true, true, true
	if c.cancel != nil {
		c.cancel()
	}
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	c.unparkLocked()
	if c.out != nil {
		for _, f := range c.out.rooms {
			go f()
		}
	}
	c.out = nil
	if c.poll != nil {
		c.queued, c.extra = 0, 0
	}
	tell = !c.busy
	c.busy = true
	return tell
}

// ended says goodbye to the handler.
func (c *Conn) ended() {
	c.in = nil
	c.calm()
	c.h.Ended()
	c.e.tasks.Done()
}
