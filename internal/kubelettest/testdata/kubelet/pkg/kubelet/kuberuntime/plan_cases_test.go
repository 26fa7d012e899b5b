package kuberuntime

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/cases"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	proberesults "k8s.io/kubernetes/pkg/kubelet/prober/results"
	"k8s.io/kubernetes/test/utils/ktesting"
)

// planCase is a pod, what the runtime has of it, and what is done.
type planCase struct {
	Spec       v1.PodSpec `json:"spec"`
	Sandboxes  []string   `json:"sandboxes,omitempty"`  // newest first
	Containers []string   `json:"containers,omitempty"` // newest first
	Do         string     `json:"do"`
}

func TestPlanCases(t *testing.T) {
	_, _, m, err := createTestRuntimeManager(ktesting.Init(t))
	if err != nil {
		t.Fatal(err)
	}
	cases.Write(t, "runtime/testdata/kubelet-plans.jsonl", `
		Pods, what the runtime has of them, and what computePodActions does.
		A sandbox is ready, exited, without an address (lost), or ready on the network of the host (host).
		A container is in the newest sandbox unless it is old. "changed" is created from another image, "unhealthy" has failed its
		liveness probe, "started" has passed its startup probe, "unstarted" has failed it. A number is an exit code.`,
		20000, func(r *rand.Rand, size float64) (planCase, []string) {
			c := planCase{Spec: randomSpec(r, size)}
			c.Sandboxes, c.Containers = randomState(r, size, &c.Spec)
			pod := &v1.Pod{Spec: c.Spec}
			pod.UID, pod.Name, pod.Namespace = "u1", "web", "ns"
			status := m.status(pod, c.Sandboxes, c.Containers)
			all := kubecontainer.ShouldAllContainersRestart(pod, status, nil)
			actions := m.computePodActions(t.Context(), pod, status, all)
			c.Do = words(pod, actions)
			if differs(&c) || actions.KillPod && len(actions.ContainersToKill) > 0 {
				return c, nil // the last container that is killed for a probe has the grace period of that
			}
			return c, planTraits(&c)
		})
}

func randomSpec(r *rand.Rand, size float64) v1.PodSpec {
	spec := v1.PodSpec{RestartPolicy: cases.One(r, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever), HostNetwork: cases.Chance(r, 0.1*size)}
	always := v1.ContainerRestartPolicyAlways
	for _, name := range []string{"i", "s"}[:r.IntN(1+int(2.99*size))] {
		c := v1.Container{Name: name}
		if cases.Chance(r, 0.5) {
			c.RestartPolicy = &always
			addProbes(r, &c)
		} else {
			addRules(r, size, &c)
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	for _, name := range []string{"a", "b"}[:1+r.IntN(1+int(1.99*size))] {
		c := v1.Container{Name: name}
		addRules(r, size, &c)
		addProbes(r, &c)
		spec.Containers = append(spec.Containers, c)
	}
	if cases.Chance(r, 0.15*size) {
		spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e"}}}
	}
	return spec
}

func addProbes(r *rand.Rand, c *v1.Container) {
	if cases.Chance(r, 0.2) {
		c.LivenessProbe = &v1.Probe{}
	}
	if cases.Chance(r, 0.2) {
		c.StartupProbe = &v1.Probe{}
	}
}

// addRules gives a container a policy, and rules.
func addRules(r *rand.Rand, size float64, c *v1.Container) {
	if !cases.Chance(r, 0.3*size) {
		return
	}
	policy := cases.One(r, v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)
	if c.RestartPolicy = &policy; c.Name < "c" || policy != v1.ContainerRestartPolicyAlways { // else it would be a sidecar
		for range r.IntN(3) {
			c.RestartPolicyRules = append(c.RestartPolicyRules, v1.ContainerRestartRule{
				Action: cases.One(r, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers),
				ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
					Operator: cases.One(r, v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn),
					Values:   cases.One(r, []int32{0}, []int32{1}, []int32{1, 2}),
				},
			})
		}
		return
	}
	c.RestartPolicy = nil
}

// randomState returns sandboxes and containers that a pod can have: what comes before the last init container that is there
// has completed, or started, and regular containers are there when all have.
func randomState(r *rand.Rand, size float64, spec *v1.PodSpec) (sandboxes, containers []string) {
	ready := "ready"
	if spec.HostNetwork {
		ready = "host"
	}
	sandboxes = []string{ready}
	old := ""
	if cases.Chance(r, 0.25) {
		sandboxes = cases.One(r, nil, []string{"exited"}, []string{ready, ready}, []string{"host"}, []string{"lost"}, []string{ready, "exited"}, []string{"exited", ready})
	}
	if len(sandboxes) == 0 {
		return nil, nil
	}
	if len(sandboxes) == 2 && cases.Chance(r, 0.5) {
		old = " old"
	}
	reached := r.IntN(len(spec.InitContainers) + 2)
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		done := "exited 0"
		if isAlways(c) {
			done = "running"
			if c.StartupProbe != nil {
				done = "running started"
			}
		}
		switch {
		case i > reached:
		case i == reached || isAlways(c) && cases.Chance(r, 0.4):
			containers = append(containers, c.Name+" "+randomContainer(r, c)+old)
		case cases.Chance(r, 0.9):
			containers = append(containers, c.Name+" "+done+old)
		}
	}
	if reached > len(spec.InitContainers) || reached == len(spec.InitContainers) && reached == 0 {
		for i := range spec.Containers {
			if cases.Chance(r, 0.85) {
				containers = append(containers, spec.Containers[i].Name+" "+randomContainer(r, &spec.Containers[i])+old)
			}
		}
	}
	for i := range spec.EphemeralContainers {
		if cases.Chance(r, 0.5) {
			containers = append(containers, spec.EphemeralContainers[i].Name+" "+cases.One(r, "running", "exited 0", "exited 1")+old)
		}
	}
	if old != "" { // as they were stopped with their sandbox
		for i, text := range containers {
			if words := strings.Fields(text); words[1] != "exited" {
				containers[i] = words[0] + " exited 2 old"
			}
		}
	}
	slices.Reverse(containers)
	return sandboxes, containers
}

func isAlways(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

func randomContainer(r *rand.Rand, c *v1.Container) string {
	state := cases.One(r, "running", "running", "running", "exited 0", "exited 1", "exited 2", "created", "unknown")
	if state != "running" {
		return state
	}
	if cases.Chance(r, 0.2) {
		state += " changed"
	}
	if c.StartupProbe != nil {
		state += cases.One(r, "", " started", " started", " unstarted")
	}
	if c.LivenessProbe != nil && !strings.Contains(state, "unstarted") && (c.StartupProbe == nil || strings.Contains(state, "started")) {
		state += cases.One(r, "", " unhealthy")
	}
	return state
}

// status makes the kubelet's form of a state, with the results of probes in m.
func (m *kubeGenericRuntimeManager) status(pod *v1.Pod, sandboxes, containers []string) *kubecontainer.PodStatus {
	m.livenessManager, m.startupManager = proberesults.NewManager(), proberesults.NewManager()
	st := &kubecontainer.PodStatus{ID: pod.UID, Name: pod.Name, Namespace: pod.Namespace}
	for i, word := range sandboxes {
		s := &runtimeapi.PodSandboxStatus{
			Id: "s" + strconv.Itoa(len(sandboxes)-i), Metadata: &runtimeapi.PodSandboxMetadata{Attempt: uint32(len(sandboxes) - i)},
			Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
			Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{}}},
		}
		switch word {
		case "exited":
			s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		case "lost":
			s.Network.Ip = ""
		case "host":
			s.Network.Ip, s.Linux.Namespaces.Options.Network = "", runtimeapi.NamespaceMode_NODE
		}
		st.SandboxStatuses = append(st.SandboxStatuses, s)
	}
	for _, text := range containers {
		words := strings.Fields(text)
		c := &kubecontainer.Status{ID: kubecontainer.ContainerID{ID: words[0]}, Name: words[0], State: kubecontainer.State(words[1])}
		spec := kubecontainer.GetContainerSpec(pod, c.Name)
		c.Hash = kubecontainer.HashContainer(spec)
		active := true
		for _, word := range words[2:] {
			switch word {
			case "old":
				active = false
			case "changed":
				c.Hash++
			case "unhealthy":
				m.livenessManager.Set(c.ID, proberesults.Failure, pod)
			case "started":
				m.startupManager.Set(c.ID, proberesults.Success, pod)
			case "unstarted":
				m.startupManager.Set(c.ID, proberesults.Failure, pod)
			default:
				c.ExitCode, _ = strconv.Atoi(word)
			}
		}
		st.ContainerStatuses = append(st.ContainerStatuses, c)
		if active && sandboxes[0] != "exited" {
			st.ActiveContainerStatuses = append(st.ActiveContainerStatuses, c)
		}
	}
	return st
}

// words says in words what is done.
func words(pod *v1.Pod, a podActions) string {
	var out []string
	switch {
	case len(a.ContainersToReset) > 0:
		return "restart all"
	case a.KillPod && !a.CreateSandbox:
		return "stop"
	case a.CreateSandbox:
		out = append(out, "new sandbox")
	}
	var kills []string
	for _, k := range a.ContainersToKill {
		kills = append(kills, "kill "+k.name)
	}
	slices.Sort(kills)
	out = append(out, kills...)
	for _, i := range a.EphemeralContainersToStart {
		out = append(out, "start "+pod.Spec.EphemeralContainers[i].Name)
	}
	for _, i := range a.InitContainersToStart {
		out = append(out, "start "+pod.Spec.InitContainers[i].Name)
	}
	for _, i := range a.ContainersToStart {
		out = append(out, "start "+pod.Spec.Containers[i].Name)
	}
	return strings.Join(out, ", ")
}

// differs reports whether plans for the case are to be others than the kubelet's: those of docs/differences.md.
func differs(c *planCase) bool {
	replaced := len(c.Sandboxes) != 1 || c.Sandboxes[0] != "ready" && c.Sandboxes[0] != "host" || (c.Sandboxes[0] == "host") != c.Spec.HostNetwork
	if len(c.Containers) > 0 && (replaced && c.Spec.RestartPolicy == v1.RestartPolicyNever || strings.Contains(c.Containers[0], "old") && c.Spec.RestartPolicy != v1.RestartPolicyAlways) {
		return true // Never holds in a new sandbox, which a pod that has not run yet gets
	}
	if c.Do == "stop" && c.Sandboxes[0] == "exited" && !slices.ContainsFunc(c.Containers, func(text string) bool { return !strings.Contains(text, "exited") }) {
		return true // there is nothing to stop
	}
	if replaced && len(c.Spec.EphemeralContainers) > 0 {
		return true // they start with the other containers
	}
	for _, list := range [][]v1.Container{c.Spec.InitContainers, c.Spec.Containers} {
		for i := range list {
			policy := cmp.Or(string(value(list[i].RestartPolicy)), string(c.Spec.RestartPolicy))
			if replaced && len(c.Containers) > 0 && list[i].RestartPolicy != nil && !isAlways(&list[i]) {
				return true // policies of containers hold in a new sandbox
			}
			for _, text := range c.Containers {
				switch {
				case !strings.HasPrefix(text, list[i].Name+" "):
				case strings.Contains(text, "unknown") && (policy == "Never" || len(list[i].RestartPolicyRules) > 0):
					return true // it has failed
				case strings.Contains(text, "changed") && list[i].StartupProbe != nil && !strings.Contains(text, " started"):
					return true // a sidecar is replaced at once
				case (strings.Contains(text, "unhealthy") || strings.Contains(text, "unstarted")) && len(list[i].RestartPolicyRules) > 0:
					return true // rules apply then
				}
			}
		}
	}
	return false
}

// planTraits are what is done for containers in what states, and under which policy.
func planTraits(c *planCase) []string {
	traits := []string{fmt.Sprint(c.Sandboxes, c.Do)}
	for _, list := range [][]v1.Container{c.Spec.InitContainers, c.Spec.Containers} {
		for i := range list {
			policy := cmp.Or(string(value(list[i].RestartPolicy)), string(c.Spec.RestartPolicy))
			for _, text := range c.Containers {
				if name, state, _ := strings.Cut(text, " "); name == list[i].Name {
					what := fmt.Sprint(name > "c", policy, strings.Contains(c.Do, " "+name))
					traits = append(traits, what+state, fmt.Sprint(what, list[i].RestartPolicyRules != nil, strings.Fields(state)[0], c.Do == "restart all"))
				}
			}
		}
	}
	return traits
}
