package main

import (
	"context"
	"fmt"
	"net"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/ui"
	"github.com/sublet-dev/agent/timeline"
)

// pageServer serves the page for people while the agent runs.
type pageServer struct {
	srv      *server.Server
	listener net.Listener
}

// newPage listens on a free port of this machine, so that its URL can be shown before the
// agent runs.
func newPage(ctx context.Context, history *timeline.History) (agent.Runner, string, error) {
	page, err := ui.New(ui.Config{NodeName: "quickstart", History: history})
	if err != nil {
		return nil, "", err
	}
	const addr = "127.0.0.1:0"
	srv, err := server.New(server.Config{Addr: addr, UI: page})
	if err != nil {
		return nil, "", err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, "", fmt.Errorf("listen for the page: %w", err)
	}
	return pageServer{srv, listener}, fmt.Sprintf("http://%s/ui/", listener.Addr()), nil
}

// Run implements agent.Runner.
func (p pageServer) Run(ctx context.Context) error { return p.srv.Serve(ctx, p.listener) }
