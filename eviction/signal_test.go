package eviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
)

func fsUsage(at time.Time, n uint64) runtime.FSUsage {
	return runtime.FSUsage{At: at, CapacityBytes: 1000 + n, AvailableBytes: n, Inodes: 100 + n, InodesUsed: 100, Device: n}
}

func stallUsage(at time.Time, n float64) runtime.PSIStats {
	return runtime.PSIStats{At: at, Some: runtime.PSIData{Avg10: n, Total: uint64(n)}, Full: runtime.PSIData{Avg10: n + 0.5, Total: uint64(n) * 10}}
}

// EV-1, EV-2: each signal reads its own figure, and one that is not known says
// nothing.
func TestObserve(t *testing.T) {
	at := time.Now()
	u := &runtime.NodeUsage{
		Memory:     runtime.MemoryUsage{At: at, Capacity: 50, WorkingSet: 20},
		PodsMemory: runtime.MemoryUsage{At: at, Capacity: 40, WorkingSet: 15},
		Pids:       runtime.PidUsage{At: at, Max: 90, Used: 11},
		NodeFS:     fsUsage(at, 1), ImageFS: fsUsage(at, 2), ContainerFS: fsUsage(at, 3),
		MemoryPressure: stallUsage(at, 10), IOPressure: stallUsage(at, 20), CPUPressure: stallUsage(at, 30),
	}
	left := func(s Signal, available, capacity uint64) observation {
		return observation{Signal: s, Available: available, Capacity: capacity, At: at}
	}
	stall := func(s Signal, percent float64, micros int) observation {
		return observation{Signal: s, Percent: percent, Waited: time.Duration(micros) * time.Microsecond, At: at}
	}
	want := map[Signal]observation{}
	for _, o := range []observation{
		left(MemoryAvailable, 30, 50), left(AllocatableMemoryAvailable, 25, 40), left(PIDAvailable, 79, 90),
		left(NodeFSAvailable, 1, 1001), left(NodeFSInodesFree, 1, 101),
		left(ImageFSAvailable, 2, 1002), left(ImageFSInodesFree, 2, 102),
		left(ContainerFSAvailable, 3, 1003), left(ContainerFSInodesFree, 3, 103),
		stall(MemoryPSISome, 10, 10), stall(MemoryPSIFull, 10.5, 100), stall(IOPSISome, 20, 20), stall(IOPSIFull, 20.5, 200),
		stall(CPUPSISome, 30, 30), stall(CPUPSIFull, 30.5, 300),
	} {
		want[o.Signal] = o
	}
	assert.Equal(t, want, observe(u))
	assert.Len(t, want, len(Signals()), "all of them")
	assert.Empty(t, observe(&runtime.NodeUsage{}))
	assert.Empty(t, observe(&runtime.NodeUsage{
		Memory: runtime.MemoryUsage{At: at}, PodsMemory: runtime.MemoryUsage{At: at}, NodeFS: runtime.FSUsage{At: at},
	}), "without a bound nothing is left of it")
	over := observe(&runtime.NodeUsage{
		Pids:   runtime.PidUsage{At: at, Max: 5, Used: 9},
		NodeFS: runtime.FSUsage{At: at, Inodes: 5, InodesUsed: 9},
	})
	assert.Zero(t, over[PIDAvailable].Available)
	assert.Zero(t, over[NodeFSInodesFree].Available)
}

// EV-1, EV-8: what is fixed about each signal.
func TestAbout(t *testing.T) {
	for _, s := range Signals() {
		f, ok := infoFor(s)
		assert.True(t, ok, s)
		want := map[corev1.ResourceName]corev1.NodeConditionType{
			corev1.ResourceMemory: corev1.NodeMemoryPressure, corev1.ResourceEphemeralStorage: corev1.NodeDiskPressure,
			resourceInodes: corev1.NodeDiskPressure, resourcePids: corev1.NodePIDPressure,
		}[f.resource]
		assert.Equal(t, want, f.condition, s)
		assert.Equal(t, f.condition == corev1.NodeDiskPressure && !f.pressure, f.disk, s)
		assert.Equal(t, f.pressure, f.stall != nil, s)
		assert.Equal(t, !f.pressure, f.read != nil, s)
	}
	_, ok := infoFor("x")
	assert.False(t, ok)
	assert.Equal(t, 0, comparePriority(MemoryAvailable))
	assert.Empty(t, Rank("x", []*corev1.Pod{{}}, &runtime.NodeUsage{Pods: []runtime.PodUsage{{}}}, time.Time{}))
}

// EV-5: what a pod takes up of which disk, by how disks are laid out.
func TestPodDisk(t *testing.T) {
	at := time.Now()
	disk := func(n uint64) runtime.DiskUsage { return runtime.DiskUsage{At: at, Bytes: n, Inodes: n} }
	pod := &runtime.PodUsage{
		Containers:       []runtime.ContainerUsage{{Rootfs: disk(1), Logs: disk(10)}},
		Volumes:          map[string]runtime.VolumeUsage{"v": {DiskUsage: disk(100)}, "m": {DiskUsage: disk(1 << 40), Uncounted: true}},
		ExitedContainers: disk(1000), Files: disk(10000),
	}
	const layer, local, dead = 1, 10 + 100 + 10000, 1000
	for name, tc := range map[string]struct {
		node, image, container runtime.FSUsage
		onNode, onImage, onCtr uint64
	}{
		"one for all":             {fsUsage(at, 1), fsUsage(at, 1), fsUsage(at, 1), layer + local + dead, layer + local + dead, layer + local + dead},
		"nothing is told":         {onNode: layer + local + dead, onImage: layer + local + dead, onCtr: layer + local + dead},
		"images apart":            {fsUsage(at, 1), fsUsage(at, 2), fsUsage(at, 2), local, layer + dead, layer + dead},
		"images alone apart":      {fsUsage(at, 1), fsUsage(at, 2), fsUsage(at, 1), layer + local + dead, 0, layer + local + dead},
		"layers not told":         {node: fsUsage(at, 1), image: fsUsage(at, 2), onNode: local, onImage: layer + dead, onCtr: layer + dead},
		"all three apart":         {fsUsage(at, 1), fsUsage(at, 2), fsUsage(at, 3), local, 0, layer + dead},
		"devices are not told":    {runtime.FSUsage{At: at, Mountpoint: "/a"}, runtime.FSUsage{At: at, Mountpoint: "/b"}, runtime.FSUsage{At: at, Mountpoint: "/b"}, local, layer + dead, layer + dead},
		"nor are they, and equal": {runtime.FSUsage{At: at, Mountpoint: "/a"}, runtime.FSUsage{At: at, Mountpoint: "/a"}, runtime.FSUsage{At: at, Mountpoint: "/a"}, layer + local + dead, layer + local + dead, layer + local + dead},
	} {
		t.Run(name, func(t *testing.T) {
			l := layoutOf(&runtime.NodeUsage{NodeFS: tc.node, ImageFS: tc.image, ContainerFS: tc.container})
			for s, want := range map[Signal]uint64{
				NodeFSAvailable: tc.onNode, NodeFSInodesFree: tc.onNode, ImageFSAvailable: tc.onImage, ImageFSInodesFree: tc.onImage,
				ContainerFSAvailable: tc.onCtr, ContainerFSInodesFree: tc.onCtr,
			} {
				got := podDisk(s, pod, l, time.Time{})
				assert.Equal(t, want, got.Bytes, s)
				assert.Equal(t, want > 0, !got.At.IsZero(), s)
				assert.Zero(t, podDisk(s, pod, l, at.Add(1)).Bytes, "an old figure")
			}
		})
	}
}

// EV-9: what a pod has to tolerate to start under memory pressure.
func TestToleratesMemoryPressure(t *testing.T) {
	for name, tc := range map[string]struct {
		t    corev1.Toleration
		want bool
	}{
		"everything":      {corev1.Toleration{Operator: corev1.TolerationOpExists}, true},
		"the taint":       {corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists}, true},
		"any value":       {corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Value: "x"}, true},
		"by its value":    {corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpEqual}, true},
		"by another":      {corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpEqual, Value: "x"}, false},
		"its effect":      {corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, true},
		"another effect":  {corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}, false},
		"another taint":   {corev1.Toleration{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists}, false},
		"no key, a value": {corev1.Toleration{Operator: corev1.TolerationOpEqual}, false},
		"nothing at all":  {corev1.Toleration{}, false},
	} {
		assert.Equal(t, tc.want, toleratesMemoryPressure(&corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{tc.t}}}), name)
	}
}

// EV-8: a condition holds for the transition period after the last breach, and its
// time of transition is that of its status.
func TestThresholdState_ConditionsLastForTransitionPeriod(t *testing.T) {
	now := time.Now()
	s := newState(nil, time.Minute)
	s.lastMet[corev1.NodeDiskPressure] = now
	assert.Equal(t, []corev1.NodeConditionType{corev1.NodeDiskPressure}, s.conditions(now.Add(time.Minute-1)))
	assert.Empty(t, s.conditions(now.Add(time.Minute)))
	s.transition = 0
	assert.Len(t, s.conditions(now), 1, "while it lasts")
	assert.Empty(t, s.conditions(now.Add(1)))

	first := nodeConditions(nil, nil, nil, now)
	later := now.Add(time.Minute)
	second := nodeConditions(first, []corev1.NodeConditionType{corev1.NodeDiskPressure}, map[corev1.NodeConditionType]string{
		corev1.NodeDiskPressure: "why", corev1.NodePIDPressure: "not told",
	}, later)
	for i, c := range second {
		assert.Equal(t, metav1.NewTime(later), c.LastHeartbeatTime)
		want := now
		if i == 1 {
			want = later
		}
		assert.Equal(t, metav1.NewTime(want), c.LastTransitionTime, c.Type)
	}
	text := func(list []corev1.NodeCondition) (out []string) {
		for _, c := range list {
			out = append(out, string(c.Type)+" "+string(c.Status)+" "+c.Reason+": "+c.Message)
		}
		return out
	}
	assert.Equal(t, []string{
		"MemoryPressure False KubeletHasSufficientMemory: kubelet has sufficient memory available",
		"DiskPressure True KubeletHasDiskPressure: kubelet has disk pressure: why",
		"PIDPressure False KubeletHasSufficientPID: kubelet has sufficient PID available",
	}, text(second))
	all := nodeConditions(second, conditionTypes(), nil, later.Add(time.Minute))
	assert.Equal(t, []string{
		"MemoryPressure True KubeletHasInsufficientMemory: kubelet has insufficient memory available",
		"DiskPressure True KubeletHasDiskPressure: kubelet has disk pressure",
		"PIDPressure True KubeletHasInsufficientPID: kubelet has insufficient PID available",
	}, text(all))
	assert.Equal(t, metav1.NewTime(later), all[1].LastTransitionTime)
	assert.Equal(t, "kubelet has no disk pressure", nodeConditions(all, nil, nil, later)[1].Message)
}

// EV-6: the message of an evicted pod.
func TestMessage(t *testing.T) {
	at := time.Now()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "over", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}},
		{Name: "within", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Mi")}}},
	}}}
	use := func(name string, n uint64) runtime.ContainerUsage {
		return runtime.ContainerUsage{
			Name: name, Memory: runtime.MemoryUsage{At: at, WorkingSet: n << 20},
			Rootfs: runtime.DiskUsage{At: at, Bytes: n << 20}, Logs: runtime.DiskUsage{At: at, Bytes: n << 20},
		}
	}
	u := &runtime.NodeUsage{Pods: []runtime.PodUsage{
		{UID: "other", Containers: []runtime.ContainerUsage{use("over", 9)}},
		{UID: "u", Containers: []runtime.ContainerUsage{use("over", 2), use("within", 4), use("unknown", 8)}},
	}}
	for hard, want := range map[string]struct{ text, containers, usage, starved string }{
		"memory.available<2Mi": {"The node was low on resource: memory. Threshold quantity: 2Mi, available: 1Mi. " +
			"Container over was using 2Mi, request is 1Mi, has larger consumption of memory. ", "over", "2Mi", "memory"},
		"nodefs.available<2Mi": {"The node was low on resource: ephemeral-storage. Threshold quantity: 2Mi, available: 1Mi. " +
			"Container over was using 4Mi, request is 0, has larger consumption of ephemeral-storage. " +
			"Container within was using 8Mi, request is 0, has larger consumption of ephemeral-storage. ", "over,within", "4Mi,8Mi", "ephemeral-storage"},
		"nodefs.inodesFree<2k": {"The node was low on resource: inodes. Threshold quantity: 2k, available: 1048576. ", "", "", "inodes"},
		"pid.available<2k":     {"The node was low on resource: pids. Threshold quantity: 2k, available: 1048576. ", "", "", "pids"},
	} {
		text, annotations := message(metBy(t, hard, "", 1<<20, 1<<30), Candidate{Pod: pod}, u)
		assert.Equal(t, want.text, text)
		assert.Equal(t, map[string]string{
			"offending_containers": want.containers, "offending_containers_usage": want.usage, "starved_resource": want.starved,
		}, annotations)
	}
	m := metBy(t, "io.psi.full.avg10>12.5%", "", 0, 0)
	m.observation.Percent = 45.678
	assert.Equal(t, "The node was low on resource: ephemeral-storage. Threshold pressure: 12.5%, pressure: 45.68%. The pod waited 30.00% of the time. ",
		textOf(message(m, Candidate{Pod: pod, Usage: 3000, Stalled: true}, u)))
}

// EV-6: a request of the pod itself is in the message; ephemeral containers, which cannot request anything, are not.
func TestMessage_PodLevelAndEphemeral(t *testing.T) {
	at := time.Now()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "web"}, Spec: corev1.PodSpec{
		Resources:           &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("3Mi")}},
		Containers:          []corev1.Container{{Name: "main"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
	}}
	memory := func(n uint64) runtime.MemoryUsage { return runtime.MemoryUsage{At: at, WorkingSet: n << 20} }
	u := &runtime.NodeUsage{Pods: []runtime.PodUsage{{UID: "u", Memory: memory(5), Containers: []runtime.ContainerUsage{
		{Name: "main", Memory: memory(2)}, {Name: "debug", Memory: memory(2)},
	}}}}
	text, annotations := message(metBy(t, "memory.available<2Mi", "", 1<<20, 1<<30), Candidate{Pod: pod}, u)
	assert.Equal(t, "The node was low on resource: memory. Threshold quantity: 2Mi, available: 1Mi. "+
		"Pod web was using 5Mi, request is 3Mi, has larger consumption of memory. "+
		"Container main was using 2Mi, request is 0, has larger consumption of memory. ", text)
	assert.Equal(t, map[string]string{
		"offending_pod": "web", "offending_pod_usage": "5Mi",
		"offending_containers": "main", "offending_containers_usage": "2Mi", "starved_resource": "memory",
	}, annotations)
	assert.Equal(t, "The node was low on resource: pids. Threshold quantity: 2k, available: 1048576. ",
		textOf(message(metBy(t, "pid.available<2k", "", 1<<20, 1<<30), Candidate{Pod: pod}, u)))
}

func textOf(message string, _ map[string]string) string { return message }

// EV-8: the transition time is that of the status of the same condition.
func TestNodeConditions_TransitionTime(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.NewTime(time.Unix(s, 0)) }
	memory := []corev1.NodeConditionType{corev1.NodeMemoryPressure}
	transitions := func(list []corev1.NodeCondition) (times []int64) {
		for _, c := range list {
			times = append(times, c.LastTransitionTime.Unix())
		}
		return times
	}
	first := nodeConditions(nil, nil, nil, time.Time{})
	atStart := nodeConditions(first, nil, nil, at(10).Time)
	assert.Equal(t, []int64{10, 10, 10}, transitions(atStart), "before, nothing was known")
	pressure := nodeConditions(atStart, memory, nil, at(20).Time)
	assert.Equal(t, []int64{20, 10, 10}, transitions(pressure))
	ended := nodeConditions(pressure, nil, nil, at(30).Time)
	assert.Equal(t, []int64{30, 10, 10}, transitions(ended))
	assert.Equal(t, []int64{30, 10, 10}, transitions(nodeConditions(ended, nil, nil, at(40).Time)))
}
