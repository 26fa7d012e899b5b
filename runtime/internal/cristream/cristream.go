// Package cristream has what those share who serve exec and attach with the library
// k8s.io/cri-streaming.
package cristream

import (
	"context"
	"fmt"
	"io"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// withInput marks the id of a container for which stdin was requested: by WebSocket the
// library always passes an input stream.
const withInput = "+stdin"

// Server returns URLs that Open needs: with the request for stdin in them.
type Server struct{ streaming.Server }

// GetExec implements streaming.Server.
func (s Server) GetExec(req *v1.ExecRequest) (*v1.ExecResponse, error) {
	if req.GetStdin() {
		req.ContainerId += withInput
	}
	return s.Server.GetExec(req)
}

// GetAttach implements streaming.Server.
func (s Server) GetAttach(req *v1.AttachRequest) (*v1.AttachResponse, error) {
	if req.GetStdin() {
		req.ContainerId += withInput
	}
	return s.Server.GetAttach(req)
}

// Streams are those that a client opened. The interfaces of the others are nil.
type Streams struct {
	In          io.Reader
	Out, ErrOut io.Writer
}

// Open returns the id of a container and its streams, from what the library passes to a
// streaming.Runtime for a URL of Server.
func Open(id string, in io.Reader, out, errOut io.WriteCloser) (container string, s Streams) {
	container, input := strings.CutSuffix(id, withInput)
	if input {
		s.In = in
	}
	if out != nil {
		s.Out = out
	}
	if errOut != nil {
		s.ErrOut = errOut
	}
	return container, s
}

// Sizes forwards sizes of a terminal until the client disconnects. It returns nil for nil.
func Sizes[T ~struct{ Width, Height uint16 }](ctx context.Context, from <-chan remotecommand.TerminalSize) <-chan T {
	if from == nil {
		return nil
	}
	to := make(chan T)
	go func() {
		defer close(to)
		for {
			select {
			case <-ctx.Done():
				return
			case size, ok := <-from:
				if !ok {
					return
				}
				select {
				case to <- T(size):
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return to
}

// ExitError reports an exit code other than 0 to the library.
type ExitError int

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// String implements the library's ExitError.
func (e ExitError) String() string { return e.Error() }

// Exited implements the library's ExitError.
func (e ExitError) Exited() bool { return true }

// ExitStatus implements the library's ExitError.
func (e ExitError) ExitStatus() int { return int(e) }
