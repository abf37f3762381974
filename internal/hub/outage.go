package hub

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// outageAfter is how long every read of the log must have failed for clients to
// be told: one connection that breaks is nobody's business.
const outageAfter = time.Second

// outage follows whether the log answers.
type outage struct {
	mu    sync.Mutex // guards what follows
	since time.Time  // the first failure after the last success; zero while the log answers
	told  bool       // this one counts as an outage
	count uint64     // outages so far
}

// Outage returns 0 while the log answers, and otherwise the number of the
// outage that is under way, the first being 1.
func (h *Hub) Outage() uint64 {
	o := &h.outage
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.told {
		return 0
	}
	return o.count
}

// reached notes how a read of the log ended; a line is logged only when that
// changes.
func (h *Hub) reached(err error) {
	if err != nil {
		h.n.logErrors.Add(1)
		if h.ctx.Err() != nil {
			return
		}
	}
	switch since, changed := h.outage.note(err == nil, time.Now()); {
	case changed && err != nil:
		h.logger.Warn("log unavailable, retrying", zap.Error(err))
	case changed:
		h.logger.Info("log answers again", zap.Duration("after", since.Round(time.Millisecond)))
	}
}

// note returns whether the log began or ceased to answer with this read, and
// for how long it had not.
func (o *outage) note(answers bool, now time.Time) (silent time.Duration, changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case answers && o.since.IsZero():
		return 0, false
	case answers:
		silent = now.Sub(o.since)
		o.since, o.told = time.Time{}, false
		return silent, true
	case o.since.IsZero():
		o.since = now
		return 0, true
	case !o.told && now.Sub(o.since) >= outageAfter:
		o.told = true
		o.count++
	}
	return 0, false
}
