package cristream_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/sublet-dev/agent/runtime/internal/cristream"
)

// library records the ids of its requests.
type library struct {
	streaming.Server

	ids []string
}

func (l *library) GetExec(r *v1.ExecRequest) (*v1.ExecResponse, error) {
	l.ids = append(l.ids, r.GetContainerId())
	return nil, nil
}

func (l *library) GetAttach(r *v1.AttachRequest) (*v1.AttachResponse, error) {
	l.ids = append(l.ids, r.GetContainerId())
	return nil, nil
}

// The library has an input stream for every WebSocket. Only one that was requested counts.
func TestOpen_InputOnlyIfRequested(t *testing.T) {
	l := &library{}
	s := cristream.Server{Server: l}
	for _, stdin := range []bool{true, false} {
		_, err := s.GetExec(&v1.ExecRequest{ContainerId: "c", Stdin: stdin})
		require.NoError(t, err)
		_, err = s.GetAttach(&v1.AttachRequest{ContainerId: "c", Stdin: stdin})
		require.NoError(t, err)
	}
	in := strings.NewReader("")
	for i, want := range []io.Reader{in, in, nil, nil} {
		id, streams := cristream.Open(l.ids[i], in, nil, nil)
		assert.Equal(t, "c", id)
		assert.Equal(t, want, streams.In)
		assert.Nil(t, streams.Out)
		assert.Nil(t, streams.ErrOut)
	}
}

type size struct{ Width, Height uint16 }

func TestSizes_EndWithTheClient(t *testing.T) {
	assert.Nil(t, cristream.Sizes[size](t.Context(), nil))
	synctest.Test(t, func(t *testing.T) {
		from := make(chan remotecommand.TerminalSize, 1)
		from <- remotecommand.TerminalSize{Width: 80, Height: 24}
		to := cristream.Sizes[size](t.Context(), from)
		assert.Equal(t, size{80, 24}, <-to)
		close(from)
		_, ok := <-to
		assert.False(t, ok)

		ctx, cancel := context.WithCancel(t.Context())
		from = make(chan remotecommand.TerminalSize, 1)
		from <- remotecommand.TerminalSize{}
		to = cristream.Sizes[size](ctx, from)
		synctest.Wait() // it blocks until the size is read
		cancel()
		synctest.Wait()
		_, ok = <-to
		assert.False(t, ok)
	})
}

func TestExitError(t *testing.T) {
	e := cristream.ExitError(3)
	assert.True(t, e.Exited())
	assert.Equal(t, 3, e.ExitStatus())
	assert.Equal(t, "exit status 3", e.String())
}
