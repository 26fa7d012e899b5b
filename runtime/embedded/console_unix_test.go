//go:build unix

package embedded

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A FIFO in place of the log is not waited for, and nothing is written to it.
func TestContainerStreams_LogIsAFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	for _, isRead := range []bool{false, true} {
		if isRead {
			reader, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			defer func() { assert.NoError(t, reader.Close()) }()
		}
		c := newContainerStreams(path, &v1.ContainerConfig{})
		opened := make(chan error, 1)
		go func() { opened <- c.reopen() }()
		select {
		case err := <-opened:
			require.Error(t, err)
		case <-time.After(time.Minute):
			require.FailNow(t, "it waits for a reader")
		}
		c.write(t, "text\n")
		c.close()
	}
}
