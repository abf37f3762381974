package session

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/chronocast/chronocast/protocol"
)

const (
	pageTTL  = 24 * time.Hour // after the last subscription of the page ended
	maxPages = 1 << 16        // about 200 bytes each
)

// pages remembers how far pages have been served whose position stands in their
// identifier. A client that knows no positions sends the same identifier, with
// the position the page was rendered at, at every reconnect. What was sent after
// that position must not be sent again, and can only be known here: the page
// says who it is by a token of its own, the member page of the identifier.
//
// When a page that is forgotten comes back, after a restart, on another node,
// after more than ttl or when max others came meanwhile, it is served from the
// position in its identifier again.
type pages struct {
	ttl time.Duration
	max int
	now func() time.Time

	mu     sync.Mutex // guards what follows
	byHash map[pageHash]*list.Element
	order  *list.List // of *page, the one that joined or left last at the back
}

// pageHash is the digest of an identifier, which holds the page's token.
type pageHash [16]byte

type page struct {
	of   *pages
	hash pageHash
	// What follows is guarded by of.mu.
	sub  *subscription     // being served, or nil
	at   protocol.Position // up to where it has been served, once sub is nil
	left time.Time         // when that was
}

func newPages() *pages {
	return &pages{ttl: pageTTL, max: maxPages, now: time.Now, byHash: make(map[pageHash]*list.Element), order: list.New()}
}

// join is called with a new subscription, before its replay. When its page has
// been served before, the replay is to begin where that ended.
func (p *pages) join(identifier string, id protocol.Identifier, sub *subscription) {
	if id.Page == "" || sub.at() == nil || sub.next != nil {
		return
	}
	sum := sha256.Sum256([]byte(identifier))
	hash := pageHash(sum[:16])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetLocked(p.max)
	e := p.byHash[hash]
	if e == nil {
		p.forgetLocked(p.max - 1)
		e = p.order.PushBack(&page{of: p, hash: hash})
		p.byHash[hash] = e
	} else {
		at := e.Value.(*page).servedLocked()
		sub.past.at = &at
		p.order.MoveToBack(e)
	}
	sub.past.page = e.Value.(*page)
	sub.past.page.sub = sub
}

// servedLocked is up to where the page has been served. The link of a
// subscription that is still there may be dead: its client is here.
func (pg *page) servedLocked() protocol.Position {
	if pg.sub != nil {
		return pg.sub.Sent()
	}
	return pg.at
}

// leave is called once nothing more is sent on the subscription.
func (pg *page) leave(sub *subscription) { pg.mark(sub, sub.Sent()) }

// mark notes up to where the subscription has served the page.
func (pg *page) mark(sub *subscription, at protocol.Position) {
	p := pg.of
	p.mu.Lock()
	defer p.mu.Unlock()
	if pg.sub != sub {
		return // another one serves the page by now
	}
	pg.at, pg.sub, pg.left = at, nil, p.now()
	if e := p.byHash[pg.hash]; e != nil && e.Value == pg {
		p.order.MoveToBack(e)
	}
}

// forgetLocked lets go of what is too old, and of the oldest beyond room.
func (p *pages) forgetLocked(room int) {
	old := p.now().Add(-p.ttl)
	for e := p.order.Front(); e != nil; e = p.order.Front() {
		pg := e.Value.(*page)
		if p.order.Len() <= room && (pg.sub != nil || pg.left.After(old)) {
			return
		}
		p.order.Remove(e)
		delete(p.byHash, pg.hash)
	}
}
