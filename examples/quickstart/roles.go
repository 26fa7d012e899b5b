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

// roles are what this program does as a container: its arguments in, its exit
// code out.
var roles = map[string]func(args []string) int{"serve": serve, "ask": ask}

// serve answers HTTP on an address until it is told to end. It is not ready for
// its first second.
func serve(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "serve: want an address")
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
		fmt.Println("ending")
		_ = srv.Shutdown(context.Background()) // what is left open ends with the process
	}()
	fmt.Println("listening on", args[0])
	if err := srv.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// ask gets a URL once a second until it is told to end.
func ask(args []string) int {
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
		b, _ := io.ReadAll(io.LimitReader(r.Body, 1<<10)) // a short answer is an answer
		_ = r.Body.Close()
		fmt.Printf("%s: %s", r.Status, b)
	}
}
