package agenttest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/sublet-dev/agent/podsource"
)

var _ podsource.Notifier = (*Manifests)(nil)

// Manifests is a directory of manifests and the notifier of its changes. It replaces
// inotify, which a bubble does not know.
type Manifests struct {
	Dir string

	mu     sync.Mutex // guards notify
	notify func()
}

// Notify implements podsource.Notifier.
func (m *Manifests) Notify(ctx context.Context, _ string, notify func()) error {
	m.set(notify)
	notify()
	<-ctx.Done()
	m.set(nil)
	return nil
}

func (m *Manifests) set(notify func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notify = notify
}

func (m *Manifests) changed() {
	m.mu.Lock()
	notify := m.notify
	m.mu.Unlock()
	if notify != nil {
		notify()
	}
}

// Write writes a file atomically.
func (m *Manifests) Write(name, text string) error {
	defer m.changed()
	part := filepath.Join(m.Dir, ".part")
	return errors.Join(os.WriteFile(part, []byte(text), 0o600), os.Rename(part, filepath.Join(m.Dir, name)))
}

// Remove removes a file.
func (m *Manifests) Remove(name string) error {
	defer m.changed()
	return os.Remove(filepath.Join(m.Dir, name))
}
