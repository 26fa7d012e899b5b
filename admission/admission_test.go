package admission

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/podspec"
)

func pod(t testing.TB, uid, spec string) *corev1.Pod {
	t.Helper()
	pods, _, err := podspec.Decode([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p-"+uid+", namespace: ns}\nspec: "+spec), podspec.DecodeOptions{})
	require.NoError(t, err)
	podspec.Default(pods[0])
	pods[0].UID = types.UID(uid)
	return pods[0]
}

func requesting(t testing.TB, uid, requests string) *corev1.Pod {
	t.Helper()
	return pod(t, uid, "{containers: [{name: a, image: i, resources: {requests: "+requests+"}}]}")
}

func static(p *corev1.Pod) *corev1.Pod {
	p.Annotations = map[string]string{podspec.AnnotationSource: "file"}
	return p
}

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

func admit(t testing.TB, cfg Config, p *corev1.Pod, others ...*corev1.Pod) podspec.AdmitResult {
	t.Helper()
	a, err := New(cfg)
	require.NoError(t, err)
	return a.Admit(p, others)
}

// SL-3, ND-1: resources are checked with the kubelet's reasons and messages.
func TestAdmitter_Resources(t *testing.T) {
	node := Config{Allocatable: list("2", "1Gi"), MaxPods: 3}
	done := requesting(t, "done", "{cpu: 2}")
	done.Status.Phase = corev1.PodFailed
	isTerminal := pod(t, "isTerminal", "{containers: [{name: a, image: i}], overhead: {cpu: 1500m}}")
	podLevel := pod(t, "pod-level", "{containers: [{name: a, image: i, resources: {requests: {cpu: 100m}}}], resources: {requests: {cpu: 1500m}}}")
	side := pod(t, "side", "{containers: [{name: a, image: i, resources: {requests: {cpu: 500m}}}], initContainers: [{name: s, image: i, restartPolicy: Always, resources: {requests: {cpu: 1}}}]}")
	for name, tc := range map[string]struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		reason string
		says   string
	}{
		"all resources":       {requesting(t, "a", "{cpu: 2, memory: 1Gi}"), nil, "", ""},
		"one too many":        {requesting(t, "a", "{cpu: 2001m}"), nil, "OutOfcpu", "Node didn't have enough resource: cpu, requested: 2001, used: 0, capacity: 2000"},
		"beside another":      {requesting(t, "a", "{cpu: 1}"), []*corev1.Pod{requesting(t, "b", "{cpu: 1500m}")}, "OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"},
		"memory":              {requesting(t, "a", "{memory: 1Gi}"), []*corev1.Pod{requesting(t, "b", "{memory: 1}")}, "OutOfmemory", "Node didn't have enough resource: memory, requested: 1073741824, used: 1, capacity: 1073741824"},
		"with overhead":       {requesting(t, "a", "{cpu: 1}"), []*corev1.Pod{isTerminal}, "OutOfcpu", "used: 1500"},
		"with pod resources":  {requesting(t, "a", "{cpu: 1}"), []*corev1.Pod{podLevel}, "OutOfcpu", "used: 1500"},
		"with a sidecar":      {requesting(t, "a", "{cpu: 1}"), []*corev1.Pod{side}, "OutOfcpu", "used: 1500"},
		"terminal pods":       {requesting(t, "a", "{cpu: 1}"), []*corev1.Pod{done, done, done, done}, "", ""},
		"itself":              {requesting(t, "a", "{cpu: 2}"), []*corev1.Pod{requesting(t, "a", "{cpu: 2}")}, "", ""},
		"nothing requested":   {requesting(t, "a", "{}"), []*corev1.Pod{requesting(t, "b", "{cpu: 99}")}, "", ""},
		"too many pods":       {requesting(t, "a", "{}"), []*corev1.Pod{requesting(t, "b", "{}"), requesting(t, "c", "{}"), requesting(t, "d", "{}")}, "OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
		"not counted":         {requesting(t, "a", "{ephemeral-storage: 1Ti}"), nil, "", ""},
		"huge pages":          {pod(t, "a", "{containers: [{name: a, image: i, resources: {limits: {cpu: 1, hugepages-2Mi: 2Mi}}}]}"), nil, "OutOfhugepages-2Mi", "requested: 2097152, used: 0, capacity: 0"},
		"not counted, static": {static(requesting(t, "a", "{ephemeral-storage: 1Ti}")), nil, "", ""},
		"a device, static":    {static(pod(t, "a", "{containers: [{name: a, image: i, resources: {limits: {'x.io/gpu': 1}}}]}")), nil, "OutOfx.io/gpu", "capacity: 0"},
		"a device, sent here": {pod(t, "a", "{containers: [{name: a, image: i, resources: {limits: {'x.io/gpu': 1}}}]}"), nil, "", ""},
		"cpu overflows":       {requesting(t, "a", "{cpu: 10P}"), nil, "OutOfcpu", fmt.Sprintf("requested: %d, used: 0, capacity: 2000", int64(math.MaxInt64))},
		"memory overflows":    {requesting(t, "a", "{memory: 10E}"), nil, "OutOfmemory", fmt.Sprintf("requested: %d, used: 0", int64(math.MaxInt64))},
		"sum overflows":       {requesting(t, "a", "{memory: 1}"), []*corev1.Pod{requesting(t, "b", "{memory: 8Ei}"), requesting(t, "c", "{memory: 8Ei}")}, "OutOfmemory", fmt.Sprint("used: ", int64(math.MaxInt64))},
	} {
		t.Run(name, func(t *testing.T) {
			result := admit(t, node, tc.pod, tc.others...)
			assert.Equal(t, tc.reason, result.Reason)
			assert.Equal(t, tc.reason == "", result.Admitted)
			assert.Contains(t, result.Message, tc.says)
		})
	}
	assert.True(t, admit(t, Config{}, requesting(t, "a", "{cpu: 1000}")).Admitted, "without Allocatable")
}

// SL-3, ND-1: a rejection contains all insufficient resources.
func TestAdmitter_InsufficientResources(t *testing.T) {
	node := Config{Allocatable: list("2", "1Gi"), MaxPods: 1}
	result := admit(t, node, requesting(t, "a", "{cpu: 1500m, memory: 2Gi}"), requesting(t, "b", "{cpu: 600m, memory: 1Mi}"))
	require.Len(t, result.Insufficient, 3)
	assert.Equal(t, "OutOfpods", result.Reason)
	assert.True(t, result.Infeasible())
	for i, want := range []struct {
		name                      corev1.ResourceName
		requested, used, capacity string
		exceeds                   bool
	}{
		{corev1.ResourcePods, "1", "1", "1", false},
		{corev1.ResourceCPU, "1500m", "600m", "2", false},
		{corev1.ResourceMemory, "2Gi", "1Mi", "1Gi", true},
	} {
		got := result.Insufficient[i]
		assert.Equal(t, want.name, got.Name)
		assert.Equal(t, []string{want.requested, want.used, want.capacity}, []string{got.Requested.String(), got.Used.String(), got.Capacity.String()})
		assert.Equal(t, want.exceeds, got.ExceedsCapacity(), got.Name)
	}

	result = admit(t, node, requesting(t, "a", "{cpu: 2, memory: 1Gi}"), requesting(t, "b", "{}"))
	assert.False(t, result.Admitted || result.Infeasible(), "feasible after the other pod has ended")
	result = admit(t, Config{NodeName: "edge"}, pod(t, "a", "{nodeName: other, containers: [{name: a, image: i}]}"))
	assert.Equal(t, ReasonNodeName, result.Reason)
	assert.Empty(t, result.Insufficient)
	assert.False(t, result.Infeasible())
	assert.Empty(t, admit(t, node, requesting(t, "a", "{cpu: 2}")).Insufficient)
}

func TestAdmitter_Ports(t *testing.T) {
	with := func(uid, ports string) *corev1.Pod {
		return pod(t, uid, "{containers: [{name: a, image: i, ports: ["+ports+"]}]}")
	}
	for name, tc := range map[string]struct {
		wants, others string
		free          bool
	}{
		"the same":             {"{containerPort: 1, hostPort: 80}", "{containerPort: 2, hostPort: 80}", false},
		"another protocol":     {"{containerPort: 1, hostPort: 80}", "{containerPort: 2, hostPort: 80, protocol: UDP}", true},
		"another port":         {"{containerPort: 1, hostPort: 80}", "{containerPort: 2, hostPort: 81}", true},
		"no host port":         {"{containerPort: 80}", "{containerPort: 80, hostPort: 80}", true},
		"two addresses":        {"{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1}", "{containerPort: 1, hostPort: 80, hostIP: 10.0.0.2}", true},
		"one address":          {"{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1}", "{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1}", false},
		"one of all":           {"{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1}", "{containerPort: 1, hostPort: 80}", false},
		"all and one":          {"{containerPort: 1, hostPort: 80, hostIP: 0.0.0.0}", "{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1}", false},
		"the second of two":    {"{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1}, {containerPort: 1, hostPort: 80, hostIP: 10.0.0.3}", "{containerPort: 1, hostPort: 80, hostIP: 10.0.0.3}", false},
		"all of version six":   {"{containerPort: 1, hostPort: 80, hostIP: '::'}", "{containerPort: 1, hostPort: 80, hostIP: 10.0.0.1}", false},
		"another's are others": {"{containerPort: 1, hostPort: 80}", "{containerPort: 80}", true},
	} {
		t.Run(name, func(t *testing.T) {
			other := with("b", tc.others)
			result := admit(t, Config{}, with("a", tc.wants), other)
			assert.Equal(t, tc.free, result.Admitted)
			if !tc.free {
				assert.Equal(t, ReasonNodePorts, result.Reason)
				assert.Contains(t, result.Message, "80 is used by pod p-b_ns")
			}
			other.Status.Phase = corev1.PodSucceeded
			assert.True(t, admit(t, Config{}, with("a", tc.wants), other).Admitted, "terminal")
		})
	}
}

// A port without a protocol is a TCP port.
func TestAdmitter_PortsWithoutProtocol(t *testing.T) {
	with := func(uid string, protocol corev1.Protocol) *corev1.Pod {
		p := pod(t, uid, "{containers: [{name: a, image: i, ports: [{containerPort: 1, hostPort: 80}]}]}")
		p.Spec.Containers[0].Ports[0].Protocol = protocol
		return p
	}
	assert.Equal(t, ReasonNodePorts, admit(t, Config{}, with("a", ""), with("b", corev1.ProtocolTCP)).Reason)
	assert.Equal(t, ReasonNodePorts, admit(t, Config{}, with("a", corev1.ProtocolTCP), with("b", "")).Reason)
	assert.True(t, admit(t, Config{}, with("a", ""), with("b", corev1.ProtocolUDP)).Admitted)
}

func TestAdmitter_NodeNameAndAffinity(t *testing.T) {
	node := Config{NodeName: "edge", Labels: map[string]string{"zone": "a", "num": "5"}, Taints: []corev1.Taint{
		{Key: "soft", Effect: corev1.TaintEffectNoSchedule},
	}}
	terms := func(t string) string {
		return ", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + t + "]}}}"
	}
	for name, tc := range map[string]struct{ more, reason string }{
		"no requirement":         {"", ""},
		"its label":              {", nodeSelector: {zone: a}", ""},
		"another value":          {", nodeSelector: {zone: b}", ReasonNodeAffinity},
		"another label":          {", nodeSelector: {region: a}", ReasonNodeAffinity},
		"an empty missing label": {", nodeSelector: {region: ''}", ReasonNodeAffinity},
		"its own labels":         {", nodeSelector: {kubernetes.io/os: linux, kubernetes.io/hostname: edge}", ""},
		"another architecture":   {", nodeSelector: {kubernetes.io/arch: pdp11}", ReasonNodeAffinity},
		"its name":               {", nodeName: edge", ""},
		"another name":           {", nodeName: core", ReasonNodeName},
		"its system":             {", os: {name: linux}", ""},
		"in":                     {terms("{matchExpressions: [{key: zone, operator: In, values: [b, a]}]}"), ""},
		"not in":                 {terms("{matchExpressions: [{key: zone, operator: NotIn, values: [b, a]}]}"), ReasonNodeAffinity},
		"not in, no label":       {terms("{matchExpressions: [{key: none, operator: NotIn, values: [b]}]}"), ""},
		"exists":                 {terms("{matchExpressions: [{key: zone, operator: Exists}, {key: none, operator: DoesNotExist}]}"), ""},
		"does not exist":         {terms("{matchExpressions: [{key: zone, operator: DoesNotExist}]}"), ReasonNodeAffinity},
		"greater":                {terms("{matchExpressions: [{key: num, operator: Gt, values: ['4']}]}"), ""},
		"less":                   {terms("{matchExpressions: [{key: num, operator: Lt, values: ['6']}]}"), ""},
		"without values":         {terms("{matchExpressions: [{key: zone, operator: In}]}"), ReasonNodeAffinity},
		"greater than a word":    {terms("{matchExpressions: [{key: num, operator: Gt, values: [x]}]}"), ReasonNodeAffinity},
		"field and label":        {terms("{matchFields: [{key: metadata.name, operator: In, values: [edge]}], matchExpressions: [{key: zone, operator: In, values: [a]}]}"), ""},
		"only pod affinity":      {", affinity: {podAffinity: {}}", ""},
		"not less":               {terms("{matchExpressions: [{key: num, operator: Lt, values: ['5']}]}"), ReasonNodeAffinity},
		"no number":              {terms("{matchExpressions: [{key: zone, operator: Gt, values: ['4']}]}"), ReasonNodeAffinity},
		"both of two":            {terms("{matchExpressions: [{key: num, operator: Exists}, {key: zone, operator: In, values: [b]}]}"), ReasonNodeAffinity},
		"one of two terms":       {terms("{matchExpressions: [{key: zone, operator: In, values: [b]}]}, {matchExpressions: [{key: num, operator: Exists}]}"), ""},
		"an empty term":          {terms("{}"), ReasonNodeAffinity},
		"no terms":               {terms(""), ReasonNodeAffinity},
		"an unknown operator":    {terms("{matchExpressions: [{key: num, operator: Near}]}"), ReasonNodeAffinity},
		"the name as a field":    {terms("{matchFields: [{key: metadata.name, operator: In, values: [edge]}]}"), ""},
		"another as a field":     {terms("{matchFields: [{key: metadata.name, operator: In, values: [core]}]}"), ReasonNodeAffinity},
		"only preferred":         {", affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}]}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			result := admit(t, node, pod(t, "a", "{containers: [{name: a, image: i}]"+tc.more+"}"))
			assert.Equal(t, tc.reason, result.Reason, result.Message)
			assert.Equal(t, tc.reason == "", result.Admitted)
		})
	}
}

func TestAdmitter_Taints(t *testing.T) {
	node := Config{Taints: []corev1.Taint{{Key: "load", Value: "5", Effect: corev1.TaintEffectNoExecute}}}
	for tolerations, ok := range map[string]bool{
		"":                              false,
		"{operator: Exists}":            true,
		"{key: load, operator: Exists}": true,
		"{key: load, value: '5'}":       true,
		"{key: load, value: '6'}":       false,
		"{value: '5'}":                  false, // without a key only Exists means all
		"{key: other, operator: Exists}, {key: load, operator: Exists, effect: NoExecute}": true,
		"{key: load, operator: Exists, effect: NoSchedule}":                                false,
		"{key: load, operator: Gt, value: '4'}":                                            true,
		"{key: load, operator: Gt, value: '5'}":                                            false,
		"{key: load, operator: Lt, value: '6'}":                                            true,
		"{key: load, operator: Lt, value: x}":                                              false,
		"{key: other, operator: Exists}":                                                   false,
		"{key: load, operator: Gt, value: x}":                                              false,
		"{key: load, operator: Gt, value: '6'}":                                            false,
		"{key: load, operator: Lt, value: '5'}":                                            false,
		"{key: load, operator: Lt, value: '4'}":                                            false,
		"{key: load, operator: Near, value: '5'}":                                          false,
	} {
		p := pod(t, "a", "{containers: [{name: a, image: i}], tolerations: ["+tolerations+"]}")
		result := admit(t, node, p)
		assert.Equal(t, ok, result.Admitted, tolerations)
		if !ok {
			assert.Equal(t, ReasonTaint, result.Reason)
		}
		assert.True(t, admit(t, node, static(p)).Admitted, "static pods are not checked")
	}
}

func TestAdmitter_TaintWithoutNumber(t *testing.T) {
	node := Config{Taints: []corev1.Taint{{Key: "load", Value: "high", Effect: corev1.TaintEffectNoExecute}}}
	for _, toleration := range []string{"{key: load, operator: Lt, value: '4'}", "{key: load, operator: Gt, value: '-4'}"} {
		p := pod(t, "a", "{containers: [{name: a, image: i}], tolerations: ["+toleration+"]}")
		assert.Equal(t, ReasonTaint, admit(t, node, p).Reason, toleration)
	}
}

func TestAdmitter_WithoutNodeName(t *testing.T) {
	assert.True(t, admit(t, Config{}, pod(t, "a", "{nodeName: other, containers: [{name: a, image: i}]}")).Admitted)
}

func TestQuantity_Format(t *testing.T) {
	for name, want := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: "1024m", corev1.ResourcePods: "1024", "x.io/gpu": "1024", corev1.ResourceMemory: "1Ki",
	} {
		q := quantity(name, 1024)
		assert.Equal(t, want, q.String(), name)
	}
}

func TestAdmitter_UnsupportedFields(t *testing.T) {
	p := pod(t, "a", "{containers: [{name: a, image: i}], serviceAccountName: sa, volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]}")
	result := admit(t, Config{}, p)
	assert.Equal(t, ReasonUnsupported, result.Reason)
	for _, want := range []string{"spec.volumes[0].persistentVolumeClaim", "spec.serviceAccountName", "needs an API server"} {
		assert.Contains(t, result.Message, want)
	}
	anything := Config{Unsupported: func(*corev1.Pod) field.ErrorList { return nil }}
	assert.True(t, admit(t, anything, p).Admitted)

	// Another system is a reason of its own, which clients look for.
	p.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	for _, cfg := range []Config{{}, anything} {
		result := admit(t, cfg, p)
		assert.Equal(t, ReasonOS, result.Reason)
		assert.Contains(t, result.Message, "windows")
	}
}

func TestNew_RejectsInvalidConfig(t *testing.T) {
	_, err := New(Config{MaxPods: -1, Allocatable: list("-1", "1"), Taints: []corev1.Taint{{}}})
	assert.ErrorContains(t, err, "MaxPods: -1 must be")
	assert.ErrorContains(t, err, "Allocatable: cpu of -1 must be")
	assert.ErrorContains(t, err, "Taints: key required")
}

func TestNew_CopiesConfig(t *testing.T) {
	labels := map[string]string{}
	allocatable := list("0", "0")
	sysctls := []string{"net.core.*"}
	a, err := New(Config{NodeName: "n", Labels: labels, Allocatable: allocatable, AllowedUnsafeSysctls: sysctls})
	require.NoError(t, err)
	assert.Empty(t, labels)

	allocatable[corev1.ResourceCPU] = resource.MustParse("1")
	sysctls[0] = "kernel.msg*"
	assert.Equal(t, "OutOfcpu", a.Admit(requesting(t, "a", "{cpu: 1}"), nil).Reason)
	p := pod(t, "a", "{containers: [{name: a, image: i}]}")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn", Value: "1"}}}
	assert.True(t, a.Admit(p, nil).Admitted)
}

// The cached totals give the same result as adding all pods on each call, however
// pods are added, replaced and removed between calls.
func TestAdmitter_CachedTotalsMatchSum(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, "hugepages-2Mi"} // in the order of the checks
	some := func() corev1.ResourceList {
		l := corev1.ResourceList{}
		for _, name := range names {
			if random.IntN(3) > 0 {
				l[name] = *resource.NewQuantity(random.Int64N(9), resource.DecimalSI)
			}
		}
		return l
	}
	newPod := func() *corev1.Pod {
		p := &corev1.Pod{}
		p.UID = types.UID(fmt.Sprint(random.IntN(20))) // some occur twice
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: some()}}}
		p.Status.Phase = []corev1.PodPhase{corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed}[random.IntN(4)]
		return p
	}
	const maxPods = 9
	a, err := New(Config{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("25"), corev1.ResourceMemory: resource.MustParse("25"), "hugepages-2Mi": resource.MustParse("25"),
	}, MaxPods: maxPods})
	require.NoError(t, err)
	var others []*corev1.Pod
	reasons := map[string]int{}
	for step := range 5000 {
		for range random.IntN(4) {
			i := random.IntN(len(others) + 1)
			switch kind := random.IntN(3); {
			case i == len(others) || kind == 0 && len(others) < 30:
				others = slices.Insert(others, i, newPod())
			case kind == 1:
				others[i] = newPod()
			default:
				others = slices.Delete(others, i, i+1)
			}
		}
		current := others
		if random.IntN(10) == 0 {
			current = nil
		}
		p := newPod()
		n, used := 0, map[corev1.ResourceName]int64{}
		for _, o := range current {
			if !counts(o, p) {
				continue
			}
			n++
			for name, q := range o.Spec.Containers[0].Resources.Requests {
				used[name] += amount(name, q)
			}
		}
		var short []shortage
		if n >= maxPods {
			short = append(short, shortage{corev1.ResourcePods, 1, int64(n), maxPods})
		}
		for _, name := range names {
			requested, capacity := amount(name, p.Spec.Containers[0].Resources.Requests[name]), amount(name, resource.MustParse("25"))
			if requested > 0 && requested > capacity-used[name] {
				short = append(short, shortage{name, requested, used[name], capacity})
			}
		}
		want := insufficient(short)
		require.Equal(t, want, a.Admit(p, current), "step %d", step)
		reasons[want.Reason]++
	}
	assert.Len(t, reasons, 5, "every result must occur: %v", reasons)
}

func BenchmarkAdmit(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint("pods=", n), func(b *testing.B) {
			a, err := New(Config{Allocatable: list("1000000", "1Pi"), MaxPods: 1 << 20})
			require.NoError(b, err)
			var others []*corev1.Pod
			for i := range n {
				others = append(others, requesting(b, fmt.Sprint(i), "{cpu: 100m, memory: 10Mi}"))
			}
			p := requesting(b, "new", "{cpu: 1, memory: 1Gi}")
			b.ReportAllocs()
			for b.Loop() {
				if !a.Admit(p, others).Admitted {
					b.Fatal("rejected")
				}
			}
		})
	}
}

func TestAdmit_LabelsThatChange(t *testing.T) {
	current := map[string]string{"site": "a"}
	a, err := New(Config{Labels: map[string]string{"site": "old"}, LabelsFunc: func() map[string]string { return current }})
	require.NoError(t, err)
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"site": "b"}}}
	require.False(t, a.Admit(pod, nil).Admitted)
	current = map[string]string{"site": "b"}
	require.True(t, a.Admit(pod, nil).Admitted)
}
