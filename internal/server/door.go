package server

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/protocol"
)

// guest is a connection that stays, as the door sees it.
type guest interface {
	// dismiss ends the connection. It does not wait.
	dismiss(reason protocol.DisconnectReason, reconnect bool)
	// sid is the id the client was told.
	sid() string
	// follows says whether it receives the stream.
	follows(stream string) bool
	// spoke says whether the client has sent anything yet.
	spoke() bool
	// due says whether a permission of it has ended, and renew asks for it
	// again; renew may wait.
	due(now time.Time) bool
	renew(now time.Time)
}

// door knows everybody who stays: how many there may be, and how long each.
type door struct {
	proxies      auth.Proxies
	max, maxEach int           // connections, in all and of one address; 0 is no limit
	firstCommand time.Duration // the client has to say something

	mu    sync.Mutex // guards what follows; never held across a call of a guest that waits
	seats map[*seat]struct{}
	each  map[netip.Prefix]int
}

// seat is one place behind the door.
type seat struct {
	network netip.Prefix

	// guarded by door.mu
	guest    guest // nil until it is connected
	who      *auth.Identity
	since    time.Time
	renewing bool
}

// enter takes a place for the client of r.
func (d *door) enter(r *http.Request) (*seat, error) {
	s := &seat{since: time.Now()}
	if addr, err := d.proxies.Address(r); err == nil {
		s.network = auth.Network(addr)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.max > 0 && len(d.seats) >= d.max {
		return nil, errFull
	}
	if d.maxEach > 0 && d.each[s.network] >= d.maxEach {
		return nil, auth.ErrTooManyConnections
	}
	if d.seats == nil {
		d.seats, d.each = make(map[*seat]struct{}), make(map[netip.Prefix]int)
	}
	d.seats[s] = struct{}{}
	if d.maxEach > 0 {
		d.each[s.network]++
	}
	return s, nil
}

// take notes who sits there.
func (d *door) take(s *seat, g guest, who *auth.Identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.guest, s.who = g, who
}

// leave frees the place. It may be called again.
func (d *door) leave(s *seat) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, there := d.seats[s]; !there {
		return
	}
	delete(d.seats, s)
	if d.maxEach > 0 {
		if d.each[s.network]--; d.each[s.network] <= 0 {
			delete(d.each, s.network)
		}
	}
}

// watchEvery is how long after its end a permission may still be used.
const watchEvery = time.Second

// watch ends what has had its time, until ctx ends. It goes by the clock on the
// wall, as tokens do: a machine that was asleep catches up at once.
func (s *Server) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.lookAround(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// lookAround looks once after everybody.
func (s *Server) lookAround(now time.Time) {
	d := &s.door
	now = now.Round(0)
	var over, silent []guest
	d.mu.Lock()
	for place := range d.seats {
		g := place.guest
		switch {
		case g == nil:
		case place.who.Over(now):
			over = append(over, g)
		case d.firstCommand > 0 && now.Sub(place.since.Round(0)) > d.firstCommand && !g.spoke():
			silent = append(silent, g)
		case !place.renewing && g.due(now):
			place.renewing = true
			// The guest holds a task until it has left: one more may be added.
			s.tasks.Go(func() {
				g.renew(now)
				d.mu.Lock()
				place.renewing = false
				d.mu.Unlock()
			})
		}
	}
	d.mu.Unlock()
	for _, g := range over {
		g.dismiss(protocol.DisconnectTokenExpired, true)
	}
	for _, g := range silent {
		g.dismiss(protocol.DisconnectIdleTimeout, true)
	}
}

// Disconnection names connections to be ended: those of a user, one by its id,
// those that follow a stream, or those with AnyCable's identifiers.
type Disconnection struct {
	Sub        string `json:"sub,omitempty"`
	SID        string `json:"sid,omitempty"`
	Stream     string `json:"stream,omitempty"`
	Identifier string `json:"identifier,omitempty"`
	Reconnect  bool   `json:"reconnect"`
}

// Disconnect ends every connection of this node that d names and returns how
// many there were.
func (s *Server) Disconnect(d Disconnection) int {
	var named []guest
	s.door.mu.Lock()
	for place := range s.door.seats {
		g, who := place.guest, place.who
		switch {
		case g == nil:
		case d.SID != "" && g.sid() == d.SID,
			d.Sub != "" && who != nil && (who.Subject == d.Sub || who.Ext == d.Sub),
			d.Identifier != "" && who != nil && who.Ext == d.Identifier,
			d.Stream != "" && g.follows(d.Stream):
			named = append(named, g)
		}
	}
	s.door.mu.Unlock()
	for _, g := range named {
		g.dismiss(protocol.DisconnectRemote, d.Reconnect)
	}
	return len(named)
}

var _ guest = (*conn)(nil)

func (c *conn) sid() string                { return c.id }
func (c *conn) follows(stream string) bool { return c.sess.Follows(stream) }
func (c *conn) spoke() bool                { return c.sess.Spoke() }
func (c *conn) due(now time.Time) bool     { return c.sess.Due(now) }

func (c *conn) renew(now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), renewTime)
	defer cancel()
	c.sess.Renew(ctx, now)
}

// renewTime bounds the renewal of all permissions of a connection. A connection
// that has ended takes every answer at once.
const renewTime = time.Minute
