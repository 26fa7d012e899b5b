// Package doctest contains the Go snippets of the documents, so that they compile. Package docs compares both.
package doctest

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// MeasureBaseline prints what the raw calls of a pod cost.
func MeasureBaseline(ctx context.Context, cc *grpc.ClientConn) error {
	report, err := runtimetest.MeasureBaseline(ctx, cc, runtimetest.BaselineConfig{Pods: 20, MaxParallel: 4})
	fmt.Print(report)
	return err
}
