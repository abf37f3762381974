package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	clientjs "github.com/chronocast/chronocast/client-js"
	"github.com/chronocast/chronocast/history"
	"github.com/chronocast/chronocast/internal/auth"
	"github.com/chronocast/chronocast/internal/demo"
	"github.com/chronocast/chronocast/internal/hub"
	"github.com/chronocast/chronocast/internal/server"
	"github.com/chronocast/chronocast/protocol"
	"github.com/chronocast/chronocast/sequencer"
)

func runServe(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	c, err := parseConfig(args, environment)
	if errors.Is(err, flag.ErrHelp) {
		printServeHelp(stdout)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "chronocast serve: %v\n\nchronocast help serve lists the flags.\n", err)
		return exitUsage
	}
	if err := c.serve(ctx, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "chronocast serve: %v\n", err)
		return exitFailed
	}
	return exitOK
}

// serve runs the server until ctx ends.
func (c config) serve(ctx context.Context, stdout, stderr io.Writer) (err error) {
	log, err := newLogger(c, stderr)
	if err != nil {
		return err
	}
	authorizer, err := c.Security.authorizer(log)
	if err != nil {
		return err
	}
	if policy, ok := authorizer.(*auth.Policy); ok {
		defer policy.Close()
	}
	// The address first: whoever starts a second server by mistake is told
	// before anything is touched.
	listener, err := listen(ctx, c.Addr)
	if err != nil {
		return err
	}
	defer listener.Close()
	var profiled net.Listener
	if c.Pprof != "" {
		if profiled, err = listen(ctx, c.Pprof); err != nil {
			return fmt.Errorf("--pprof: %w", err)
		}
		defer profiled.Close()
	}
	raiseFileLimit(log)
	store, err := c.open(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	fanout := hub.New(store, hub.Options{Shared: c.isPostgres(), Logger: log})
	var srv *server.Server // there before the background runs
	background, err := store.Background(fanout, func(text []byte) { srv.Announced(text) })
	if err != nil {
		return err
	}
	var committed tally
	seq := sequencer.New(store, sequencer.Options{Logger: log, Committed: func(batches []protocol.Batch) {
		fanout.Publish(batches)
		committed.add(batches)
	}})
	trimmer := history.NewTrimmer(store, c.retention(), history.TrimmerOptions{Logger: log})
	client := clientjs.Handler()
	pages := map[string]http.Handler{}
	for _, pattern := range clientjs.Paths() {
		pages[pattern] = client
	}
	front := []func(context.Context) error{}
	if c.Demo && !c.Security.secured() {
		d := demo.New(seq.Append, demo.Options{Logger: log})
		pages["/"], pages["/demo/"] = d.Handler(), d.Handler()
		front = append(front, d.Run)
	}
	options := server.Options{
		Hub:        fanout,
		Authorizer: authorizer,
		Announce:   store.Tell(),
		Appender:   seq,
		Ready:      store.Ready,
		Pages:      pages,
		Samples:    func() []server.Sample { return append(samples(fanout, &committed), store.Samples()...) },

		MaxPayloadBytes:    int(c.MaxPayload),
		MaxBroadcastBytes:  int(c.MaxBroadcast),
		MaxBroadcastItems:  c.MaxBroadcasts,
		MaxFrameBytes:      int(c.MaxFrame),
		MaxIdentifierBytes: int(c.MaxIdentifier),
		MaxSubscriptions:   c.MaxSubscriptions,
		MaxPage:            c.MaxPage,
		MaxPageBytes:       int(c.MaxPageBytes),
		QueueBytes:         int(c.Queue),
		CommandTimeout:     c.CommandTimeout,
		PublishTimeout:     c.PublishTimeout,
		PingEvery:          c.PingInterval,
		WriteStall:         c.WriteStall,
		ShutdownTimeout:    c.ShutdownTimeout,
		Goroutines:         c.Transport == "goroutines",
		Log:                log,
	}
	if err := c.Security.apply(&options); err != nil {
		return err
	}
	srv = server.New(options)
	if profiled != nil {
		front = append(front, func(ctx context.Context) error { return profiles(ctx, profiled, log) })
	}
	front = append(front, func(ctx context.Context) error {
		select {
		case <-seq.Ready(): // it would refuse the first requests
		case <-ctx.Done():
		}
		return srv.Run(ctx, listener)
	})

	fmt.Fprintf(stdout, "Chronocast is listening on http://%s/ (database %s)\n", listener.Addr(), store)
	log.Info("serving", zap.Stringer("addr", listener.Addr()), zap.Stringer("database", store))
	err = runStages(ctx,
		front,
		[]func(context.Context) error{seq.Run},
		append(background, fanout.Run, trimmer.Run),
	)
	log.Info("ended", zap.Error(err))
	return err
}

// runStages runs every function until ctx ends or one of them returns. Then
// the stages end one after another: a stage is told to once all functions of
// the stage before it have returned. What comes in first stops first, and what
// others rely on stops last.
func runStages(ctx context.Context, stages ...[]func(context.Context) error) error {
	over, end := context.WithCancel(ctx)
	defer end()
	type stage struct {
		group *errgroup.Group
		stop  context.CancelFunc
	}
	running := make([]stage, len(stages))
	for i := len(stages) - 1; i >= 0; i-- {
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		group := new(errgroup.Group)
		for _, f := range stages[i] {
			group.Go(func() error {
				defer end()
				return f(own)
			})
		}
		running[i] = stage{group, stop}
	}
	<-over.Done()
	var errs []error
	for _, s := range running {
		s.stop()
		errs = append(errs, s.group.Wait())
	}
	return errors.Join(errs...)
}

// listen opens the address to serve on.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("the address %s is in use: stop the program that uses it, or choose another one with --addr", addr)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening on %s is not permitted: choose a port above 1023 with --addr", addr)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return l, nil
}

// newLogger writes lines for people to w.
func newLogger(c config, w io.Writer) (*zap.Logger, error) {
	level, err := c.level()
	if err != nil {
		return nil, err
	}
	encoder := zap.NewProductionEncoderConfig()
	encoder.EncodeTime = zapcore.ISO8601TimeEncoder
	encoder.EncodeDuration = zapcore.StringDurationEncoder
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(encoder), zapcore.Lock(zapcore.AddSync(w)), level)), nil
}

// tally counts what the sequencer has committed.
type tally struct{ commits, messages atomic.Uint64 }

func (t *tally) add(batches []protocol.Batch) {
	n := 0
	for i := range batches {
		n += len(batches[i].Messages)
	}
	t.messages.Add(uint64(n))
	t.commits.Add(1)
}

// samples tells what the layers behind the server have counted, for /metrics.
func samples(h *hub.Hub, t *tally) []server.Sample {
	n := h.Stats()
	return []server.Sample{
		{Name: "commits_total", Help: "Transactions that committed broadcasts.", Counter: true, Value: t.commits.Load()},
		{Name: "messages_committed_total", Help: "Broadcasts committed by them.", Counter: true, Value: t.messages.Load()},
		{Name: "streams", Help: "Streams kept in memory, with and without subscribers.", Value: uint64(n.Streams)},
		{Name: "window_bytes", Help: "Payload bytes of recent messages kept in memory.", Value: uint64(n.WindowBytes)},
		{Name: "deliveries_total", Help: "Messages queued for a subscription, live and replayed.", Counter: true, Value: n.Delivered},
		{Name: "encodes_total", Help: "Times messages were encoded into frames.", Counter: true, Value: n.Encodes},
		{Name: "lags_total", Help: "Times a subscription fell behind and was served from the log.", Counter: true, Value: n.Lagged},
		{Name: "replays_total", Help: "Replays begun.", Counter: true, Value: n.Replays},
		{Name: "resets_total", Help: "Subscriptions told that they cannot be continued.", Counter: true, Value: n.Resets},
		{Name: "hints_dropped_total", Help: "News of commits dropped because too much waited; read from the log instead.", Counter: true, Value: n.Overflowed},
		{Name: "gaps_filled_total", Help: "Gaps closed by reading the log.", Counter: true, Value: n.GapsFilled},
		{Name: "log_reads_total", Help: "Reads of the log for subscribers.", Counter: true, Value: n.LogReads},
		{Name: "log_read_errors_total", Help: "Of those, failed.", Counter: true, Value: n.LogErrors},
	}
}
