package syncloop

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// storedPods has everything of the pods of an agent, and records what is removed.
type storedPods struct{ removed []string }

func (s *storedPods) remove(what string, uid types.UID) error {
	s.removed = append(s.removed, what+" "+string(uid))
	return nil
}

func (s *storedPods) ListPodsFromDisk() ([]types.UID, error) { return []types.UID{"dir"}, nil }
func (s *storedPods) CleanupOrphan(_ context.Context, uid types.UID) error {
	return s.remove("directory", uid)
}
func (s *storedPods) Forget(uid types.UID) { _ = s.remove("status", uid) }

type storedCgroups struct{ *storedPods }

func (storedCgroups) PodUIDs() ([]types.UID, error) { return []types.UID{"cgroup"}, nil }

func (s storedCgroups) Remove(_ context.Context, uid types.UID) error { return s.remove("cgroup", uid) }

type storedStatuses struct{ *storedPods }

func (storedStatuses) PodUIDs() []types.UID { return []types.UID{"status"} }

// The status goes last: it says until the end what becomes of a pod.
func TestStores(t *testing.T) {
	s := &storedPods{}
	for want, cgroups := range map[string]PodCgroups{"dir cgroup status": storedCgroups{s}, "dir status": nil} {
		s.removed = nil
		got := ""
		for _, store := range Stores(s, cgroups, storedStatuses{s}, func(uid types.UID) { _ = s.remove("forgotten", uid) }) {
			uids, err := store.PodUIDs()
			require.NoError(t, err)
			require.Len(t, uids, 1)
			got += string(uids[0]) + " "
			require.NoError(t, store.Remove(t.Context(), "a"))
		}
		assert.Equal(t, want+" ", got)
		if cgroups != nil {
			assert.Equal(t, []string{"directory a", "cgroup a", "status a", "forgotten a"}, s.removed)
		}
	}
}
