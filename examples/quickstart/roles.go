package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// roles are what this program does as a container. They take its arguments and
// return its exit code.
var roles = map[string]func(args []string) int{"serve": serve, "fetch": fetch}

// serve answers HTTP requests on an address until SIGTERM. It becomes ready after
// one second.
func serve(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "serve: address required")
		return 2
	}
	start := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if time.Since(start) < time.Second {
			http.Error(w, "warming up", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	srv := &http.Server{Addr: args[0], Handler: mux, ReadHeaderTimeout: time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		fmt.Println("stopping")
		_ = srv.Shutdown(context.Background()) // open connections end with the process
	}()
	fmt.Println("listening on", args[0])
	if err := srv.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fetch requests a URL once per second until SIGTERM.
func fetch(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0
		case <-tick.C:
		}
		r, err := http.Get(args[0])
		if err != nil {
			fmt.Println(err)
			continue
		}
		b, _ := io.ReadAll(io.LimitReader(r.Body, 1<<10)) // the beginning is enough
		_ = r.Body.Close()
		fmt.Printf("%s: %s", r.Status, b)
	}
}
