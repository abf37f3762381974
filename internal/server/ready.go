package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/sequencer"
)

// refusal is a broadcast that the log did not take, with none taken since.
type refusal struct {
	at   time.Time
	code string
}

// refusalCounts is how long a refusal speaks against readiness. Afterwards only
// another attempt can tell.
const refusalCounts = 5 * time.Second

// noteOutcome notes how a broadcast ended. What was wrong with the request, or
// with its publisher, says nothing about the log.
func (s *Server) noteOutcome(err error) {
	if err == nil {
		if s.refusal.Load() != nil {
			s.refusal.Store(nil)
		}
		return
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, sequencer.ErrInvalid) {
		return
	}
	switch code := problemOf(err).code; code {
	case "disk_full", "busy", "unavailable":
		s.refusal.Store(&refusal{time.Now(), code})
	}
}

// refusing returns why broadcasts are refused at the moment, or nil.
func (s *Server) refusing() *problem {
	last := s.refusal.Load()
	if last == nil || time.Since(last.at) >= refusalCounts {
		return nil
	}
	return &problem{status: http.StatusServiceUnavailable, code: last.code, message: "the database did not take the last broadcast", retry: true}
}

func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	if s.stopping() {
		s.fail(w, r, &problem{status: http.StatusServiceUnavailable, code: "stopping", message: "the server is stopping", retry: true})
		return
	}
	if err := s.opts.Ready(ctx); err != nil {
		s.log.Warn("not ready", zap.Error(err))
		s.fail(w, r, &problem{status: http.StatusServiceUnavailable, code: "unavailable", message: "the database does not answer in time", retry: true})
		return
	}
	if p := s.refusing(); p != nil {
		s.fail(w, r, p)
		return
	}
	writeJSON(w, http.StatusOK, []byte(`{"status":"ready"}`))
}
