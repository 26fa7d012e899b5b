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

// Watch calls hint with the UID of each pod of the owner that the runtime tells an
// event of, until ctx ends or the stream breaks, and returns why. It never returns nil. A
// runtime without events is runtime.ErrUnsupported. Hints are hints: a runtime
// may repeat them, tell them late and tell of pods long gone.
//
// The stream has no deadline; it is the only call without one.
func (c *Client) Watch(ctx context.Context, hint func(types.UID)) error {
	return c.WatchTimestamped(ctx, func(uid types.UID, _ time.Time) { hint(uid) })
}

// WatchTimestamped is Watch with the time at which the runtime says that it happened, by
// this machine's clock. It is zero where the runtime tells none, or one without a
// fraction of a second: that may be rounded down.
func (c *Client) WatchTimestamped(ctx context.Context, hint func(uid types.UID, at time.Time)) error {
	const rpc = "GetContainerEvents"
	stream, err := c.rs.GetContainerEvents(ctx, &v1.GetEventsRequest{})
	for err == nil {
		var ev *v1.ContainerEventResponse
		if ev, err = stream.Recv(); err == nil {
			if uid := c.podOf(ev); uid != "" {
				hint(uid, happenedAt(ev))
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = status.Error(codes.Unavailable, "the runtime ended the stream")
	}
	return newError(ctx, ctx, rpc, "", 0, err)
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
