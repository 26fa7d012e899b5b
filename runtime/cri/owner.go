package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// The capabilities of a Client.
var (
	_ runtime.ContainerRemover       = (*Client)(nil)
	_ runtime.LogReopener            = (*Client)(nil)
	_ runtime.ImageStore             = (*Client)(nil)
	_ runtime.ImageUser              = (*Client)(nil)
	_ runtime.ImageFSReporter        = (*Client)(nil)
	_ runtime.SandboxImageReporter   = (*Client)(nil)
	_ runtime.ContainerStatsReporter = (*Client)(nil)
	_ runtime.CpusetUpdater          = (*Client)(nil)
	_ runtime.CgroupDriverReporter   = (*Client)(nil)
	_ runtime.TimestampedWatcher     = (*Client)(nil)
	_ runtime.ListedPodInspector     = (*Client)(nil)
	_ runtime.PodDialer              = (*Client)(nil)
	_ runtime.OwnerSetter            = (*Client)(nil)
)

// DefaultOwner is the owner of what a Client without Config.Owner creates.
const DefaultOwner = "sublet"

// claim says which pods are the Client's. It is replaced, never changed.
type claim struct {
	owner string
	adopt []string // sources of pods without an owner
	all   bool     // an Observer's
}

// SetOwner sets whose pods the Client sees and changes, and which pods without an
// owner it adopts, as Config.Owner and Config.AdoptSources do. A Client whose
// Config has an Owner keeps what it was given, and so does an Observer. It is
// called before the Client is used: a pod that was made for the owner before is
// not seen any more.
func (c *Client) SetOwner(owner string, adoptSources []string) {
	if c.cfg.Owner != "" || c.cfg.Observer || owner == "" {
		return
	}
	adopt := slices.Concat(c.cfg.AdoptSources, adoptSources)
	c.claim.Store(&claim{owner: owner, adopt: adopt})
}

// owner is what the label of things that are made says.
func (c *Client) owner() string { return c.claims().owner }

func (c *Client) claims() *claim {
	if o := c.claim.Load(); o != nil {
		return o
	}
	return &claim{owner: DefaultOwner}
}

// sandbox reports whether a sandbox with these labels and annotations is seen.
func (o *claim) sandbox(labels, annotations map[string]string) bool {
	owner, owned := labels[runtime.LabelOwner]
	switch {
	case o.all:
		return true
	case owned:
		return owner == o.owner
	}
	source := annotations[podspec.AnnotationSource]
	return source != "" && slices.Contains(o.adopt, source)
}

// container reports whether a container with these labels is seen. ours tells
// whether its sandbox is: the kubelet keeps a pod's source there alone.
func (o *claim) container(labels map[string]string, ours func() bool) bool {
	owner, owned := labels[runtime.LabelOwner]
	switch {
	case o.all:
		return true
	case owned:
		return owner == o.owner
	}
	return len(o.adopt) > 0 && ours()
}

// visible leaves out what is not the Client's. Both lists are of one moment, or
// all but.
func (o *claim) visible(sandboxes []*v1.PodSandbox, containers []*v1.Container) ([]*v1.PodSandbox, []*v1.Container) {
	if o.all {
		return sandboxes, containers
	}
	sandboxes = without(sandboxes, func(s *v1.PodSandbox) bool { return !o.sandbox(s.GetLabels(), s.GetAnnotations()) })
	var adopted map[string]bool // filled only when needed
	containers = without(containers, func(ct *v1.Container) bool {
		return !o.container(ct.GetLabels(), func() bool {
			if adopted == nil {
				adopted = make(map[string]bool, len(sandboxes))
				for _, s := range sandboxes {
					adopted[s.GetId()] = true
				}
			}
			return adopted[ct.GetPodSandboxId()]
		})
	})
	return sandboxes, containers
}

// ownedIDs are the ids of sandboxes and containers that are known to be the
// Client's, so that no call is needed to find out before something is done to one.
type ownedIDs struct {
	mu    sync.Mutex
	ids   map[string]uint64 // when each was noted last
	clock uint64
}

// begin returns the time at which a listing begins.
func (o *ownedIDs) begin() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clock++
	return o.clock
}

func (o *ownedIDs) add(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put(id)
}

func (o *ownedIDs) put(id string) {
	if o.ids == nil {
		o.ids = make(map[string]uint64)
	}
	o.ids[id] = o.clock
}

// listed notes what a listing has. If it was one of all pods, begun at a time, ids
// that are not in it are forgotten, but for those noted meanwhile.
func (o *ownedIDs) listed(sandboxes []*v1.PodSandbox, containers []*v1.Container, complete bool, begun uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clock++
	for _, s := range sandboxes {
		o.put(s.GetId())
	}
	for _, ct := range containers {
		o.put(ct.GetId())
	}
	if !complete || len(o.ids) == len(sandboxes)+len(containers) {
		return
	}
	for id, noted := range o.ids {
		if noted < begun {
			delete(o.ids, id)
		}
	}
}

func (o *ownedIDs) remove(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ids, id)
}

func (o *ownedIDs) has(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.ids[id]
	return ok
}

// forgetRemoved forgets what was removed. A Client that adopts pods does so only when it lists
// all pods: late events of an adopted container, which bears no owner, are recognised by its id.
func (c *Client) forgetRemoved(id string) {
	if len(c.claims().adopt) == 0 {
		c.owned.remove(id)
	}
}

// mayChangeContainer returns an error that wraps runtime.ErrNotOwner for a
// container that is not the Client's. It asks the runtime only about one that was
// in no listing. One that is not there is no error.
func (c *Client) mayChangeContainer(ctx context.Context, id string) error {
	if c.owned.has(id) {
		return nil
	}
	found, err := c.listContainersBy(ctx, &v1.ContainerFilter{Id: id})
	if err != nil {
		return err
	}
	o := c.claims()
	for _, ct := range found {
		if !strings.HasPrefix(ct.GetId(), id) {
			continue // the runtime does not filter
		}
		var failed error
		ours := o.container(ct.GetLabels(), func() bool {
			failed = c.mayChangeSandbox(ctx, ct.GetPodSandboxId())
			return failed == nil
		})
		if failed != nil && !errors.Is(failed, runtime.ErrNotOwner) {
			return failed
		}
		if !ours {
			return notOwner("container", ct.GetId(), ct.GetLabels())
		}
		c.owned.add(ct.GetId())
	}
	return nil
}

// mayChangeSandbox is mayChangeContainer for a sandbox.
func (c *Client) mayChangeSandbox(ctx context.Context, id string) error {
	if c.owned.has(id) {
		return nil
	}
	found, err := c.listSandboxesBy(ctx, &v1.PodSandboxFilter{Id: id})
	if err != nil {
		return err
	}
	o := c.claims()
	for _, s := range found {
		if !strings.HasPrefix(s.GetId(), id) {
			continue
		}
		if !o.sandbox(s.GetLabels(), s.GetAnnotations()) {
			return notOwner("sandbox", s.GetId(), s.GetLabels())
		}
		c.owned.add(s.GetId())
	}
	return nil
}

func notOwner(what, id string, labels map[string]string) error {
	if owner := labels[runtime.LabelOwner]; owner != "" {
		return fmt.Errorf("%s %s: owner %s: %w", what, id, owner, runtime.ErrNotOwner)
	}
	return fmt.Errorf("%s %s: not made by sublet: %w", what, id, runtime.ErrNotOwner)
}

// changes are the calls that an Observer does not make. Those that enter a container or its
// network may change anything in it.
func changes(rpc string) bool {
	switch rpc {
	case "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "StartContainer", "StopContainer",
		"RemoveContainer", "UpdateContainerResources", "UpdatePodSandboxResources", "ReopenContainerLog", "CheckpointContainer", "PullImage", "RemoveImage",
		"ExecSync", "Exec", "Attach", "PortForward", "UpdateRuntimeConfig":
		return true
	}
	return false
}
