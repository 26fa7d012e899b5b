package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sublet-dev/agent/internal/owner"
)

// WithAdoption has the agent take over pods that bear no owner's id, as those of a
// kubelet, if they come from one of these sources: "file", "http" or "api" by the
// kubelet's words in the annotation kubernetes.io/config.source. Such a pod is the
// agent's own from then on. One that a source of the agent wants, with the same
// UID, runs on without a restart; one that none wants is ended as soon as all
// sources have synced. Stop the kubelet first: it would start them again.
//
// Labels of what runs cannot be changed, so that the option has to stay for as long
// as one of these sandboxes does: without it the agent does not see them any more.
// Pods of another agent have its id, and are never adopted.
//
// Without this option pods that bear no id, or another's, do not exist for the
// agent.
func WithAdoption(sources ...string) Option {
	return func(s *settings) error {
		if len(sources) == 0 || slices.Contains(sources, "") {
			return fmt.Errorf("adoption: sources %q must be named", sources)
		}
		s.adopt = append(s.adopt, sources...)
		return nil
	}
}

// own loads the owner id of this agent. The id is created once, and not again while there
// can be pods that carry the old one. The root directory is locked.
func (a *Agent) own() error {
	id, err := owner.Load(a.rootDir)
	if errors.Is(err, fs.ErrNotExist) {
		kept, readErr := os.ReadDir(a.path(podsDirName))
		switch {
		case readErr != nil && !errors.Is(readErr, fs.ErrNotExist):
			return fmt.Errorf("list pods of an earlier agent: %w", readErr)
		case len(kept) > 0 && len(a.adopt) == 0:
			return owner.Missing(a.rootDir, a.path(podsDirName))
		}
		id, err = owner.Create(a.rootDir)
	}
	if err != nil {
		return err
	}
	a.owner.Store(&id)
	return nil
}

// ownerID is what marks what this agent makes; "" before Run.
func (a *Agent) ownerID() string {
	if id := a.owner.Load(); id != nil {
		return *id
	}
	return ""
}
