package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// Limits of what a FileSink loads.
const (
	maxFile  = 64 << 20 // a static pod can be as large as its manifest, and JSON can be several times as long
	maxFiles = 1 << 16
	maxName  = 255 // of a file, by the kernel
)

// FileSink stores the newest status of each pod as a JSON v1.Pod in a directory of
// its own, in the file <namespace>_<name>_<uid>.json. Files are replaced
// atomically: each is written to a temporary file, synced, and renamed. A new
// process reads them with Load. A pod that is deleted and finished keeps its file until no
// source contains it: how it ended is nowhere else if it stays for a finalizer, or because
// its API server is away, and the machine boots.
//
// The files contain pod specs, which may contain secrets. The directory therefore
// has mode 0700 and the files 0600.
type FileSink struct {
	dir          sinkDir
	seed         maphash.Seed
	pendingDelay time.Duration

	mu      sync.Mutex           // guards written
	written map[types.UID]uint64 // hash of the content of the pod's file
}

var (
	_ Sink     = (*FileSink)(nil)
	_ Deleter  = (*FileSink)(nil)
	_ Delayer  = (*FileSink)(nil)
	_ Retainer = (*FileSink)(nil)
)

// NewFileSink returns a FileSink that uses the directory. It does no I/O: the
// directory is created by the first SetStatus.
func NewFileSink(dir string) (*FileSink, error) {
	if dir == "" {
		return nil, errors.New("status: file sink: directory required")
	}
	return &FileSink{dir: sinkDir{dir: dir}, seed: maphash.MakeSeed(), written: make(map[types.UID]uint64)}, nil
}

// DelayPending has the status of a pod that never had a container written only if the
// pod stays like that for d: but for times, such a status has nothing that the next process
// cannot find out by itself, and in a burst of pods all of them would be written while the
// first pods start. It must be called before the sink is given to a Manager.
func (s *FileSink) DelayPending(d time.Duration) { s.pendingDelay = d }

// RetainsDeleted implements Retainer. It is true.
func (s *FileSink) RetainsDeleted() bool { return true }

// Delay implements Delayer. It is 0 unless DelayPending was called.
func (s *FileSink) Delay(st *corev1.PodStatus) time.Duration {
	if st.Phase != corev1.PodPending {
		return 0
	}
	for c := range podspec.ContainerStatuses(st) {
		if podspec.WasCreated(c) || c.State.Running != nil || c.State.Terminated != nil {
			return 0
		}
	}
	return s.pendingDelay
}

// SetStatus writes the pod's file, unless its content is the same already. It blocks
// until the file is on disk.
func (s *FileSink) SetStatus(_ context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	name, err := fileName(pod)
	if err != nil {
		return err
	}
	out := withStatus(pod, st)
	out.APIVersion, out.Kind, out.ManagedFields = "v1", "Pod", nil
	data, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("encode status of pod %s: %w", pod.UID, err)
	}
	sum := maphash.Bytes(s.seed, data)
	if s.hasWritten(pod.UID, sum) {
		return nil
	}
	s.forget(pod.UID) // after a write that fails the file may have either content
	if err := s.write(name, data); err != nil {
		return fmt.Errorf("write status of pod %s: %w", pod.UID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[pod.UID] = sum
	return nil
}

func (s *FileSink) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, uid)
}

func (s *FileSink) hasWritten(uid types.UID, sum uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had, ok := s.written[uid]
	return ok && had == sum
}

// DeleteStatus removes the pod's file. A missing file is not an error.
func (s *FileSink) DeleteStatus(_ context.Context, pod *corev1.Pod) error {
	name, err := fileName(pod)
	if err != nil {
		return err
	}
	s.forget(pod.UID)
	err = s.dir.do(false, func(f *openDir) error {
		for _, n := range []string{name, partial(name)} {
			if err := f.Remove(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return f.sync()
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove status of pod %s: %w", pod.UID, err)
	}
	return nil
}

// write replaces the file name atomically.
func (s *FileSink) write(name string, data []byte) error {
	return s.dir.do(true, func(dir *openDir) error {
		tmp := partial(name)
		f, err := dir.create(tmp)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return errors.Join(err, dir.Remove(tmp))
		}
		if err := dir.Rename(tmp, name); err != nil {
			return errors.Join(err, dir.Remove(tmp))
		}
		return dir.sync()
	})
}

// create creates a file and replaces one that an earlier write left behind.
func (o *openDir) create(name string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := o.OpenFile(name, flags, 0o600)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	if err := o.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return o.OpenFile(name, flags, 0o600)
}

// Load returns the pods in the directory, each with its status. A file that is not
// the status of a pod, or of another pod than its name says, is skipped and is part
// of the error; the returned pods are valid nevertheless. A directory that does not
// exist is empty. What a write has left that was interrupted a minute ago is removed.
func (s *FileSink) Load() ([]*corev1.Pod, error) {
	root, err := os.OpenRoot(s.dir.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load statuses: %w", err)
	}
	defer root.Close() //nolint:errcheck // nothing was written through it
	d, err := root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("load statuses: %w", err)
	}
	names, err := d.Readdirnames(maxFiles)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	errs := []error{err, d.Close()}
	var pods []*corev1.Pod
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			errs = append(errs, removePartial(root, name))
			continue
		}
		if !strings.HasSuffix(name, ".json") {
			continue
		}
		pod, err := s.read(root, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("load status %q: %w", name, err))
			continue
		}
		pods = append(pods, pod)
	}
	return pods, errors.Join(errs...)
}

func (s *FileSink) read(root *os.Root, name string) (*corev1.Pod, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file (%s)", info.Mode().Type())
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("file exceeds %d bytes", maxFile)
	}
	pod := new(corev1.Pod)
	if err := json.Unmarshal(data, pod); err != nil {
		return nil, err
	}
	if want, err := fileName(pod); err != nil || want != name {
		return nil, errors.Join(fmt.Errorf("file name does not match pod %s/%s %s", pod.Namespace, pod.Name, pod.UID), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[pod.UID] = maphash.Bytes(s.seed, data)
	return pod, nil
}

// fileName returns the name of the pod's file. A name that is too long for the
// kernel is truncated; the UID keeps it unique.
func fileName(pod *corev1.Pod) (string, error) {
	if pod.UID == "" || pod.Name == "" || pod.Namespace == "" {
		return "", errors.New("status file: namespace, name and UID of the pod required")
	}
	for _, part := range []string{pod.Namespace, pod.Name, string(pod.UID)} {
		if strings.ContainsAny(part, "/\\\x00") || strings.HasPrefix(part, ".") {
			return "", fmt.Errorf("status file: %q cannot be part of a file name", part)
		}
	}
	head, tail := pod.Namespace+"_"+pod.Name, "_"+string(pod.UID)+".json"
	room := maxName - len(partial(tail))
	if room <= 0 {
		return "", fmt.Errorf("status file: the UID has %d bytes", len(pod.UID))
	}
	return head[:min(len(head), room)] + tail, nil
}

// partial is the name of a file that is being written. The next write replaces it.
func partial(name string) string { return "." + name + ".tmp" }

// partialAge is the age from which a file that is being written counts as left by a crash. Its pod may be gone, so
// that there is no next write. One from the future was left before the clock was set back, as on a board without a battery.
const partialAge = time.Minute

// removePartial removes a file that a crash has left. One that another process writes now is no such file.
func removePartial(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil || !strings.HasSuffix(name, ".json.tmp") || !info.Mode().IsRegular() || time.Since(info.ModTime()).Abs() < partialAge {
		return nil //nolint:nilerr // it is gone, or another's
	}
	if err := root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
