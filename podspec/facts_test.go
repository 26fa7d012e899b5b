package podspec

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// SP-3
func TestIdentityFacts(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
	assert.Equal(t, "p_ns", FullName(pod))
	assert.False(t, IsStatic(pod) || IsMirror(pod) || IsCritical(pod) || IsHostNetwork(pod))
	assert.True(t, UsesHostUsers(pod))

	for source, static := range map[string]bool{"api": false, "file": true, "http": true} {
		pod.Annotations = map[string]string{AnnotationSource: source}
		assert.Equal(t, static, IsStatic(pod), source)
		assert.Equal(t, static, IsCritical(pod), source)
	}
	pod.Annotations = map[string]string{AnnotationMirror: "x"}
	assert.True(t, IsMirror(pod) && IsCritical(pod))
	no := false
	pod.Spec.HostUsers, pod.Spec.HostNetwork = &no, true
	assert.True(t, IsHostNetwork(pod) && !UsesHostUsers(pod))
}

func TestReplaces(t *testing.T) {
	pod := func(created, started int64, terminating bool) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(created, 0)}}
		if at := metav1.Unix(started, 0); started > 0 {
			p.Status.StartTime = &at
		}
		if terminating {
			p.DeletionTimestamp = &metav1.Time{Time: time.Unix(created, 0)}
		}
		return p
	}
	better := []*corev1.Pod{pod(1, 5, false), pod(4, 0, false), pod(9, 3, false), pod(2, 9, true), pod(8, 0, true)} // the first is the one
	for i, a := range better {
		assert.False(t, Replaces(a, a))
		for _, b := range better[i+1:] {
			assert.True(t, Replaces(a, b))
			assert.False(t, Replaces(b, a))
		}
	}
}

// SP-3
func TestPriority(t *testing.T) {
	for name, tc := range map[string]struct {
		class    string
		number   *int32
		want     int32
		critical bool
	}{
		"none":             {want: 0},
		"a number":         {number: new(int32(7)), want: 7},
		"of the node":      {class: "system-node-critical", want: 2000001000, critical: true},
		"of the cluster":   {class: "system-cluster-critical", want: 2000000000, critical: true},
		"the number wins":  {class: "system-node-critical", number: new(int32(1)), want: 1},
		"an unknown class": {class: "mine", want: 0},
		"a high number":    {number: new(int32(2000000000)), want: 2000000000, critical: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{PriorityClassName: tc.class, Priority: tc.number}}
			assert.Equal(t, tc.want, Priority(pod))
			assert.Equal(t, tc.critical, IsCritical(pod))
		})
	}
}

func TestGracePeriod(t *testing.T) {
	pod := &corev1.Pod{}
	assert.Equal(t, 30*time.Second, GracePeriod(pod))
	pod.Spec.TerminationGracePeriodSeconds = new(int64(0))
	assert.Equal(t, time.Duration(0), GracePeriod(pod))
	pod.Spec.TerminationGracePeriodSeconds = new(int64(-3))
	assert.Equal(t, time.Duration(0), GracePeriod(pod))
	pod.Spec.TerminationGracePeriodSeconds = new(int64(math.MaxInt64))
	assert.Greater(t, GracePeriod(pod), 290*365*24*time.Hour)
	pod.DeletionGracePeriodSeconds = new(int64(5))
	assert.Greater(t, GracePeriod(pod), time.Hour, "not being deleted")
	pod.DeletionTimestamp = &metav1.Time{}
	assert.Equal(t, 5*time.Second, GracePeriod(pod))
}

// SP-3: effective requests and limits.
func TestRequestsAndLimits(t *testing.T) {
	c := func(name, cpu, more string) string {
		return "  - {name: " + name + ", image: i, resources: {requests: {cpu: " + cpu + "}, limits: {cpu: " + cpu + "}}" + more + "}\n"
	}
	side := ", restartPolicy: Always"
	for name, tc := range map[string]struct{ spec, requests, limits string }{
		"regular ones add up":         {"  containers:\n" + c("a", "1", "") + c("b", "2", ""), "{cpu: 3}", "{cpu: 3}"},
		"an init container is more":   {"  containers:\n" + c("a", "1", "") + "  initContainers:\n" + c("i", "5", ""), "{cpu: 5}", "{cpu: 5}"},
		"init containers one by one":  {"  containers:\n" + c("a", "1", "") + "  initContainers:\n" + c("i", "2", "") + c("j", "2", ""), "{cpu: 2}", "{cpu: 2}"},
		"a sidecar beside regulars":   {"  containers:\n" + c("a", "1", "") + "  initContainers:\n" + c("s", "2", side), "{cpu: 3}", "{cpu: 3}"},
		"init after a sidecar":        {"  containers:\n" + c("a", "1", "") + "  initContainers:\n" + c("s", "2", side) + c("i", "4", ""), "{cpu: 6}", "{cpu: 6}"},
		"init before a sidecar":       {"  containers:\n" + c("a", "1", "") + "  initContainers:\n" + c("i", "4", "") + c("s", "2", side), "{cpu: 4}", "{cpu: 4}"},
		"overhead":                    {"  overhead: {cpu: 500m, memory: 1Mi}\n  containers:\n" + c("a", "1", ""), "{cpu: 1500m, memory: 1Mi}", "{cpu: 1500m}"},
		"the pod as a whole":          {"  resources: {requests: {cpu: 7}, limits: {cpu: 8}}\n  containers:\n" + c("a", "1", ""), "{cpu: 7}", "{cpu: 8}"},
		"one without a limit":         {"  containers:\n" + c("a", "1", "") + "  - {name: b, image: i}\n", "{cpu: 1}", "{}"},
		"a limit of the pod holds it": {"  resources: {limits: {cpu: 8}}\n  containers:\n" + c("a", "1", "") + "  - {name: b, image: i}\n", "{cpu: 1}", "{cpu: 8}"},
		"a limit of 0 of the pod":     {"  resources: {limits: {cpu: 0, memory: 1Gi}}\n  overhead: {cpu: 250m}\n  containers:\n" + c("a", "0", ""), "{cpu: 250m, memory: 1Gi}", "{memory: 1Gi}"},
		"devices":                     {with("resources: {limits: {'x.io/gpu': 2}}"), "{x.io/gpu: 2}", "{x.io/gpu: 2}"},
		"nothing":                     {one, "{}", "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			var want corev1.ResourceRequirements
			require.NoError(t, yaml.Unmarshal([]byte("{requests: "+tc.requests+", limits: "+tc.limits+"}"), &want))
			pod := podWith(t, tc.spec)
			was := pod.DeepCopy()
			assertList(t, want.Requests, Requests(pod))
			assertList(t, want.Limits, Limits(pod))
			assert.Equal(t, was, pod, "the pod is only looked at")
		})
	}
}

// SP-3: the limits that there are add up, whether or not each container has one.
func TestLimitSum(t *testing.T) {
	c := func(name, limits, more string) string {
		return "  - {name: " + name + ", image: i, resources: {limits: {" + limits + "}}" + more + "}\n"
	}
	for name, tc := range map[string]struct{ spec, want string }{
		"all have one":                 {"  containers:\n" + c("a", "cpu: 1", "") + c("b", "cpu: 2", ""), "{cpu: 3}"},
		"one has none":                 {"  containers:\n" + c("a", "cpu: 1", "") + c("b", "", ""), "{cpu: 1}"},
		"a sidecar's counts besides":   {"  containers:\n" + c("a", "cpu: 1", "") + "  initContainers:\n" + c("s", "cpu: 2", ", restartPolicy: Always"), "{cpu: 3}"},
		"an init container's is alone": {"  containers:\n" + c("a", "cpu: 1", "") + "  initContainers:\n" + c("s", "cpu: 2", ""), "{cpu: 2}"},
		"with overhead":                {"  overhead: {cpu: 1, memory: 1Mi}\n  containers:\n" + c("a", "cpu: 1", "") + c("b", "", ""), "{cpu: 2}"},
		"none":                         {"  containers:\n" + c("a", "", ""), "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			var want corev1.ResourceList
			require.NoError(t, yaml.Unmarshal([]byte(tc.want), &want))
			assertList(t, want, LimitSum(podWith(t, tc.spec)))
		})
	}
}

// SP-3: what a pod may hold at once, found by going through its life step by
// step, is what Requests says.
func TestRequestsAgainstALifeStepByStep(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	always := corev1.ContainerRestartPolicyAlways
	for range 2000 {
		pod := &corev1.Pod{}
		container := func() corev1.Container {
			return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewQuantity(rng.Int64N(5), resource.DecimalSI),
			}}}
		}
		cpu := func(c corev1.Container) int64 { return c.Resources.Requests.Cpu().Value() }
		var running, most int64
		for range rng.IntN(5) {
			c := container()
			if rng.IntN(2) == 0 {
				c.RestartPolicy = &always
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
			running += cpu(c)
			most = max(most, running)
			if c.RestartPolicy == nil {
				running -= cpu(c)
			}
		}
		for range 1 + rng.IntN(3) {
			c := container()
			pod.Spec.Containers = append(pod.Spec.Containers, c)
			running += cpu(c)
		}
		got := Requests(pod)
		require.Equal(t, max(most, running), got.Cpu().Value(), "%+v", pod.Spec)
	}
}

// SP-3
func TestQOS(t *testing.T) {
	for name, tc := range map[string]struct {
		spec string
		want corev1.PodQOSClass
	}{
		"nothing":               {one, corev1.PodQOSBestEffort},
		"devices do not count":  {with("resources: {limits: {'x.io/gpu': 2, ephemeral-storage: 1}}"), corev1.PodQOSBestEffort},
		"zeros do not count":    {with("resources: {limits: {cpu: 0}}"), corev1.PodQOSBestEffort},
		"both limits":           {with("resources: {limits: {cpu: 1, memory: 1}}"), corev1.PodQOSGuaranteed},
		"one limit":             {with("resources: {limits: {cpu: 1}}"), corev1.PodQOSBurstable},
		"lower requests":        {with("resources: {limits: {cpu: 1, memory: 1}, requests: {cpu: 500m}}"), corev1.PodQOSBurstable},
		"one of two bounded":    {with("resources: {limits: {cpu: 1, memory: 1}}") + "  - {name: b, image: i}\n", corev1.PodQOSBurstable},
		"init container too":    {with("resources: {limits: {cpu: 1, memory: 1}}") + "  initContainers:\n  - {name: b, image: i}\n", corev1.PodQOSBurstable},
		"the pod guarantees":    {one + "  resources: {limits: {cpu: 1, memory: 1}}\n", corev1.PodQOSGuaranteed},
		"the pod bursts":        {with("resources: {limits: {cpu: 1, memory: 1}}") + "  resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 1}}\n", corev1.PodQOSBurstable},
		"ephemeral is no loss":  {with("resources: {limits: {cpu: 1, memory: 1}}") + "  ephemeralContainers:\n  - {name: b, image: i}\n", corev1.PodQOSGuaranteed},
		"1 and 1000m are equal": {with("resources: {limits: {cpu: 1, memory: 1}, requests: {cpu: 1000m, memory: 1}}"), corev1.PodQOSGuaranteed},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, QOS(podWith(t, tc.spec))) })
	}
}

func TestObjectRefs(t *testing.T) {
	pod := podWith(t, `  imagePullSecrets: [{name: pull}]
  containers:
  - name: a
    image: i
    envFrom: [{configMapRef: {name: c1}}, {secretRef: {name: s1, optional: true}}]
    env:
    - {name: A, valueFrom: {configMapKeyRef: {name: c2, key: k, optional: true}}}
    - {name: B, valueFrom: {secretKeyRef: {name: s1, key: k}}}
  volumes:
  - {name: v1, secret: {secretName: s2, optional: true}}
  - {name: v2, projected: {sources: [{configMap: {name: c2, optional: true}}, {secret: {name: pull}}]}}
  - {name: v3, configMap: {name: c3}}
  - {name: v4, csi: {driver: d, nodePublishSecretRef: {name: s3}}}
  - {name: v5, csi: {driver: d}}
`)
	pod.Namespace = "ns"
	assert.Equal(t, []ObjectRef{
		{Ref{Secret, "ns", "pull"}, false},
		{Ref{Secret, "ns", "s2"}, true},
		{Ref{ConfigMap, "ns", "c2"}, true},
		{Ref{ConfigMap, "ns", "c3"}, false},
		{Ref{Secret, "ns", "s3"}, false},
		{Ref{ConfigMap, "ns", "c1"}, false},
		{Ref{Secret, "ns", "s1"}, false},
	}, ObjectRefs(pod))
}

func TestHostPorts(t *testing.T) {
	pod := podWith(t, with("ports: [{containerPort: 1}, {containerPort: 2, hostPort: 3}]")+
		"  initContainers:\n  - {name: s, image: i, restartPolicy: Always, ports: [{containerPort: 1, hostPort: 4}]}\n  - {name: t, image: i, ports: [{containerPort: 1, hostPort: 5}]}\n")
	var got []int32
	for _, p := range HostPorts(pod) {
		got = append(got, p.HostPort)
	}
	assert.Equal(t, []int32{4, 3}, got)
}

func TestNewEvent(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: corev1.PodSpec{NodeName: "n"}}
	e := NewEvent(pod, corev1.EventTypeWarning, "Failed", "why", time.Unix(1, 2))
	assert.Equal(t, "default", e.Namespace)
	assert.Equal(t, corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}, e.InvolvedObject)
	assert.Equal(t, "Warning Failed why", e.Type+" "+e.Reason+" "+e.Message)
	assert.Equal(t, int32(1), e.Count)
	assert.NotEqual(t, e.Name, NewEvent(pod, "Normal", "x", "y", time.Unix(1, 3)).Name)
}

// Events of a pod or node with a long name have a name that an API server takes.
func TestNewEvent_LongName(t *testing.T) {
	now := time.Date(2026, 11, 28, 4, 0, 0, 0, time.UTC)
	for _, name := range []string{
		"p", strings.Repeat("a", 236), strings.Repeat("a", 237), strings.Repeat("a", 253),
		strings.Repeat("a.", 126) + "a", strings.Repeat("a-", 126) + "a", strings.Repeat("a", 200) + strings.Repeat("-", 52) + "a",
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, e := range []*corev1.Event{NewEvent(pod, "Normal", "x", "y", now), NewNodeEvent(name, "Normal", "x", "y", now)} {
			assert.Empty(t, validation.IsDNS1123Subdomain(e.Name), "%s: %s", name, e.Name)
			assert.Equal(t, name, e.InvolvedObject.Name)
			assert.True(t, strings.HasSuffix(e.Name, "."+strconv.FormatInt(now.UnixNano(), 16)), e.Name)
		}
		if len(name) <= 236 {
			assert.True(t, strings.HasPrefix(NewEvent(pod, "Normal", "x", "y", now).Name, name+"."))
		}
	}
}

// SP-3: a critical pod preempts those that are not, and critical ones of a lower priority.
func TestPreempts(t *testing.T) {
	newPod := func(priority *int32, static bool) *corev1.Pod {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Priority: priority}}
		if static {
			pod.Annotations = map[string]string{AnnotationSource: "file"}
		}
		return pod
	}
	plain, high := newPod(new(int32(0)), false), newPod(new(int32(1_000_000_000)), false)
	static, static0, static1 := newPod(nil, true), newPod(new(int32(0)), true), newPod(new(int32(1)), true)
	cluster, node := newPod(new(SystemCriticalPriority), false), newPod(nil, false)
	node.Spec.PriorityClassName = "system-node-critical"
	pods := map[string]*corev1.Pod{
		"plain": plain, "high": high, "static": static, "static0": static0, "static1": static1, "cluster": cluster, "node": node,
	}
	want := map[string][]string{
		"plain": {}, "high": {},
		"static":  {"high", "plain"}, // without a priority it is neither higher nor lower
		"static0": {"high", "plain"},
		"static1": {"high", "plain", "static0"},
		"cluster": {"high", "plain", "static0", "static1"},
		"node":    {"cluster", "high", "plain", "static0", "static1"},
	}
	for name, pod := range pods {
		others := []string{}
		for other := range pods {
			if Preempts(pod, pods[other]) {
				others = append(others, other)
			}
		}
		assert.ElementsMatch(t, want[name], others, name)
	}
}
