package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/runtime"
)

const (
	// IDsPerPod is the number of ids of each pod, as in the kubelet.
	IDsPerPod = 1 << 16

	ranges = 1<<32/IDsPerPod - 1 // the last range contains the invalid id 2^32-1
)

// Errors that Ensure wraps.
var (
	ErrExhausted    = errors.New("no free user namespace id range")
	ErrStateUnknown = errors.New("allocated id ranges cannot be determined")
)

// Config describes an Allocator.
type Config struct {
	// PodsDir is the absolute path of the directory with one directory per pod.
	// Required.
	PodsDir string
	// FirstID is the first allocated id, a multiple of IDsPerPod. Default: IDsPerPod.
	FirstID uint32
	// MaxPods is the maximum number of pods with a user namespace. Default: as many
	// as there are ids.
	MaxPods int
	// SubIDFS is the directory with the files subuid and subgid, /etc. Their grant to
	// the user kubelet replaces FirstID and MaxPods. Nil: the files are not read.
	SubIDFS fs.FS
}

// complete validates the Config and sets defaults.
func (cfg *Config) complete() error {
	var errs []error
	if !filepath.IsAbs(cfg.PodsDir) {
		errs = append(errs, fmt.Errorf("Config.PodsDir: %q must be an absolute path", cfg.PodsDir))
	}
	if cfg.FirstID == 0 {
		cfg.FirstID = IDsPerPod
	}
	if cfg.MaxPods == 0 {
		cfg.MaxPods = ranges - int(cfg.FirstID/IDsPerPod)
	}
	errs = append(errs, fits(cfg.FirstID, int64(cfg.MaxPods)))
	return errors.Join(errs...)
}

// fits checks that the ranges of that many pods, beginning with first, are valid.
func fits(first uint32, pods int64) error {
	switch {
	case first < IDsPerPod || first%IDsPerPod != 0:
		return fmt.Errorf("first id %d must be a multiple of %d greater than 0", first, IDsPerPod)
	case pods < 1 || int64(first/IDsPerPod)+pods > ranges:
		return fmt.Errorf("id range from %d is too small for %d pods", first, pods)
	}
	return nil
}

// Allocator allocates ids to pods. Its methods may be called from any goroutine, but not
// concurrently for the same pod.
type Allocator struct {
	cfg Config

	loading sync.Mutex // held while the disk is read for the first time
	loaded  bool       // guarded by loading

	mu        sync.Mutex // guards the fields below; never held during I/O
	first     uint32     // index of the first range
	pods      uint32
	next      uint32               // index to try first, so that released ranges are reused late
	taken     map[uint32]types.UID // by index; the first id on the node is the index times IDsPerPod
	allocated map[types.UID]uint32
}

// New validates the configuration. It does no I/O.
func New(cfg Config) (*Allocator, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("userns: %w", err)
	}
	return &Allocator{cfg: cfg, taken: map[uint32]types.UID{}, allocated: map[types.UID]uint32{}}, nil
}

// Ensure returns the ids of a pod, and allocates them on the first call. The directory
// of the pod must exist.
func (a *Allocator) Ensure(uid types.UID) (users, groups []runtime.IDMapping, err error) {
	if !pathname.IsElement(string(uid)) {
		return nil, nil, fmt.Errorf("userns: invalid uid %q: not a path element", uid)
	}
	loadErr := a.load()
	index, has, err := a.reserve(uid, loadErr)
	if err != nil {
		return nil, nil, err
	}
	if !has {
		if err := write(a.cfg.PodsDir, uid, index); err != nil {
			a.Release(uid)
			return nil, nil, fmt.Errorf("save id range of pod %s: %w", uid, err)
		}
	}
	ids := []runtime.IDMapping{{Host: index * IDsPerPod, Container: 0, Length: IDsPerPod}}
	return ids, ids, nil
}

// reserve returns the range of a pod and reserves one if it has none. has reports
// whether it already had one.
func (a *Allocator) reserve(uid types.UID, loadErr error) (index uint32, has bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if index, has = a.allocated[uid]; has {
		return index, true, nil
	}
	if loadErr != nil {
		return 0, false, fmt.Errorf("%w: %w", ErrStateUnknown, loadErr)
	}
	for i := range a.pods {
		index := a.first + (a.next-a.first+i)%a.pods
		if a.taken[index] == "" {
			a.taken[index], a.allocated[uid] = uid, index
			a.next = index + 1
			return index, false, nil
		}
	}
	return 0, false, fmt.Errorf("%w: allocated to %d pods", ErrExhausted, len(a.allocated))
}

// Release frees the ids of a pod whose directory was removed. It does nothing if the
// pod has none.
func (a *Allocator) Release(uid types.UID) {
	// load may have read the file of the pod and not recorded it yet.
	a.loading.Lock()
	defer a.loading.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if index, ok := a.allocated[uid]; ok {
		delete(a.allocated, uid)
		delete(a.taken, index)
	}
}

// load reads the ranges allocated by previous processes. It is repeated on each call
// until all files could be read.
func (a *Allocator) load() error {
	a.loading.Lock()
	defer a.loading.Unlock()
	if a.loaded {
		return nil
	}
	first, pods, err := granted(a.cfg)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.first, a.pods, a.next = first/IDsPerPod, pods, first/IDsPerPod
	a.mu.Unlock()
	err = readAll(a.cfg.PodsDir, a.register)
	a.loaded = err == nil
	return err
}

// register records the range of a pod from disk.
func (a *Allocator) register(uid types.UID, index uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if other := a.taken[index]; other != "" && other != uid {
		return fmt.Errorf("pods %s and %s have the same ids", other, uid)
	}
	a.taken[index], a.allocated[uid] = uid, index
	return nil
}
