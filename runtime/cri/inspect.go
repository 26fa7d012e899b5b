package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// inspectAtOnce bounds the status calls of one inspection that run at a time.
const inspectAtOnce = 4

// Pod inspects one pod: two filtered list calls and a status call for each
// sandbox and container whose status is not known already, from an earlier call or
// from an event that Watch has received. A pod of which the
// runtime has nothing of the owner's is an empty Pod with that UID and no error. The first inspection after an
// Apply that has made all there is of a pod needs no lists, and that after a Remove of all of it no call.
func (c *Client) Pod(ctx context.Context, uid types.UID) (runtime.Pod, error) {
	began := time.Now()
	if c.facts.takeRemoved(uid) {
		return runtime.Pod{UID: uid, ObservedAt: began}, nil
	}
	if p, ok := c.inspectStarted(ctx, uid); ok {
		return p, nil
	}
	if p, ok := c.inspectKilled(ctx, uid); ok {
		return p, nil
	}
	known := c.facts.of(uid)
	sandboxes, containers, err := c.list(ctx, map[string]string{runtime.LabelPodUID: string(uid)})
	if err != nil {
		return runtime.Pod{}, err
	}
	p := runtime.Pod{UID: uid}
	b := listing{bootID: c.cfg.Node.BootID, pods: []runtime.Pod{p}, at: map[types.UID]int{uid: 0}}
	for _, s := range sandboxes {
		b.sandbox(s)
		b.pods[0].Namespace, b.pods[0].Name = s.GetMetadata().GetNamespace(), s.GetMetadata().GetName()
	}
	for _, ct := range containers {
		b.container(ct)
		if l := ct.GetLabels(); b.pods[0].Name == "" {
			b.pods[0].Namespace, b.pods[0].Name = l[runtime.LabelPodNamespace], l[runtime.LabelPodName]
		}
	}
	p = b.pods[0]
	p.ObservedAt = began
	if err := c.fillIn(ctx, &p, known); err != nil {
		return runtime.Pod{}, err
	}
	newestFirst(&p)
	c.facts.recordList(p, known)
	return p, nil
}

// InspectListedPod completes a pod that Pods returned: a status call for each sandbox and
// container whose status is not known already, and no list.
func (c *Client) InspectListedPod(ctx context.Context, listed runtime.Pod) (runtime.Pod, error) {
	return c.complete(ctx, listed, c.facts.of(listed.UID))
}

// complete is InspectListedPod with what is known.
func (c *Client) complete(ctx context.Context, listed runtime.Pod, known podFacts) (runtime.Pod, error) {
	p := listed
	p.Sandboxes, p.Containers = slices.Clone(p.Sandboxes), slices.Clone(p.Containers)
	p.ObservedAt = time.Now() // of the statuses
	if err := c.fillIn(ctx, &p, known); err != nil {
		return runtime.Pod{}, err
	}
	newestFirst(&p)
	c.facts.recordList(p, known)
	return p, nil
}

// completeAll is complete for a pod that was not listed. ok is false if something of it is missing or could not be asked for.
func (c *Client) completeAll(ctx context.Context, pod runtime.Pod, known podFacts) (p runtime.Pod, ok bool) {
	p, err := c.complete(ctx, pod, known)
	return p, err == nil && len(p.Sandboxes) == len(pod.Sandboxes) && len(p.Containers) == len(pod.Containers)
}

// fillIn asks for what the lists do not tell and known does not either. What
// went away between list and status call is left out. A sandbox that the list lacks
// and a container runs in is added: without it the pod would be replaced.
func (c *Client) fillIn(ctx context.Context, p *runtime.Pod, known podFacts) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inspectAtOnce)
	var mu sync.Mutex // guards removed
	removed := make(map[string]bool)
	missing := func(id string, err error) error {
		if !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
		mu.Lock()
		removed[id] = true
		mu.Unlock()
		return nil
	}
	owner := c.claims().owner
	unlisted := unlistedSandboxes(p)
	found := make([]runtime.Sandbox, len(unlisted))
	for i, id := range unlisted {
		g.Go(func() (err error) {
			found[i], err = c.unlistedSandbox(ctx, p, id)
			return err
		})
	}
	for i := range p.Sandboxes {
		s := &p.Sandboxes[i]
		s.Labels, s.Annotations = c.strings.rest(s.Labels, p, owner), c.strings.rest(s.Annotations, p, owner)
		if known.fillSandbox(s, time.Now()) {
			continue
		}
		g.Go(func() error {
			st, err := c.sandboxStatus(ctx, s.ID)
			if err != nil {
				return missing(s.ID, err)
			}
			*s = translate.AddSandboxStatus(*s, st)
			return nil
		})
	}
	for i := range p.Containers {
		ct := &p.Containers[i]
		if known.fillContainer(ct) {
			continue
		}
		ct.Labels, ct.Annotations = c.strings.rest(ct.Labels, p, owner), c.strings.rest(ct.Annotations, p, owner)
		g.Go(func() error {
			st := known.runningStatus(ct)
			if st == nil {
				var err error
				if st, err = c.containerStatus(ctx, ct.ID); err != nil {
					return missing(ct.ID, err)
				}
			}
			*ct = translate.AddContainerStatus(*ct, st)
			if ct.Resources != nil {
				ct.Resources.NoCPUQuota = c.cfg.Node.NoCPUQuota
			}
			ct.Message = c.terminationMessage(*ct, st)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if found = without(found, func(s runtime.Sandbox) bool { return s.ID == "" }); len(found) > 0 {
		p.Sandboxes = append(p.Sandboxes, found...)
		newestFirst(p)
	}
	if len(removed) > 0 {
		p.Sandboxes = without(p.Sandboxes, func(s runtime.Sandbox) bool { return removed[s.ID] })
		p.Containers = without(p.Containers, func(ct runtime.Container) bool { return removed[ct.ID] })
	}
	return nil
}

// unlistedSandboxes returns the ids of sandboxes that containers run in and the list lacks.
// Containers do not outlive their sandbox, so that the list is wrong or older than theirs.
func unlistedSandboxes(p *runtime.Pod) []string {
	var ids []string
	for i := range p.Containers {
		ct := &p.Containers[i]
		if ct.State != runtime.Running || ct.SandboxID == "" || slices.Contains(ids, ct.SandboxID) ||
			slices.ContainsFunc(p.Sandboxes, func(s runtime.Sandbox) bool { return s.ID == ct.SandboxID }) {
			continue
		}
		ids = append(ids, ct.SandboxID)
	}
	return ids
}

// unlistedSandbox returns a sandbox of the pod by its status alone; the zero value if there is none
// that is the pod's and the Client's.
func (c *Client) unlistedSandbox(ctx context.Context, p *runtime.Pod, id string) (runtime.Sandbox, error) {
	st, err := c.sandboxStatus(ctx, id)
	if errors.Is(err, runtime.ErrNotFound) {
		return runtime.Sandbox{}, nil
	}
	claims := c.claims()
	if err != nil || st.GetId() != id || types.UID(st.GetMetadata().GetUid()) != p.UID || !claims.sandbox(st.GetLabels(), st.GetAnnotations()) {
		return runtime.Sandbox{}, err
	}
	c.owned.add(id)
	s := translate.AddSandboxStatus(translate.ObservedSandbox(translate.ListItem(st)), st)
	s.Labels, s.Annotations = c.strings.rest(s.Labels, p, claims.owner), c.strings.rest(s.Annotations, p, claims.owner)
	return s, nil
}

// without returns all but those that are to be dropped. It does not change all.
func without[T any](all []T, drop func(T) bool) []T {
	if !slices.ContainsFunc(all, drop) {
		return all
	}
	var kept []T
	for _, one := range all {
		if !drop(one) {
			kept = append(kept, one)
		}
	}
	return kept
}

// errEmpty is the error of an answer without what was asked for. An empty status would say that a
// container was never started, and that a sandbox has lost its address: what runs would be replaced.
var errEmpty = errors.New("the runtime's answer is empty")

func (c *Client) sandboxStatus(ctx context.Context, id string) (*v1.PodSandboxStatus, error) {
	resp, err := do(ctx, c, "PodSandboxStatus", id, c.cfg.Timeout, c.rs.PodSandboxStatus, &v1.PodSandboxStatusRequest{PodSandboxId: id})
	if st := resp.GetStatus(); err != nil || st.GetId() != "" {
		return st, err
	}
	return nil, fmt.Errorf("PodSandboxStatus %s: %w", id, errEmpty)
}

func (c *Client) containerStatus(ctx context.Context, id string) (*v1.ContainerStatus, error) {
	resp, err := do(ctx, c, "ContainerStatus", id, c.cfg.Timeout, c.rs.ContainerStatus, &v1.ContainerStatusRequest{ContainerId: id})
	if st := resp.GetStatus(); err != nil || st.GetId() != "" {
		return st, err
	}
	return nil, fmt.Errorf("ContainerStatus %s: %w", id, errEmpty)
}
