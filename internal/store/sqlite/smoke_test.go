package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/sequencer"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, filepath.Join(t.TempDir(), "a.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sq := sequencer.New(s, sequencer.Options{})
	rctx, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- sq.Run(rctx) }()
	defer func() { cancel(); <-done }()
	<-sq.Ready()
	for i := range 20 {
		p, err := sq.Append(ctx, sequencer.Request{{Stream: "a", Data: []byte(fmt.Sprint(i))}, {Stream: "b", Data: []byte("1"), Key: "x"}})
		if i > 0 && err != nil || err != nil {
			t.Log(err)
			break
		}
		t.Log(p)
	}
	pg, err := s.Range(ctx, "a", 0, 100, 1000)
	t.Log(pg, err)
	t.Log(s.Since(ctx, "a", 0))
	t.Log(s.Trim(ctx, history.Retention{Default: history.Limits{Count: 3}}))
	t.Log(s.Trim(ctx, history.Retention{Default: history.Limits{Count: 3}}))
	t.Log(s.Heads(ctx, []string{"a", "b", "c"}))
}
