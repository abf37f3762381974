package session

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/chronocast/chronocast/protocol"
)

// ReasonTooManyCommands tells a client that its commands are being slowed down.
const ReasonTooManyCommands = "too_many_commands"

// burst is how many seconds' worth of commands a client may send at once: one
// that comes back subscribes to everything it had.
const burst = 10

// pace lets a client send so many commands in a second. It is kept as the time
// at which all commands so far would have been sent at that rate.
type pace struct {
	until time.Time
	told  bool
}

// wait makes a client that sends too much wait for its turn. Nothing is lost:
// what it sends meanwhile is not read, and fills its own buffers. It is told so
// once.
func (s *Session) wait(ctx context.Context) error {
	if s.cfg.MaxCommandRate <= 0 {
		return ctx.Err()
	}
	now := time.Now()
	each := time.Second / time.Duration(s.cfg.MaxCommandRate)
	if s.pace.until.Before(now) {
		s.pace.until = now
	}
	s.pace.until = s.pace.until.Add(each)
	ahead := s.pace.until.Sub(now) - burst*time.Second
	if ahead <= 0 {
		return ctx.Err()
	}
	if !s.pace.told {
		s.pace.told = true
		s.cfg.Refused(ReasonTooManyCommands)
		s.cfg.Log.Warn("a client sends too many commands and is slowed down", zap.String("conn", s.id), zap.Int("a second", s.cfg.MaxCommandRate))
		if s.codec.Level() >= protocol.LevelChronocast {
			s.push(ctx, s.codec.AppendError(nil, "", "", ReasonTooManyCommands, "too many commands: they are run one by one, as fast as is allowed"))
		}
	}
	timer := time.NewTimer(ahead)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
