package podstream_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sublet-dev/agent/podstream"
	"github.com/sublet-dev/agent/runtime"
)

func ExampleClient_Stream() {
	exec := func(ctx context.Context, rt runtime.Streamer, containerID string) error {
		u, err := rt.ExecURL(ctx, containerID, []string{"sh", "-c", "exit 3"}, runtime.Streams{Stdout: true})
		if err != nil {
			return err
		}
		return new(podstream.Client).Stream(ctx, u, podstream.Options{Stdout: os.Stdout})
	}
	_ = exec // needs a runtime

	var exit podstream.ExitError
	if err := error(podstream.ExitError{Code: 3}); errors.As(err, &exit) {
		fmt.Println(exit.Code, err)
	}
	// Output: 3 command terminated with exit code 3
}
