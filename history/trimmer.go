package history

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// TrimmerOptions are wishes; the zero value of each field is its documented
// default.
type TrimmerOptions struct {
	// Interval is the pause after everything was trimmed; default 1 s.
	Interval time.Duration
	// StepTimeout bounds one step; default 5 s.
	StepTimeout time.Duration

	Logger *zap.Logger // nil means none
}

// Trimmer removes what retention no longer keeps, in small steps with pauses
// between them, so that publishing goes on meanwhile.
type Trimmer struct {
	log       Log
	retention Retention
	opts      TrimmerOptions
	zap       *zap.Logger
}

// NewTrimmer returns a Trimmer that works once Run is called.
func NewTrimmer(log Log, r Retention, opts TrimmerOptions) *Trimmer {
	if opts.Interval <= 0 {
		opts.Interval = time.Second
	}
	if opts.StepTimeout <= 0 {
		opts.StepTimeout = 5 * time.Second
	}
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	return &Trimmer{log: log, retention: r, opts: opts, zap: opts.Logger.Named("trimmer")}
}

// The pause between two steps is as long as the step took, within these
// bounds: at most half of the writer's time goes to trimming.
const (
	minPause = time.Millisecond
	maxPause = 250 * time.Millisecond
)

// Run trims until ctx ends. It goes on after errors, more slowly while they
// last; only the first of a row is logged as a warning.
func (t *Trimmer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		began := time.Now()
		more, err := t.step(ctx)
		pause := t.opts.Interval
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failures++
			pause = t.opts.Interval * time.Duration(min(failures, 10))
			if failures == 1 {
				t.zap.Warn("trimming failed; it is tried again", zap.Error(err))
			} else {
				t.zap.Debug("trimming failed", zap.Int("failures", failures), zap.Error(err))
			}
		case failures > 0:
			t.zap.Info("trimming works again", zap.Int("failures", failures))
			failures = 0
			fallthrough
		default:
			if more {
				pause = min(max(time.Since(began), minPause), maxPause)
			}
		}
		timer.Reset(pause)
	}
}

func (t *Trimmer) step(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.opts.StepTimeout, errStepTimeout)
	defer cancel()
	return t.log.Trim(ctx, t.retention)
}

var errStepTimeout = errors.New("history: a trimming step took too long")
