package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
)

// Options returns the options that make an agent a node of the cluster: its pods, their
// statuses, mirror pods of its static pods, and events. The agent runs Kube.Run. cacheDir
// is the directory of podsource.Cached, which keeps the pods on disk for a start
// without the API server; "" keeps none.
func (k *Kube) Options(cacheDir string) []agent.Option {
	var pods podsource.Source = k.pods
	if cacheDir != "" {
		pods = podsource.Cached(pods, cacheDir)
	}
	return []agent.Option{
		agent.WithNodeName(k.cfg.NodeName),
		agent.WithSource(podspec.SourceAPI, pods),
		agent.WithStatusSink(k.statuses),
		agent.WithRecorder(k.events),
		agent.WithRunner("kube", func(c *agent.Components) (agent.Runner, error) {
			k.setAgent(components{c})
			return k, nil
		}),
	}
}

// components are the nodeAgent of an agent.
type components struct{ *agent.Components }

func (c components) Resend(uid types.UID) { c.StatusManager.Resend(uid) }

func (c components) Requeue(uid types.UID) { c.PodWorkers.Requeue(uid, podworkers.RequeueNow) }

func (c components) Pods() (desired []*corev1.Pod, synced bool) {
	synced = len(c.Sources.Unsynced()) == 0 // first: what syncs meanwhile is in the pods
	return c.Sources.Pods(), synced
}

func (c components) MayBeDesired(pod *corev1.Pod) bool {
	return c.Sources.MayBeDesired(pod.Annotations[podspec.AnnotationSource], pod.Namespace, pod.Name)
}

var _ agent.Runner = (*Kube)(nil)
