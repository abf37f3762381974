package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"go.uber.org/zap"
)

// checkPprof returns an error unless addr can be reached from this machine only,
// or is empty.
func checkPprof(addr string) error {
	if addr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("--pprof %q is not HOST:PORT", addr)
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("--pprof %q can be reached from other machines, and profiles tell what the server does: use 127.0.0.1, [::1] or localhost", addr)
	}
	return nil
}

// profiles serves net/http/pprof on a listener of its own until ctx ends. What
// it shows is for whoever runs the server: never on the address of the service.
func profiles(ctx context.Context, l net.Listener, log *zap.Logger) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	log.Info("profiles", zap.String("url", "http://"+l.Addr().String()+"/debug/pprof/"))
	stop := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer stop()
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
