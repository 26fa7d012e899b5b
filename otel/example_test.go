package otel_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sublet-dev/agent/otel"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

// The spans of a sync that pulls an image. A program has a provider of the OpenTelemetry
// SDK, and Workers and a runtime call the hooks.
func Example() {
	provider := &recorder{}
	tracing, err := otel.New(otel.Config{TracerProvider: provider})
	if err != nil {
		fmt.Println(err)
		return
	}
	hooks := tracing.PodWorkers() // goes into podworkers.Config
	call := podworkers.SyncCall{Pod: web, UID: web.UID}
	ctx := hooks.SyncStarted(context.Background(), call)
	pull := runtime.Operation{Type: runtime.OperationPullImage, Pod: web, Image: "app:1"}
	err = errors.New("manifest unknown")
	tracing.OperationEnded(tracing.OperationStarted(ctx, pull), pull, 0, err)
	hooks.SyncEnded(ctx, call, 0, runtime.SyncResult{}, err)

	for _, s := range provider.spans {
		fmt.Println(s.name, "of", s.value("k8s.pod.name"), s.value("container.image.name"), s.status, s.text)
	}
	// Output:
	// sync pod of web  Error manifest unknown
	// pull image of web app Error manifest unknown
}
