package cri

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Watch calls notify with the UID of each pod of the owner for which the runtime sends an
// event, until ctx ends or the stream breaks, and returns why. It never returns nil. A
// runtime without events is runtime.ErrUnsupported. An event is only a reason to inspect
// the pod: a runtime may repeat events, send them late, and for pods that are removed. Of
// the statuses that come with it, the next inspection takes over those of containers that
// it finds running.
//
// The stream has no deadline; it is the only call without one.
func (c *Client) Watch(ctx context.Context, notify func(types.UID)) error {
	return c.WatchTimestamped(ctx, func(uid types.UID, _ time.Time) { notify(uid) })
}

// WatchTimestamped is Watch with the time at which the runtime says that it happened, by
// this machine's clock. It is zero where the runtime reports none, or one without a
// fraction of a second: that may be rounded down.
func (c *Client) WatchTimestamped(ctx context.Context, notify func(uid types.UID, at time.Time)) error {
	const rpc = "GetContainerEvents"
	stream, err := c.rs.GetContainerEvents(ctx, &v1.GetEventsRequest{})
	for err == nil {
		var ev *v1.ContainerEventResponse
		if ev, err = stream.Recv(); err == nil {
			if uid := c.podOf(ev); uid != "" {
				at := happenedAt(ev)
				c.learn(uid, at, ev)
				notify(uid, at)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.Unavailable, "the runtime ended the stream")
	}
	return newError(ctx, ctx, rpc, "", 0, err)
}

// learn remembers what an event has for the next inspection of the pod.
func (c *Client) learn(uid types.UID, at time.Time, ev *v1.ContainerEventResponse) {
	switch ev.GetContainerEventType() {
	case v1.ContainerEventType_CONTAINER_CREATED_EVENT:
	case v1.ContainerEventType_CONTAINER_STARTED_EVENT:
		c.facts.addEvent(uid, podEvent{time.Now(), at, ev.GetPodSandboxStatus(), ev.GetContainersStatuses()})
	case v1.ContainerEventType_CONTAINER_STOPPED_EVENT, v1.ContainerEventType_CONTAINER_DELETED_EVENT:
		c.facts.needLists(uid)
	}
}

func happenedAt(ev *v1.ContainerEventResponse) time.Time {
	ns := ev.GetCreatedAt()
	if ns <= 0 || ns%int64(time.Second) == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// podOf returns the pod that an event is of, or "" if it is not the owner's.
func (c *Client) podOf(ev *v1.ContainerEventResponse) types.UID {
	o, sb := c.claims(), ev.GetPodSandboxStatus()
	if uid := sb.GetMetadata().GetUid(); uid != "" {
		if !o.sandbox(sb.GetLabels(), sb.GetAnnotations()) {
			return ""
		}
		return types.UID(uid)
	}
	for _, st := range ev.GetContainersStatuses() {
		labels := st.GetLabels()
		known := func() bool { return c.owned.has(st.GetId()) }
		if uid := labels[runtime.LabelPodUID]; uid != "" && o.container(labels, known) {
			return types.UID(uid)
		}
	}
	return ""
}
