package history

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// steps is a Log of which only Trim is used; it notes when that was called.
type steps struct {
	Log
	trim func(ctx context.Context, n int) (bool, error)
	r    Retention
	at   []time.Duration
}

func (s *steps) Trim(ctx context.Context, r Retention) (bool, error) {
	s.r = r
	return s.trim(ctx, len(s.at))
}

func runTrimmer(t *testing.T, s *steps, o TrimmerOptions, d time.Duration) {
	t.Helper()
	began := time.Now()
	inner := s.trim
	s.trim = func(ctx context.Context, n int) (bool, error) {
		s.at = append(s.at, time.Since(began))
		return inner(ctx, n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	r := Retention{Default: Limits{Count: 7}}
	if err := NewTrimmer(s, r, o).Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
	if !reflect.DeepEqual(s.r, r) {
		t.Errorf("asked for %+v", s.r)
	}
}

func TestTrimmer_LeavesTheWriterHalfOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steps{trim: func(_ context.Context, n int) (bool, error) {
			time.Sleep(10 * time.Millisecond)
			return n < 3, nil // four steps, then nothing for a while
		}}
		runTrimmer(t, s, TrimmerOptions{}, 2*time.Second)
		ms := time.Millisecond
		if want := []time.Duration{0, 20 * ms, 40 * ms, 60 * ms, 1070 * ms}; !reflect.DeepEqual(s.at, want) {
			t.Errorf("steps at %v, want %v", s.at, want)
		}
	})
}

func TestTrimmer_GoesOnAfterErrorsAndTellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steps{trim: func(_ context.Context, n int) (bool, error) {
			if n < 4 {
				return false, errors.New("no disk")
			}
			return false, nil
		}}
		core, logs := observer.New(zap.InfoLevel)
		runTrimmer(t, s, TrimmerOptions{Interval: time.Minute, Logger: zap.New(core)}, 12*time.Minute+time.Second)
		m := time.Minute
		if want := []time.Duration{0, m, 3 * m, 6 * m, 10 * m, 11 * m, 12 * m}; !reflect.DeepEqual(s.at, want) {
			t.Errorf("steps at %v, want %v", s.at, want)
		}
		if logs.Len() != 2 || logs.FilterLevelExact(zap.WarnLevel).Len() != 1 {
			t.Errorf("logged %v", logs.All())
		}
	})
}

func TestTrimmer_AStepHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &steps{trim: func(ctx context.Context, _ int) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}}
		runTrimmer(t, s, TrimmerOptions{StepTimeout: time.Second}, 3500*time.Millisecond)
		if len(s.at) != 2 {
			t.Errorf("steps at %v", s.at)
		}
	})
}
