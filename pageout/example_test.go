package pageout_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/pageout"
	"github.com/sublet-dev/agent/podsource"
)

// A Runner pages out the program of an agent 5 seconds after its start.
func Example() {
	a, err := agent.New(
		agent.WithNodeName("edge-1"), agent.WithSimulatedRuntime(), agent.WithLogger(slog.New(slog.DiscardHandler)),
		agent.WithSource("memory", podsource.NewMemory()),
		agent.WithRunner("pageout", func(c *agent.Components) (agent.Runner, error) {
			return pageout.New(pageout.Config{Logger: c.Logger})
		}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	cancel() // a daemon runs until SIGTERM
	fmt.Println(<-done)
	// Output: <nil>
}
