package cri

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// ContainerStats measures all containers of the owner's pods. A runtime may
// leave out those that have ended. A figure that it does not know has no time.
func (c *Client) ContainerStats(ctx context.Context) ([]runtime.ContainerUsage, error) {
	stats, err := c.listStats(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.ContainerUsage, 0, len(stats))
	o := c.claims()
	for _, s := range stats {
		labels := s.GetAttributes().GetLabels()
		known := func() bool { return c.owned.has(s.GetAttributes().GetId()) }
		if uid := labels[runtime.LabelPodUID]; uid != "" && o.container(labels, known) {
			out = append(out, translate.ContainerUsage(types.UID(uid), s))
		}
	}
	return out, nil
}

func (c *Client) listStats(ctx context.Context) ([]*v1.ContainerStats, error) {
	filter := &v1.ContainerStatsFilter{}
	if !c.noStatsStream.Load() {
		all, err := collect(ctx, c, "StreamContainerStats", &c.noStatsStream, c.rs.StreamContainerStats,
			&v1.StreamContainerStatsRequest{Filter: filter}, (*v1.StreamContainerStatsResponse).GetContainerStats)
		if !errors.Is(err, runtime.ErrUnsupported) {
			return all, err
		}
	}
	resp, err := do(ctx, c, "ListContainerStats", "", c.cfg.Timeout, c.rs.ListContainerStats,
		&v1.ListContainerStatsRequest{Filter: filter})
	return resp.GetStats(), err
}
