package podsource_test

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/leaktest"
	"github.com/sublet-dev/agent/podsource"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// manifest is a valid pod of that name in YAML; image identifies the version.
func manifest(name, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: \"%s\"\nspec:\n  containers:\n  - name: c\n    image: \"%s\"\n", name, image)
}

func pod(name, image string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Name, p.Namespace, p.UID = name, "default", types.UID("uid-"+name)
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: image}}
	return p
}

// files is a file system that tests change while it is read.
type files struct {
	mu sync.Mutex
	m  fstest.MapFS
	// bad gives the error with which a name cannot be opened.
	bad map[string]error
}

func manifestDir(content map[string]string) *files {
	f := &files{m: fstest.MapFS{"m": {Mode: fs.ModeDir | 0o700}}, bad: map[string]error{}}
	for name, data := range content {
		f.write(name, data)
	}
	return f
}

func (f *files) write(name, data string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m["m/"+name] = &fstest.MapFile{Data: []byte(data), ModTime: time.Now()}
}

func (f *files) change(do func(fstest.MapFS)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.m)
}

func (f *files) remove(name string) { f.change(func(m fstest.MapFS) { delete(m, "m/"+name) }) }

func (f *files) fail(name string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bad[name] = err
}

func (f *files) Open(name string) (fs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.bad[name]; err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f.m.Open(name)
}

// fakeNotifier is a Notifier that a test triggers.
type fakeNotifier struct{ notifications chan struct{} }

func newFakeNotifier() *fakeNotifier { return &fakeNotifier{make(chan struct{}, 100)} }

func (k *fakeNotifier) Notify(ctx context.Context, _ string, notify func()) error {
	for {
		notify()
		select {
		case <-ctx.Done():
			return nil
		case <-k.notifications:
		}
	}
}

func (k *fakeNotifier) notify() { k.notifications <- struct{}{} }

// muxEnv is a running Mux in a bubble, with a reader that records changes.
type muxEnv struct {
	t      *testing.T
	mux    *podsource.Mux
	mu     sync.Mutex
	log    []string
	events []*corev1.Event
	latest map[types.UID]*corev1.Pod
	stop   func()
}

func (r *muxEnv) Record(e *corev1.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// start runs a Mux over the sources, named a, b, ... in their order.
func start(t *testing.T, sources ...podsource.Source) *muxEnv {
	t.Helper()
	var named []podsource.NamedSource
	for i, s := range sources {
		named = append(named, podsource.NamedSource{Name: string(rune('a' + i)), Source: s})
	}
	return startNamed(t, named...)
}

func startNamed(t *testing.T, named ...podsource.NamedSource) *muxEnv {
	t.Helper()
	return startRestored(t, nil, named...)
}

// startRestored runs a Mux after a process that had these pods.
func startRestored(t *testing.T, restored []*corev1.Pod, named ...podsource.NamedSource) *muxEnv {
	t.Helper()
	r := &muxEnv{t: t, latest: map[types.UID]*corev1.Pod{}}
	mux, err := podsource.New(podsource.Config{NodeName: "n1", Sources: named, Recorder: r})
	require.NoError(t, err)
	r.mux = mux
	mux.Restore(restored...)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := mux.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case c := <-mux.Changes():
				r.take(c)
			}
		}
	})
	r.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(r.stop)
	return r
}

func (r *muxEnv) take(c podsource.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, p := range c.Pods {
		image := ""
		if podsource.InvalidReason(p) == "" {
			image = p.Spec.Containers[0].Image
		}
		names = append(names, p.Name+"="+image)
		if c.Op == podsource.Remove {
			delete(r.latest, p.UID)
		} else {
			r.latest[p.UID] = p
		}
	}
	if c.Op == podsource.Remove {
		slices.Sort(names)
	}
	r.log = append(r.log, fmt.Sprintf("%s %s %s", c.Op, c.Source, strings.Join(names, " ")))
}

// delivered waits until the bubble is idle and returns the changes since the last call.
func (r *muxEnv) delivered() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.log
	r.log = nil
	return log
}

func (r *muxEnv) errors() string {
	synctest.Wait()
	var b strings.Builder
	for _, f := range r.mux.Errors() {
		b.WriteString(f.Error() + "\n")
	}
	return b.String()
}

func (r *muxEnv) desired() []string {
	synctest.Wait()
	var names []string
	for _, p := range r.mux.Pods() {
		names = append(names, p.Name+"="+p.Spec.Containers[0].Image)
	}
	return names
}

// bubble runs a test with a fake clock.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}
