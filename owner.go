package agent

import (
	"fmt"
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

// own loads the owner id of this agent, or creates it. The root directory is locked.
func (a *Agent) own() error {
	id, err := owner.LoadOrCreate(a.rootDir, a.path(podsDirName), len(a.adopt) > 0)
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
