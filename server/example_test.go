package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/sublet-dev/agent/server"
)

// A Server without TLS listens on loopback or a socket and serves what Config has.
// Run serves until its context is done; as an http.Handler it can be part of another server.
func ExampleServer() {
	srv, err := server.New(server.Config{
		Addr:   "127.0.0.1:10255",
		Checks: []server.HealthCheck{{Name: "syncloop", Check: func() error { return nil }}}, // Agent.Healthy
	})
	if err != nil {
		panic(err)
	}
	for _, path := range []string{"/healthz", "/configz"} {
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /healthz 200
	// /configz 405
}
