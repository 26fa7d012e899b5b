package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// images are the lines "image NAME key=value…" of the config.
func (w *harness) images() []embedded.Image {
	var all []embedded.Image
	for _, c := range w.sc.config {
		if c.args[0] != "image" {
			continue
		}
		img := embedded.Image{Ref: c.args[1]}
		for _, kv := range c.args[2:] {
			key, value, _ := strings.Cut(kv, "=")
			var err error
			switch key {
			case "pull-time":
				img.PullTime, err = time.ParseDuration(value)
			case "pull-error":
				img.PullError = value
			case "pull-failures":
				img.PullFailures, err = strconv.Atoi(value)
			case "present":
				img.Preloaded = true
			default:
				err = errors.New("no such key")
			}
			require.NoError(w.t, err, "config: %s", c.line)
		}
		all = append(all, img)
	}
	return all
}

// files is a directory of manifests and its notifier.
type files struct {
	dir    string
	mu     sync.Mutex
	notify func()
}

// Notify implements podsource.Notifier.
func (f *files) Notify(ctx context.Context, _ string, notify func()) error {
	f.mu.Lock()
	f.notify = notify
	f.mu.Unlock()
	notify()
	<-ctx.Done()
	f.mu.Lock()
	f.notify = nil
	f.mu.Unlock()
	return nil
}

func (f *files) changed() {
	f.mu.Lock()
	notify := f.notify
	f.mu.Unlock()
	if notify != nil {
		notify()
	}
}

func (f *files) write(name, text string) error {
	defer f.changed()
	part := filepath.Join(f.dir, ".part")
	return errors.Join(os.WriteFile(part, []byte(text), 0o600), os.Rename(part, filepath.Join(f.dir, name)))
}

func (f *files) remove(name string) error {
	defer f.changed()
	return os.Remove(filepath.Join(f.dir, name))
}
