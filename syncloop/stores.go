package syncloop

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// PodDirs has the directories of pods. *podsync.Syncer is one.
type PodDirs interface {
	ListPodsFromDisk() ([]types.UID, error)
	CleanupOrphan(ctx context.Context, uid types.UID) error
}

// PodCgroups has the cgroups of pods. *cgroup.Manager is one.
type PodCgroups interface {
	PodUIDs() ([]types.UID, error)
	Remove(ctx context.Context, uid types.UID) error
}

// PodStatuses has the statuses of pods. *status.Manager is one.
type PodStatuses interface {
	PodUIDs() []types.UID
	Forget(uid types.UID)
}

// StorePodDirs is the name of the store of pod directories, with the volumes of pods.
const StorePodDirs = "pod directories"

// Stores returns the stores of an agent, in the order in which they are cleaned up:
// directories, cgroups, unless they are nil, and statuses. forgotten is called last for
// each pod.
func Stores(dirs PodDirs, cgroups PodCgroups, statuses PodStatuses, forgotten func(uid types.UID)) []PodStore {
	stores := []PodStore{{Name: StorePodDirs, PodUIDs: dirs.ListPodsFromDisk, Remove: dirs.CleanupOrphan}}
	if cgroups != nil {
		stores = append(stores, PodStore{Name: "cgroups", PodUIDs: cgroups.PodUIDs, Remove: cgroups.Remove})
	}
	return append(stores, PodStore{
		Name:    "statuses",
		PodUIDs: func() ([]types.UID, error) { return statuses.PodUIDs(), nil },
		Remove: func(_ context.Context, uid types.UID) error {
			statuses.Forget(uid)
			forgotten(uid)
			return nil
		},
	})
}
