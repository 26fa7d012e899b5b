package dra

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sublet-dev/agent/pluginregistry"
)

type noClaims struct{}

func (noClaims) ResourceClaim(context.Context, string, string) (*resourcev1.ResourceClaim, error) {
	return nil, nil
}

// A driver that comes and goes while another one of its name is called, as in an upgrade, is no
// race.
func TestManager_CallsDriversThatComeAndGo(t *testing.T) {
	m, err := New(Config{Claims: noClaims{}, StateFile: filepath.Join(t.TempDir(), "claims.json")})
	require.NoError(t, err)
	old := pluginregistry.Plugin{Name: "gpu.vendor.example", Socket: "/old", Endpoint: "/dra.sock", Versions: []string{api.DRAPluginService}}
	next := old
	next.Socket = "/next"
	require.NoError(t, m.Register(t.Context(), old))
	defer m.Deregister(context.Background(), old)
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 20_000 && err == nil; i++ {
			err = m.call(context.Background(), old.Name, "", &claimState{}, func(context.Context, api.DRAPluginClient) error { return nil })
		}
		done <- err
	}()
	for {
		require.NoError(t, m.Register(t.Context(), next))
		m.Deregister(t.Context(), next)
		select {
		case err := <-done:
			require.NoError(t, err)
			return
		default:
		}
	}
}

// The only pod that is left with a claim keeps it, though that could not be stored: otherwise nothing would release what is
// prepared. It has to be prepared, and stored, again.
func TestManager_TakeBackLeavesNothingPrepared(t *testing.T) {
	m, err := New(Config{Claims: noClaims{}, StateFile: filepath.Join(t.TempDir(), "claims.json")})
	require.NoError(t, err)
	c := &claimState{Pods: []types.UID{"one", "two"}, Drivers: map[string]*[]device{"gpu.vendor.example": {}}}
	m.takeBack(c, "one")
	require.Equal(t, []types.UID{"two"}, c.Pods)
	require.True(t, c.isPrepared())
	m.takeBack(c, "two")
	require.Equal(t, []types.UID{"two"}, c.Pods)
	require.False(t, c.isPrepared())
}
