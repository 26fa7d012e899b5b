package kubeapi

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sublet-dev/agent/stats"
)

const (
	metricsGroup   = "metrics.k8s.io"
	metricsVersion = "v1beta1"
	// usageWindow is the time that CPU usage is the average of, about, if the runtime
	// reports it.
	usageWindow = 10 * time.Second
)

// usage is a NodeMetrics or PodMetrics of metrics.k8s.io/v1beta1.
type usage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Timestamp         metav1.Time         `json:"timestamp"`
	Window            metav1.Duration     `json:"window"`
	Usage             corev1.ResourceList `json:"usage,omitempty"`      // of a node
	Containers        []containerUsage    `json:"containers,omitempty"` // of a pod
}

// containerUsage is that of one container of a pod.
type containerUsage struct {
	Name  string              `json:"name"`
	Usage corev1.ResourceList `json:"usage"`
}

// DeepCopyObject implements runtime.Object.
func (u *usage) DeepCopyObject() runtime.Object {
	c := *u
	u.DeepCopyInto(&c.ObjectMeta)
	c.Usage = u.Usage.DeepCopy()
	c.Containers = make([]containerUsage, len(u.Containers))
	for i := range u.Containers {
		c.Containers[i] = containerUsage{u.Containers[i].Name, u.Containers[i].Usage.DeepCopy()}
	}
	return &c
}

// metricsResources returns the resources of kubectl top.
func (a *API) metricsResources() []*resource {
	if a.cfg.Stats == nil {
		return nil
	}
	verbs := []string{"get", "list"}
	nodes, pods := newCollection(a.versions), newCollection(a.versions)
	m := &meter{measure: a.cfg.Stats, measuring: newSlot()}
	refresh := shared(func(ctx context.Context) error { return a.refreshUsage(ctx, m, nodes, pods) })
	return []*resource{
		{
			group: metricsGroup, version: metricsVersion, name: "nodes", kind: "NodeMetrics", verbs: verbs,
			collection: nodes, refresh: refresh, fields: clusterFields, table: usageTable(),
		},
		{
			group: metricsGroup, version: metricsVersion, name: "pods", kind: "PodMetrics", namespaced: true, verbs: verbs,
			collection: pods, refresh: refresh, fields: namespacedFields, table: usageTable(),
		},
	}
}

// refreshUsage measures the node and its pods. What is not known yet is left out.
func (a *API) refreshUsage(ctx context.Context, m *meter, nodes, pods *collection) error {
	summary, windows, err := m.summary(ctx)
	if err != nil {
		return err
	}
	if n := summary.Node; resourceList(n.CPU, n.Memory) != nil {
		nodes.replace([]object{&usage{
			TypeMeta: usageType("NodeMetrics"), ObjectMeta: metav1.ObjectMeta{Name: a.cfg.NodeName, CreationTimestamp: metav1.Now()},
			Timestamp: n.CPU.Time, Window: metav1.Duration{Duration: usageWindow}, Usage: resourceList(n.CPU, n.Memory),
		}})
	}
	labels := map[string]map[string]string{}
	for _, pod := range a.cfg.Pods() {
		labels[keyOf(pod)] = pod.Labels
	}
	var all []object
	for i := range summary.Pods {
		if u := podUsage(&summary.Pods[i], windows); u != nil {
			u.Labels = labels[keyOf(u)]
			all = append(all, u)
		}
	}
	pods.replace(all)
	return nil
}

func usageType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: metricsGroup + "/" + metricsVersion, Kind: kind}
}

// podUsage returns the usage of the containers of a pod, or nil if none is known.
func podUsage(p *stats.PodStats, windows map[rateKey]time.Duration) *usage {
	u := &usage{
		TypeMeta: usageType("PodMetrics"), ObjectMeta: metav1.ObjectMeta{Namespace: p.PodRef.Namespace, Name: p.PodRef.Name, CreationTimestamp: metav1.Now()},
		Window: metav1.Duration{Duration: usageWindow},
	}
	for _, c := range p.Containers {
		if list := resourceList(c.CPU, c.Memory); list != nil {
			u.Timestamp = c.CPU.Time
			if window := windows[rateKey{p.PodRef.UID, c.Name}]; window > 0 {
				u.Window.Duration = window.Round(time.Millisecond)
			}
			u.Containers = append(u.Containers, containerUsage{c.Name, list})
		}
	}
	if len(u.Containers) == 0 {
		return nil
	}
	return u
}

// resourceList converts usage. It returns nil if one of both is not known.
func resourceList(cpu *stats.CPUStats, memory *stats.MemoryStats) corev1.ResourceList {
	if cpu == nil || cpu.UsageNanoCores == nil || memory == nil || memory.WorkingSetBytes == nil {
		return nil
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:    *quantity.NewScaledQuantity(int64(*cpu.UsageNanoCores), quantity.Nano),
		corev1.ResourceMemory: *quantity.NewQuantity(int64(*memory.WorkingSetBytes), quantity.BinarySI),
	}
}

func usageTable() table {
	return table{columns("Name", "CPU", "Memory", "Window"), func(o object, _ time.Time) []any {
		u, ok := o.(*usage)
		if !ok {
			return nil
		}
		cpu, memory := u.Usage.Cpu().DeepCopy(), u.Usage.Memory().DeepCopy()
		for _, c := range u.Containers {
			cpu.Add(*c.Usage.Cpu())
			memory.Add(*c.Usage.Memory())
		}
		return []any{u.Name, cpu.String(), memory.String(), u.Window.Duration.String()}
	}}
}
