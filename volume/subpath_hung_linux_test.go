package volume

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/systest"
	"github.com/sublet-dev/agent/runtime"
)

// A volume that does not answer does not keep its pod from ending.
func TestManager_SubPathOfAVolumeThatHangs(t *testing.T) {
	m := manager(t, func(cfg *Config) { cfg.Unprivileged = false })
	p := pod(t, "u-1", "  - {name: data, emptyDir: {}}\n")
	mount(t, m, p, nil)
	hung := t.TempDir()
	remove := systest.MountHung(t, hung)
	defer time.AfterFunc(30*time.Second, remove).Stop() // ends what waits for it
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := m.SubPath(ctx, p.UID, "app", runtime.Volume{HostPath: hung}, "sub")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, m.Unmount(t.Context(), p.UID))
}
