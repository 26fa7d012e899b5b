package kube

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/notify"
	"github.com/sublet-dev/agent/internal/sleep"
)

// nodeFile is the file beside the pods with what the Node was last known to have.
const nodeFile = "node.json"

// keptNode is what is kept of a Node for a start without the API server: pods that ran must not be
// rejected because their node selectors name labels that others have set.
type keptNode struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

// loadLabels returns the labels that the Node had last, with those of the configuration.
func (n *Node) loadLabels() map[string]string {
	var kept keptNode
	if !n.dir.read(nodeFile, &kept) || kept.Name != n.kube.cfg.NodeName || kept.Labels == nil {
		return n.cfg.Labels
	}
	maps.Copy(kept.Labels, n.cfg.Labels) // they are set on the Node at the start
	return kept.Labels
}

// note remembers the labels and the addresses of the Node. n.mu is held.
func (n *Node) note(current *corev1.Node) {
	n.kube.noteAddresses(current)
	n.lastLabels = current.Labels
	if n.lastLabels == nil {
		n.lastLabels = map[string]string{}
	}
	notify.Send(n.labelsNoted)
}

// keepLabels writes the labels of the Node to disk when they have changed, until ctx is done. It has a
// goroutine of its own, because the disk may be slow.
func (n *Node) keepLabels(ctx context.Context) {
	if n.dir == "" {
		return
	}
	file := filepath.Join(string(n.dir), nodeFile)
	_ = atomicfile.RemovePartial(file) // the next write replaces the file anyway
	var kept keptNode
	n.dir.read(nodeFile, &kept)
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.labelsNoted:
		}
		n.mu.Lock()
		next := keptNode{n.kube.cfg.NodeName, n.lastLabels}
		n.mu.Unlock()
		if kept.Name == next.Name && maps.Equal(kept.Labels, next.Labels) {
			continue
		}
		err := os.MkdirAll(string(n.dir), 0o700)
		if err == nil {
			err = n.dir.write(nodeFile, next)
		}
		if err == nil {
			kept = next
			continue
		}
		n.log.Warn("labels of the node not kept on disk", logattr.Err(fmt.Errorf("%s: %w", file, err)))
		_ = sleep.For(ctx, retryPeriod) // the loop ends with ctx
		notify.Send(n.labelsNoted)
	}
}
