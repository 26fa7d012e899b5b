package cri

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// Pods lists every pod of the owner that the runtime knows, from two list calls.
// Sandboxes and containers that carry no pod UID are left out. The order is that
// of the runtime's list.
func (c *Client) Pods(ctx context.Context) ([]runtime.Pod, error) {
	sandboxes, containers, err := c.list(ctx, nil)
	if err != nil {
		return nil, err
	}
	b := listing{bootID: c.cfg.Node.BootID}
	for _, s := range sandboxes {
		b.sandbox(s)
	}
	for _, ct := range containers {
		b.container(ct)
	}
	for i := range b.pods {
		newestFirst(&b.pods[i])
	}
	c.facts.keep(b.at)
	return b.pods, nil
}

// list asks for sandboxes and containers at once. Each container that was there
// before the call and lives on is in the answer, whatever the order of the two.
// What is not the owner's is left out here and not by the runtime: a whole list is
// the same answer for everybody, which runtimes have at hand.
func (c *Client) list(ctx context.Context, labels map[string]string) ([]*v1.PodSandbox, []*v1.Container, error) {
	begun := c.owned.begin()
	var sandboxes []*v1.PodSandbox
	failed := make(chan error, 1)
	go func() {
		var err error
		sandboxes, err = c.listSandboxes(ctx, labels)
		failed <- err
	}()
	containers, err := c.listContainers(ctx, labels)
	if err := errors.Join(<-failed, err); err != nil {
		return nil, nil, err
	}
	sandboxes, containers = c.claims().visible(sandboxes, containers)
	c.owned.listed(sandboxes, containers, labels == nil, begun)
	return sandboxes, containers, nil
}

// listSandboxes returns those of all owners.
func (c *Client) listSandboxes(ctx context.Context, labels map[string]string) ([]*v1.PodSandbox, error) {
	filter := &v1.PodSandboxFilter{LabelSelector: labels}
	// A filtered list is short: no stream is worth its set-up.
	if labels == nil && !c.noSandboxStream.Load() {
		all, err := collect(ctx, c, "StreamPodSandboxes", &c.noSandboxStream, c.rs.StreamPodSandboxes,
			&v1.StreamPodSandboxesRequest{Filter: filter}, (*v1.StreamPodSandboxesResponse).GetPodSandboxes)
		if !errors.Is(err, runtime.ErrUnsupported) {
			return all, err
		}
	}
	return c.listSandboxesBy(ctx, filter)
}

func (c *Client) listSandboxesBy(ctx context.Context, filter *v1.PodSandboxFilter) ([]*v1.PodSandbox, error) {
	resp, err := do(ctx, c, "ListPodSandbox", "", c.cfg.Timeout, c.rs.ListPodSandbox, &v1.ListPodSandboxRequest{Filter: filter})
	return resp.GetItems(), err
}

// listContainers returns those of all owners.
func (c *Client) listContainers(ctx context.Context, labels map[string]string) ([]*v1.Container, error) {
	filter := &v1.ContainerFilter{LabelSelector: labels}
	if labels == nil && !c.noContainerStream.Load() {
		all, err := collect(ctx, c, "StreamContainers", &c.noContainerStream, c.rs.StreamContainers,
			&v1.StreamContainersRequest{Filter: filter}, (*v1.StreamContainersResponse).GetContainers)
		if !errors.Is(err, runtime.ErrUnsupported) {
			return all, err
		}
	}
	all, err := c.listContainersBy(ctx, filter)
	if labels == nil && tooLarge(err) {
		return c.listContainersInParts(ctx)
	}
	return all, err
}

func (c *Client) listContainersBy(ctx context.Context, filter *v1.ContainerFilter) ([]*v1.Container, error) {
	resp, err := do(ctx, c, "ListContainers", "", c.cfg.Timeout, c.rs.ListContainers, &v1.ListContainersRequest{Filter: filter})
	return resp.GetContainers(), err
}

// tooLarge reports whether an answer was larger than the runtime may send. Ours
// to take is far above what any runtime sends.
func tooLarge(err error) bool { return status.Code(err) == codes.ResourceExhausted }

// listContainersInParts lists the containers of a node that has too many dead
// ones for one answer: those of each state, and if there are too many of one
// state those of each sandbox. The parts are not of one moment; a container
// that ends in between is in both and counted as ended.
func (c *Client) listContainersInParts(ctx context.Context) ([]*v1.Container, error) {
	at := make(map[string]int)
	var all []*v1.Container
	add := func(part []*v1.Container) {
		for _, ct := range part {
			if i, ok := at[ct.GetId()]; ok {
				all[i] = ct
				continue
			}
			at[ct.GetId()] = len(all)
			all = append(all, ct)
		}
	}
	for _, state := range []v1.ContainerState{
		v1.ContainerState_CONTAINER_CREATED, v1.ContainerState_CONTAINER_RUNNING,
		v1.ContainerState_CONTAINER_UNKNOWN, v1.ContainerState_CONTAINER_EXITED,
	} {
		filter := &v1.ContainerFilter{State: &v1.ContainerStateValue{State: state}}
		part, err := c.listContainersBy(ctx, filter)
		if tooLarge(err) {
			part, err = c.listBySandbox(ctx, filter.GetState())
		}
		if err != nil {
			return nil, err
		}
		add(part)
	}
	return all, nil
}

func (c *Client) listBySandbox(ctx context.Context, state *v1.ContainerStateValue) ([]*v1.Container, error) {
	sandboxes, err := c.listSandboxes(ctx, nil)
	if err != nil {
		return nil, err
	}
	var all []*v1.Container
	for _, s := range sandboxes {
		part, err := c.listContainersBy(ctx, &v1.ContainerFilter{State: state, PodSandboxId: s.GetId()})
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	return all, nil
}

// collect reads a streamed list to its end, all or nothing. Like an answer it has at most
// mostListed bytes: a stream that does not end must not cost the agent its memory. unsupported
// is set when the runtime has no such stream.
func collect[Req, Resp, Item any](ctx context.Context, c *Client, rpc string, unsupported *atomic.Bool,
	open func(context.Context, Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error), req Req, items func(*Resp) []Item,
) (all []Item, err error) {
	within, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if hook := c.cfg.Hooks.Call; hook != nil {
		began := time.Now()
		defer func() { hook(rpc, time.Since(began), err) }()
	}
	stream, err := open(within, req)
	size := 0
	for err == nil {
		var part *Resp
		if part, err = stream.Recv(); err != nil {
			break
		}
		message, _ := any(part).(proto.Message) // as all that is generated
		if size += proto.Size(message); size > c.mostListed {
			err = status.Errorf(codes.ResourceExhausted, "the list has more than %d bytes", c.mostListed)
			break
		}
		all = append(all, items(part)...)
	}
	if errors.Is(err, io.EOF) {
		return all, nil
	}
	if status.Code(err) == codes.Unimplemented {
		unsupported.Store(true)
	}
	return nil, newError(ctx, within, rpc, "", c.cfg.Timeout, err)
}

// listing groups list items by pod.
type listing struct {
	bootID string
	pods   []runtime.Pod
	at     map[types.UID]int // index in pods
}

func (b *listing) pod(uid, namespace, name string) *runtime.Pod {
	if b.at == nil {
		b.at = make(map[types.UID]int)
	}
	i, ok := b.at[types.UID(uid)]
	if !ok {
		i = len(b.pods)
		b.at[types.UID(uid)] = i
		b.pods = append(b.pods, runtime.Pod{UID: types.UID(uid), Namespace: namespace, Name: name})
	}
	return &b.pods[i]
}

func (b *listing) sandbox(s *v1.PodSandbox) {
	m := s.GetMetadata()
	uid := m.GetUid()
	if uid == "" {
		return
	}
	p := b.pod(uid, m.GetNamespace(), m.GetName())
	p.Sandboxes = append(p.Sandboxes, translate.ObservedSandbox(s))
}

func (b *listing) container(ct *v1.Container) {
	l := ct.GetLabels()
	uid := l[runtime.LabelPodUID]
	if uid == "" {
		return
	}
	p := b.pod(uid, l[runtime.LabelPodNamespace], l[runtime.LabelPodName])
	p.Containers = append(p.Containers, translate.ObservedContainer(ct, b.bootID))
}

// newestFirst sorts sandboxes and containers by attempt, newest first, and those of one
// attempt by time of creation. The time is only the second key, because the clock of the
// node may have been set back between two attempts. What a runtime lists twice counts once, as it
// was last: a second ready sandbox would cost the pod all its containers.
func newestFirst(p *runtime.Pod) {
	slices.SortStableFunc(p.Sandboxes, func(a, b runtime.Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	slices.SortStableFunc(p.Containers, func(a, b runtime.Container) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	p.Sandboxes = lastOfEach(p.Sandboxes, func(s *runtime.Sandbox) string { return s.ID })
	p.Containers = lastOfEach(p.Containers, func(c *runtime.Container) string { return c.ID })
}

// lastOfEach keeps the last of neighbours with one id, in place.
func lastOfEach[T any](sorted []T, id func(*T) string) []T {
	kept := sorted[:0]
	for i := range sorted {
		if i+1 == len(sorted) || id(&sorted[i]) != id(&sorted[i+1]) {
			kept = append(kept, sorted[i])
		}
	}
	return kept
}
