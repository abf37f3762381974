package hub

import "sync"

// cache keeps pages read from the log and frames encoded for readers that
// catch up, so that many at similar positions share them. What is asked for
// moves on with each turn of the two generations; the rest is let go. What it
// returns is shared and must not be changed.
type cache struct {
	limit int // bytes of one generation

	mu         sync.Mutex // guards what follows
	young, old map[cacheKey]cached
	bytes      int // of young
}

// cacheKey names a page, or with a group the frames of messages from+1 to to.
// The life of the stream stands for its name, epoch and contents.
type cacheKey struct {
	life, from, to uint64
	group          groupKey
	replay         bool
}

type cached struct {
	value any
	bytes int
}

func (c *cache) get(k cacheKey) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.young[k]; ok {
		return e.value
	}
	e, ok := c.old[k]
	if !ok {
		return nil
	}
	delete(c.old, k)
	c.putLocked(k, e)
	return e.value
}

func (c *cache) put(k cacheKey, value any, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(k, cached{value, bytes + 200})
}

func (c *cache) putLocked(k cacheKey, e cached) {
	if e.bytes > c.limit {
		return
	}
	if c.bytes+e.bytes > c.limit {
		c.turnLocked()
	}
	if c.young == nil {
		c.young = make(map[cacheKey]cached)
	}
	c.bytes += e.bytes - c.young[k].bytes
	c.young[k] = e
}

// turn lets go of what was not asked for since the last turn.
func (c *cache) turn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turnLocked()
}

func (c *cache) turnLocked() { c.old, c.young, c.bytes = c.young, nil, 0 }
