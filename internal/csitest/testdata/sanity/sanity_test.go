package sanity

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/csitest"
)

// The driver that package csi is tested with is one: it passes the suite that every driver
// has to pass.
func TestSanity(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // its name is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	d := &csitest.Driver{Dir: filepath.Join(dir, "driver")}
	endpoint := filepath.Join(dir, "csi.sock")
	stop, err := d.Serve(endpoint, "")
	require.NoError(t, err)
	defer stop(false)
	cfg := sanity.NewTestConfig()
	cfg.Address = "unix://" + endpoint
	cfg.TargetPath, cfg.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	cfg.TestNodeVolumeAttachLimit = true
	sanity.Test(t, cfg)
}
