package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/podsource"
)

// Store is a source of the pods that clients of an API create, kept in a directory. They
// are not static: their UID is their identity, and they can be changed in place. Use it as a
// source and as a status sink of the agent:
//
//	agent.WithSource("kubectl", store), agent.WithStatusSink(store)
//
// A pod that was deleted stays until the agent has ended it and released what it used.
type Store struct {
	dir      string
	memory   *podsource.Memory
	nodeName string                                 // set by New
	read     func(file string) (*corev1.Pod, error) // readPod
	changed  chan struct{}                          // one slot

	writing slot // for who changes pods and writes them to disk; guards loaded
	loaded  bool

	mu      sync.Mutex              // guards the fields below; held over memory only
	errs    []podsource.SourceError // of files; Location is the file
	pods    map[string]*corev1.Pod
	removed map[types.UID]bool // deleted by force; the node may still run them
}

var _ podsource.StaticSource = (*Store)(nil)

// errNotLoaded is for requests before the agent runs.
var errNotLoaded = errors.New("the stored pods are not loaded yet; try again")

// NewStore returns a Store that keeps pods in a directory. It does no I/O: Watch creates
// and reads the directory, which one Store in one process may use at a time. Files have
// mode 0600.
func NewStore(dir string) *Store {
	return &Store{dir: dir, memory: podsource.NewMemory(), read: readPod, changed: make(chan struct{}, 1), writing: newSlot(), pods: map[string]*corev1.Pod{}, removed: map[types.UID]bool{}}
}

// Static implements podsource.StaticSource.
func (s *Store) Static() bool { return false }

// Watch implements podsource.Source. A file that cannot be read is a source error, and what
// runs on the node is not ended for want of it. A damaged one is renamed, and stays an error
// until it is removed and Watch is called in another process, or a pod of its name is created.
func (s *Store) Watch(ctx context.Context, deliver func(podsource.Set)) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	return s.memory.Watch(ctx, func(set podsource.Set) {
		errs := s.fileErrors()
		set.Errors = append(slices.Clone(set.Errors), errs...)
		set.Incomplete = set.Incomplete || len(errs) > 0
		deliver(set)
	})
}

// SetStatus implements status.Sink: statuses come from the node.
func (s *Store) SetStatus(context.Context, *corev1.Pod, corev1.PodStatus) error { return nil }

// DeleteStatus implements status.Deleter: the agent has ended a pod.
func (s *Store) DeleteStatus(ctx context.Context, pod *corev1.Pod) error {
	if err := s.writing.acquire(ctx); err != nil {
		return err
	}
	defer s.writing.release()
	s.mu.Lock()
	delete(s.removed, pod.UID)
	current := s.pods[keyOf(pod)]
	s.mu.Unlock()
	if current == nil || current.UID != pod.UID || current.DeletionTimestamp == nil {
		return nil
	}
	return s.remove(current)
}

// load reads the directory once.
func (s *Store) load(ctx context.Context) error {
	if err := s.writing.acquire(ctx); err != nil {
		return err
	}
	defer s.writing.release()
	if s.loaded {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	pods := map[string]*corev1.Pod{}
	var errs []podsource.SourceError
	for _, e := range entries {
		file := filepath.Join(s.dir, e.Name())
		switch {
		case !e.Type().IsRegular():
		case strings.HasSuffix(e.Name(), fileSuffix+atomicfile.DamagedSuffix):
			errs = append(errs, podsource.SourceError{Location: file, Err: errDamaged})
		case strings.HasSuffix(e.Name(), fileSuffix):
			pod, err := s.read(file)
			if err == nil {
				pods[keyOf(pod)] = pod
				continue
			}
			if _, damaged := errors.AsType[*atomicfile.DamagedError](err); damaged {
				file, err = file+atomicfile.DamagedSuffix, fmt.Errorf("%w: %w", errDamaged, err)
			}
			errs = append(errs, podsource.SourceError{Location: file, Err: fmt.Errorf("read stored pod: %w", err)})
		case strings.HasPrefix(e.Name(), ".") && strings.Contains(e.Name(), fileSuffix+"."):
			_ = os.Remove(file) // an interrupted write; not what a person has put aside
		}
	}
	s.mu.Lock()
	s.pods, s.errs = pods, errs
	s.mu.Unlock()
	s.memory.Set(slices.Collect(maps.Values(pods))...)
	s.loaded = true
	return nil
}

// errDamaged is of a file that was renamed because it has no pod.
var errDamaged = errors.New("the file of a pod is damaged; what runs of the pod is not ended until this file is removed and the agent started again, or a pod of that name is created")

// fileErrors returns the errors of files.
func (s *Store) fileErrors() []podsource.SourceError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errs
}

// replaceFile forgets the errors of the file of a pod that was written, and removes a damaged one.
// The caller has s.writing.
func (s *Store) replaceFile(pod *corev1.Pod) error {
	file := s.file(pod)
	isOf := func(e podsource.SourceError) bool {
		return e.Location == file || e.Location == file+atomicfile.DamagedSuffix
	}
	s.mu.Lock()
	failed := slices.ContainsFunc(s.errs, isOf)
	s.errs = slices.DeleteFunc(slices.Clone(s.errs), isOf)
	s.mu.Unlock()
	if !failed {
		return nil
	}
	if err := os.Remove(file + atomicfile.DamagedSuffix); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// fileSuffix is that of the files; their names are NAMESPACE_NAME.
const fileSuffix = ".json"

// maxFile bounds the size of a file: that of a request, with every character escaped.
const maxFile = 32 << 20

func (s *Store) file(pod *corev1.Pod) string {
	return filepath.Join(s.dir, pod.Namespace+"_"+pod.Name+fileSuffix)
}

// readPod reads the file of a pod. It renames one that is damaged, and leaves one that
// cannot be read.
func readPod(file string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, atomicfile.Read(file, maxFile, func(b []byte) error {
		if err := json.Unmarshal(b, pod); err != nil {
			return err
		}
		if pod.UID == "" || pod.Namespace+"_"+pod.Name+fileSuffix != filepath.Base(file) {
			return errors.New("name or UID does not match the file")
		}
		return nil
	})
}

// snapshot returns all pods by namespace and name, and the UIDs of those deleted by force.
// The pods are read-only.
func (s *Store) snapshot() (map[string]*corev1.Pod, map[types.UID]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pods), maps.Clone(s.removed)
}

// get returns a pod, which is read-only, or nil.
func (s *Store) get(namespace, name string) *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[namespace+"/"+name]
}

// put writes a pod to disk and hands it to the agent.
// The caller has s.writing.
func (s *Store) put(pod *corev1.Pod) error {
	if err := s.write(pod); err != nil {
		return fmt.Errorf("store pod: %w", err)
	}
	s.keep(pod)
	return nil
}

// putDeleted is put for a pod with a deletion timestamp. If there is no space for that, which the pod itself may have
// used up, its file is removed instead: the next process ends what it finds running of it.
// The caller has s.writing.
func (s *Store) putDeleted(pod *corev1.Pod) error {
	err := s.put(pod)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	if errRemove := os.Remove(s.file(pod)); errRemove != nil && !errors.Is(errRemove, os.ErrNotExist) {
		return errors.Join(err, errRemove)
	}
	s.keep(pod)
	return nil
}

func (s *Store) write(pod *corev1.Pod) error {
	b, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(s.file(pod), b); err != nil {
		return err
	}
	return s.replaceFile(pod)
}

// keep hands a pod to the agent.
func (s *Store) keep(pod *corev1.Pod) {
	s.mu.Lock()
	s.pods[keyOf(pod)] = pod
	s.mu.Unlock()
	s.memory.Put(pod)
	notify.Send(s.changed)
}

// remove removes a pod that the agent has ended.
// The caller has s.writing.
func (s *Store) remove(pod *corev1.Pod) error {
	if err := os.Remove(s.file(pod)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	delete(s.pods, keyOf(pod))
	s.mu.Unlock()
	s.memory.Delete(pod.Namespace, pod.Name)
	notify.Send(s.changed)
	return nil
}

// hide makes clients see a pod no more, whatever still runs of it.
// The caller has s.writing.
func (s *Store) hide(pod *corev1.Pod) error {
	// The agent gets the deletion with its grace period first.
	if err := s.putDeleted(pod); err != nil {
		return err
	}
	s.mu.Lock()
	s.removed[pod.UID] = true
	s.mu.Unlock()
	return nil
}
