package embedded

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A client that leaves does not wait for a process that does not read, and the next client is next.
func TestInput_WritesEndWithTheirClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInput()
		ctx, leave := context.WithCancel(t.Context())
		type written struct {
			n   int
			err error
		}
		write := func(ctx context.Context, text string) <-chan written {
			done := make(chan written, 1)
			go func() {
				n, err := io.WriteString(in.from(ctx), text)
				done <- written{n, err}
			}()
			synctest.Wait()
			return done
		}
		first, waiting := write(ctx, "first"), write(ctx, "waiting")
		next := write(t.Context(), "next")
		start := make([]byte, 3)
		n, err := in.Read(start)
		require.NoError(t, err)
		require.Len(t, "fir", n)

		leave()
		require.Equal(t, written{3, context.Canceled}, <-first)
		require.Equal(t, written{0, context.Canceled}, <-waiting)
		all, rest := make(chan string), new(strings.Builder)
		go func() {
			_, err := io.Copy(rest, in)
			assert.NoError(t, err)
			all <- rest.String()
		}()
		require.Equal(t, written{4, nil}, <-next)
		require.NoError(t, in.Close())
		require.NoError(t, in.Close())
		require.Equal(t, "next", <-all)
		require.Equal(t, written{0, io.ErrClosedPipe}, <-write(t.Context(), "late"))
		_, err = in.from(ctx).Write(nil)
		require.ErrorIs(t, err, context.Canceled)
	})
}
