package kube

import (
	"context"
	"log/slog"
	"slices"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/internal/sleep"
)

// passPodCIDRs passes the pod CIDRs of the Node to the runtime once they are known, and when they have
// changed, until ctx is done. A runtime may wait for them to configure its network.
func (n *Node) passPodCIDRs(ctx context.Context) {
	if n.cfg.UpdatePodCIDRs == nil {
		return
	}
	var passed []string
	var failure string      // the last one, so that it is logged once
	wait := conditionPeriod // a Node that exists is known soon
	for sleep.For(ctx, wait) == nil {
		wait = n.cfg.StatusPeriod
		current := n.Current()
		if current == nil || len(current.Spec.PodCIDRs) == 0 || slices.Equal(passed, current.Spec.PodCIDRs) {
			continue
		}
		cidrs := slices.Clone(current.Spec.PodCIDRs)
		switch err := n.updatePodCIDRs(ctx, cidrs); {
		case ctx.Err() != nil:
			return
		case err != nil:
			if text := err.Error(); text != failure {
				failure = text
				n.log.Warn("pod CIDRs not passed to the runtime", slog.Any("podCIDRs", cidrs), logattr.Err(err))
			}
		default:
			passed, failure = cidrs, ""
			n.log.Info("pod CIDRs passed to the runtime", slog.Any("podCIDRs", cidrs))
		}
	}
}

func (n *Node) updatePodCIDRs(ctx context.Context, cidrs []string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return safe.Call(n.log, "update pod CIDRs", func() error { return n.cfg.UpdatePodCIDRs(ctx, cidrs) })
}
