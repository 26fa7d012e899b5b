package embedded

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// newAttachedStreams returns streams with a log, and clients that have taken nothing.
func newAttachedStreams(t *testing.T, clients int) (*containerStreams, []*attachedClient) {
	t.Helper()
	c := newContainerStreams(filepath.Join(t.TempDir(), "log"), &v1.ContainerConfig{})
	t.Cleanup(c.close)
	attached := make([]*attachedClient, clients)
	for i := range attached {
		attached[i] = newAttachedClient()
		c.attach(attached[i])
	}
	return c, attached
}

// writeLines writes lines in a goroutine, each after the one before was written, and
// counts them.
func (c *containerStreams) writeLines(t *testing.T, n int) (written chan int) {
	written = make(chan int, n)
	go func() {
		for i := range n {
			c.write(t, fmt.Sprintln(i))
			written <- i
		}
	}()
	synctest.Wait()
	return written
}

// takeAll returns all output that waits for a client.
func (c *containerStreams) takeAll(t *attachedClient) string {
	var b strings.Builder
	for {
		k, ok := c.take(t)
		if !ok {
			return b.String()
		}
		b.Write(k.data)
	}
}

// lines returns the lines of writeLines.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func TestContainerStreams_WaitForAttachedClients(t *testing.T) {
	for name, unblock := range map[string]func(*containerStreams, *attachedClient){
		"until the output is taken":    func(c *containerStreams, t *attachedClient) { c.take(t) },
		"until the client is detached": (*containerStreams).detach,
		"until the rest is drained":    func(c *containerStreams, _ *attachedClient) { c.Drain() },
		"until the container exits":    func(c *containerStreams, _ *attachedClient) { c.close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, attached := newAttachedStreams(t, 1)
				written := c.writeLines(t, maxUnread+1)
				require.Len(t, written, maxUnread, "the last write waits for the client")
				unblock(c, attached[0])
				synctest.Wait()
				assert.Len(t, written, maxUnread+1)
			})
		})
	}
}

// A client that takes nothing costs neither the log nor other clients any output, before
// or after the exit of the container, and has all of it when it takes it.
func TestContainerStreams_GiveAllOutputToEachClient(t *testing.T) {
	const running = maxUnread + 1
	synctest.Test(t, func(t *testing.T) {
		c, attached := newAttachedStreams(t, 10)
		written := c.writeLines(t, 2*running)
		require.Len(t, written, running-1)
		for _, client := range attached[1:] {
			assert.Equal(t, lines(running), c.takeAll(client))
		}
		c.Drain()
		synctest.Wait()
		require.Len(t, written, 2*running)
		c.close()
		for _, client := range attached[1:] {
			assert.Equal(t, strings.TrimPrefix(lines(2*running), lines(running)), c.takeAll(client))
		}
		assert.Equal(t, lines(2*running), c.takeAll(attached[0]))
		assert.Equal(t, lines(2*running), strings.Join(loggedLines(t, c.path), ""))
	})
}

// What is written without end after the exit is not kept for a client that takes nothing.
func TestContainerStreams_EndAClientThatLeavesTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, attached := newAttachedStreams(t, 2)
		c.Drain()
		for i := range 2 * maxUnreadRest {
			c.write(t, fmt.Sprintln(i))
			c.take(attached[1])
		}
		c.write(t, "last\n")
		<-attached[0].end
		assert.Equal(t, lines(maxUnreadRest), c.takeAll(attached[0]))
		assert.Equal(t, "last\n", c.takeAll(attached[1]))
		c.detach(attached[0])
	})
}
