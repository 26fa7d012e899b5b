package scenario

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// podGenerator draws pods whose containers behave as their annotations say.
type podGenerator struct {
	*rand.Rand
	made int
}

// chance returns true in that many of a hundred cases.
func (g *podGenerator) chance(percent int) bool { return g.IntN(100) < percent }

func oneOf[T any](g *podGenerator, of ...T) T { return of[g.IntN(len(of))] }

// randomImages are the images of random pods. missing:1 cannot be pulled.
func randomImages() []embedded.Image {
	return []embedded.Image{
		{Ref: "slow:1", PullTime: 20 * time.Second},
		{Ref: "flaky:1", PullTime: time.Second, PullError: "too many requests", PullFailures: 2},
		{Ref: "missing:1", PullError: "not found"},
	}
}

func (g *podGenerator) image() string {
	if g.chance(3) {
		return "missing:1"
	}
	return oneOf(g, "app:1", "app:1", "app:1", "app:2", "app:3", "slow:1", "flaky:1")
}

// pod returns a pod of that name with a new UID.
func (g *podGenerator) pod(name string) *corev1.Pod {
	g.made++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID(fmt.Sprintf("%s-%d", name, g.made)), Annotations: map[string]string{},
	}}
	pod.Spec.RestartPolicy = oneOf(g, corev1.RestartPolicyAlways, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	pod.Spec.TerminationGracePeriodSeconds = new(oneOf[int64](g, 1, 3, 10, 30))
	if g.chance(12) {
		pod.Spec.ActiveDeadlineSeconds = new(int64(30 + g.IntN(600)))
	}
	for i := range g.IntN(4) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, g.container(pod, fmt.Sprint("i", i)))
	}
	for i := range g.IntN(3) {
		c := g.container(pod, fmt.Sprint("s", i))
		at := g.IntN(len(pod.Spec.InitContainers) + 1)
		pod.Spec.InitContainers = append(pod.Spec.InitContainers[:at:at], append([]corev1.Container{c}, pod.Spec.InitContainers[at:]...)...)
	}
	for i := range 1 + g.IntN(4) {
		pod.Spec.Containers = append(pod.Spec.Containers, g.container(pod, fmt.Sprint("c", i)))
	}
	for i := range 4 {
		g.container(pod, fmt.Sprint("e", i)) // the scripts of ephemeral containers that may be added
	}
	podspec.Default(pod)
	return pod
}

// container returns a container whose name begins with i (init), s (sidecar), c or e (ephemeral).
func (g *podGenerator) container(pod *corev1.Pod, name string) corev1.Container {
	script := func(key, format string, args ...any) {
		pod.Annotations[name+"."+simulated.ScriptPrefix+key] = fmt.Sprintf(format, args...)
	}
	port := int32(8000 + 10*len(pod.Annotations))
	c := corev1.Container{Name: name, Image: g.image(), ImagePullPolicy: corev1.PullIfNotPresent}
	codes := oneOf(g, "0", "0", "0", "1", "1,0", "42", "1,42,0", "3,1,1,0", "88,0")
	switch {
	case name[0] == 'i':
		script("run-for", "%ds", 1+g.IntN(20))
		script("exit-code", "%s", oneOf(g, "0", "0", "0", "0", codes))
	case g.chance(50):
	case g.chance(20):
		script("run-for", "10ms")
		script("exit-code", "%s", codes)
	case g.chance(80):
		script("run-for", "%s", oneOf(g, time.Second, 15*time.Second, 90*time.Second, 11*time.Minute))
		script("exit-code", "%s", codes)
	default:
		script("oom-after", "%ds", 5+g.IntN(100))
	}
	switch g.IntN(6) {
	case 0:
		script("ignore-term", "true")
	case 1, 2:
		script("stop-after", "%s", oneOf(g, 500*time.Millisecond, 2*time.Second, 8*time.Second))
		script("term-exit-code", "0")
	case 3:
		script("term-exit-code", "0")
	}
	if g.chance(10) {
		script("start-delay", "%ds", 1+g.IntN(3))
	}
	c.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10Mi")}
	if name[0] == 'e' {
		script("ports", "none")
		return c
	}
	script("ports", "%d", port)
	if name[0] == 's' {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	} else if g.chance(15) {
		g.restartRules(&c, name[0] == 'c')
	}
	if name[0] != 'i' {
		g.probes(&c, port, script)
	}
	g.hooks(&c)
	return c
}

func (g *podGenerator) restartRules(c *corev1.Container, regular bool) {
	c.RestartPolicy = new(oneOf(g, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure))
	if regular && g.chance(20) {
		*c.RestartPolicy = corev1.ContainerRestartPolicyAlways
	}
	if g.chance(70) {
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action:    oneOf(g, corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers),
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42, 88}},
		}}
	}
}

func (g *podGenerator) probes(c *corev1.Container, port int32, script func(key, format string, args ...any)) {
	probe := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler: h, PeriodSeconds: 1 + g.Int32N(10), FailureThreshold: 1 + g.Int32N(3), SuccessThreshold: 1,
			InitialDelaySeconds: g.Int32N(2) * g.Int32N(10), TimeoutSeconds: 1,
		}
	}
	if g.chance(30) {
		c.LivenessProbe = probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(port)}})
		if g.chance(50) {
			script("http-status", "%ds=503", 20+g.IntN(300))
		}
		if g.chance(30) {
			c.LivenessProbe.TerminationGracePeriodSeconds = new(oneOf[int64](g, 1, 5))
		}
	}
	if g.chance(30) {
		c.ReadinessProbe = probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port}})
		c.ReadinessProbe.SuccessThreshold = 1 + g.Int32N(2)
		script("grpc-status", "%s", oneOf(g, "0s=SERVING", "0s=NOT_SERVING,30s=SERVING", "1m=NOT_SERVING,2m=SERVING", "5m=NOT_SERVING"))
	}
	if g.chance(25) {
		c.StartupProbe = probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}})
		c.StartupProbe.FailureThreshold = 3 + g.Int32N(5)
		if g.chance(70) {
			script("listen-after", "%ds", g.IntN(15))
		}
	}
}

func (g *podGenerator) hooks(c *corev1.Container) {
	command := func(name string, seconds int) *corev1.LifecycleHandler {
		text := "echo " + name
		if seconds > 0 {
			text += fmt.Sprintf("; sleep %d", seconds)
		}
		if g.chance(15) {
			text += "; exit 1"
		}
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", text}}}
	}
	if c.Name[0] == 'i' || !g.chance(25) {
		return
	}
	c.Lifecycle = &corev1.Lifecycle{}
	if g.chance(60) {
		c.Lifecycle.PreStop = command("preStop", g.IntN(2)*g.IntN(8))
	}
	if g.chance(40) {
		c.Lifecycle.PostStart = command("postStart", g.IntN(2)*g.IntN(5))
	}
}

// describe returns what distinguishes a random pod.
func describe(pod *corev1.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, grace %d", pod.UID, pod.Spec.RestartPolicy, *pod.Spec.TerminationGracePeriodSeconds)
	if d := pod.Spec.ActiveDeadlineSeconds; d != nil {
		fmt.Fprintf(&b, ", deadline %d", *d)
	}
	for c := range podspec.Containers(pod) {
		fmt.Fprintf(&b, "\n      %s %s", c.Name, c.Image)
		if c.RestartPolicy != nil {
			fmt.Fprintf(&b, " %s", *c.RestartPolicy)
		}
		for _, r := range c.RestartPolicyRules {
			fmt.Fprintf(&b, " %s%v", r.Action, r.ExitCodes.Values)
		}
		for _, key := range []string{"run-for", "exit-code", "oom-after", "ignore-term", "stop-after", "term-exit-code", "start-delay", "http-status", "grpc-status", "listen-after"} {
			if v, ok := pod.Annotations[c.Name+"."+simulated.ScriptPrefix+key]; ok {
				fmt.Fprintf(&b, " %s=%s", key, v)
			}
		}
		for name, p := range map[string]*corev1.Probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe, "startup": c.StartupProbe} {
			if p != nil {
				fmt.Fprintf(&b, " %s(delay %d period %d fail %d success %d)", name, p.InitialDelaySeconds, p.PeriodSeconds, p.FailureThreshold, p.SuccessThreshold)
			}
		}
		if l := c.Lifecycle; l != nil && l.PreStop != nil {
			fmt.Fprintf(&b, " [%s]", l.PreStop.Exec.Command[2])
		}
		if l := c.Lifecycle; l != nil && l.PostStart != nil {
			fmt.Fprintf(&b, " [%s]", l.PostStart.Exec.Command[2])
		}
	}
	return b.String()
}
