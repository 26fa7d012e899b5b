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
	// IDsPerPod is how many ids each pod gets: all that a file system of the usual
	// kind tells apart in one image.
	IDsPerPod = 1 << 16

	defaultPods = 1024
	ranges      = 1<<32/IDsPerPod - 1 // the very last has an id in it that is none
)

// What Ensure's errors wrap.
var (
	ErrExhausted    = errors.New("all ids for user namespaces are taken")
	ErrStateUnknown = errors.New("which ids are taken is not clear")
)

// Config describes an Allocator.
type Config struct {
	// PodsDir is the absolute path of the folder with a folder for each pod.
	// Required.
	PodsDir string
	// FirstID is the first id to be given, a multiple of Length. [IDsPerPod]
	FirstID uint32
	// MaxPods is how many pods can have a user namespace at a time. [1024]
	MaxPods int
	// SubIDFS is the folder with the files subuid and subgid. What they grant to the
	// user named kubelet takes the place of First and Pods. nil: they are not
	// looked at.
	SubIDFS fs.FS
}

func (cfg *Config) fill() error {
	var errs []error
	if !filepath.IsAbs(cfg.PodsDir) {
		errs = append(errs, fmt.Errorf("PodsDir %q is not an absolute path", cfg.PodsDir))
	}
	if cfg.FirstID == 0 {
		cfg.FirstID = IDsPerPod
	}
	if cfg.MaxPods == 0 {
		cfg.MaxPods = defaultPods
	}
	errs = append(errs, fits(cfg.FirstID, int64(cfg.MaxPods)))
	return errors.Join(errs...)
}

// fits checks that so many pods' ids from first on are whole ranges of real ids.
func fits(first uint32, pods int64) error {
	switch {
	case first < IDsPerPod || first%IDsPerPod != 0:
		return fmt.Errorf("the first id %d is not a multiple of %d above 0", first, IDsPerPod)
	case pods < 1 || int64(first/IDsPerPod)+pods > ranges:
		return fmt.Errorf("there are no ids for %d pods from %d on", pods, first)
	}
	return nil
}

// Allocator gives ids to pods. Its methods may be called from any goroutine, but
// not at the same time for the same pod.
type Allocator struct {
	cfg Config

	loading sync.Mutex // held while the disk is read for the first time
	loaded  bool       // guarded by loading

	mu        sync.Mutex // guards the rest, over memory only
	first     uint32     // index of the first range that may be given
	pods      uint32
	next      uint32               // index to look at first: ids just given back rest a while
	taken     map[uint32]types.UID // by index: the host's first id is the index times Length
	allocated map[types.UID]uint32
}

// New checks the configuration and touches nothing.
func New(cfg Config) (*Allocator, error) {
	if err := cfg.fill(); err != nil {
		return nil, fmt.Errorf("userns: %w", err)
	}
	return &Allocator{cfg: cfg, taken: map[uint32]types.UID{}, allocated: map[types.UID]uint32{}}, nil
}

// Ensure returns the ids of a pod, whose folder must exist: those that it has,
// or from now on has.
func (a *Allocator) Ensure(uid types.UID) (users, groups []runtime.IDMapping, err error) {
	if !pathname.IsElement(string(uid)) {
		return nil, nil, fmt.Errorf("userns: uid %q is not usable in a path", uid)
	}
	unclear := a.load()
	index, has, err := a.reserve(uid, unclear)
	if err != nil {
		return nil, nil, err
	}
	if !has {
		if err := write(a.cfg.PodsDir, uid, index); err != nil {
			a.Release(uid)
			return nil, nil, fmt.Errorf("keep the ids of pod %s: %w", uid, err)
		}
	}
	ids := []runtime.IDMapping{{Host: index * IDsPerPod, Container: 0, Length: IDsPerPod}}
	return ids, ids, nil
}

// reserve returns the range of a pod. has says that it had it before; else nobody
// else gets it from now on.
func (a *Allocator) reserve(uid types.UID, unclear error) (index uint32, has bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if index, has = a.allocated[uid]; has {
		return index, true, nil
	}
	if unclear != nil {
		return 0, false, fmt.Errorf("%w: %w", ErrStateUnknown, unclear)
	}
	for i := range a.pods {
		index := a.first + (a.next-a.first+i)%a.pods
		if a.taken[index] == "" {
			a.taken[index], a.allocated[uid] = uid, index
			a.next = index + 1
			return index, false, nil
		}
	}
	return 0, false, fmt.Errorf("%w: %d pods have them", ErrExhausted, len(a.allocated))
}

// Release gives the ids of a pod back, whose folder is gone. A pod that has none
// is no error.
func (a *Allocator) Release(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if index, ok := a.allocated[uid]; ok {
		delete(a.allocated, uid)
		delete(a.taken, index)
	}
}

// load reads once what a former process gave to whom. As long as something of it
// cannot be understood it is read again each time, and the error says what.
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

// register takes over what the disk tells of a pod.
func (a *Allocator) register(uid types.UID, index uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if other := a.taken[index]; other != "" && other != uid {
		return fmt.Errorf("pods %s and %s have the same ids", other, uid)
	}
	a.taken[index], a.allocated[uid] = uid, index
	return nil
}
