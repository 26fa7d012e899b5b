package kubelet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/cases"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/prober"
	"k8s.io/kubernetes/pkg/kubelet/prober/results"
)

// statusCase is the life of a pod, one line of containers a moment, and its status at each moment.
type statusCase struct {
	Spec     v1.PodSpec `json:"spec"`
	Moments  []string   `json:"moments"`
	Statuses []string   `json:"statuses"`
}

func TestStatusCases(t *testing.T) {
	tk := newTestKubelet(t, false)
	defer tk.Cleanup()
	kl := tk.kubelet
	cases.Write(t, "status/testdata/kubelet-statuses.jsonl", `
		Lives of pods: what the runtime has of their containers at each moment, and the status that is generated then.
		A container has the number of its attempt. One that waits has a back-off after its exit. "ready" and "unready" are results
		of its readiness probe, "started" and "unstarted" of its startup probe. Of the conditions, those that are True follow the phase,
		and the reason of Ready in a pod that has not ended.`,
		6000, func(r *rand.Rand, size float64) (statusCase, []string) {
			c := statusCase{Spec: randomStatusSpec(r, size)}
			pod := &v1.Pod{Spec: c.Spec}
			pod.UID, pod.Name, pod.Namespace = "u1", "web", "ns"
			life := life{r: r, spec: &c.Spec, containers: map[string][]string{}}
			var traits []string
			same := strings.NewReplacer("2", "1", "3", "1", "b ", "a ")
			for range 1 + r.IntN(1+int(6*size)) {
				moment := life.next()
				c.Moments = append(c.Moments, moment)
				ready, started := results.NewManager(), results.NewManager()
				kl.probeManager = prober.NewManager(kl.statusManager, results.NewManager(), ready, started, nil, record.NewFakeRecorder(9))
				pod.Status = kl.generateAPIPodStatus(t.Context(), pod, kl.statusOf(pod, moment, ready, started), false)
				c.Statuses = append(c.Statuses, statusWords(&pod.Status))
				status := c.Statuses[len(c.Statuses)-1]
				phase, _, _ := strings.Cut(status, ",")
				if ended := phase == "Failed" || phase == "Succeeded"; ended && (strings.Contains(moment, "running") || strings.Contains(moment, "waits")) {
					return c, nil // docs/differences.md: it has not ended while a container runs, and none waits then
				}
				traits = append(traits, fmt.Sprint(c.Spec.RestartPolicy, phase, len(c.Spec.InitContainers)))
				for text := range strings.SplitSeq(status, ", ") {
					traits = append(traits, phase+same.Replace(text))
				}
			}
			return c, traits
		})
}

func randomStatusSpec(r *rand.Rand, size float64) v1.PodSpec {
	spec := v1.PodSpec{RestartPolicy: cases.One(r, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)}
	for _, name := range []string{"i", "s"}[:r.IntN(1+int(2.99*size))] {
		c := v1.Container{Name: name}
		if cases.Chance(r, 0.5) {
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
			addStatusProbes(r, &c)
		}
		spec.InitContainers = append(spec.InitContainers, c)
	}
	for _, name := range []string{"a", "b"}[:1+r.IntN(1+int(1.99*size))] {
		c := v1.Container{Name: name}
		addStatusProbes(r, &c)
		if cases.Chance(r, 0.2*size) {
			policy := cases.One(r, v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)
			c.RestartPolicy = &policy
		}
		spec.Containers = append(spec.Containers, c)
	}
	return spec
}

func addStatusProbes(r *rand.Rand, c *v1.Container) {
	if cases.Chance(r, 0.25) {
		c.ReadinessProbe = &v1.Probe{}
	}
	if cases.Chance(r, 0.2) {
		c.StartupProbe = &v1.Probe{}
	}
}

// life is what the runtime has of a pod: the states of each container, the newest last.
type life struct {
	r          *rand.Rand
	spec       *v1.PodSpec
	containers map[string][]string
}

// next lets something happen, and returns all containers.
func (l *life) next() string {
	var can []func()
	begun := true // all before have completed, or started
	list := append(slices.Clone(l.spec.InitContainers), l.spec.Containers...)
	for i := range list {
		c, init := &list[i], i < len(l.spec.InitContainers)
		states := l.containers[c.Name]
		last := ""
		if len(states) > 0 {
			last = states[len(states)-1]
		}
		sidecar := init && c.RestartPolicy != nil
		switch {
		case last == "" && !begun:
		case last == "":
			can = append(can, func() { l.containers[c.Name] = []string{l.running(c)} })
		case strings.HasPrefix(last, "running") && sidecar && len(l.containers["a"]) == 0 && !strings.Contains(last, "unstarted"):
			// docs/differences.md: it would have to be Initialized again
		case strings.HasPrefix(last, "running") && sidecar && len(l.containers["a"]) == 0:
			can = append(can, func() { states[len(states)-1] = strings.Replace(last, "unstarted", "started", 1) })
		case strings.HasPrefix(last, "running"):
			can = append(can, func() {
				if c.StartupProbe != nil && cases.Chance(l.r, 0.5) || c.ReadinessProbe != nil && cases.Chance(l.r, 0.3) {
					states[len(states)-1] = l.running(c)
					return
				}
				states[len(states)-1] = "exited " + cases.One(l.r, "0", "1")
				if sidecar {
					states[len(states)-1] = "exited 1"
				}
			})
		default:
			code := int32(1)
			if strings.HasPrefix(last, "exited 0") {
				code = 0
			}
			restarts := sidecar || podutil.ContainerShouldRestart(*c, *l.spec, code)
			if init && !sidecar {
				restarts = code != 0 && l.spec.RestartPolicy != v1.RestartPolicyNever
			}
			if restarts && len(states) < 4 {
				can = append(can, func() {
					if !strings.HasSuffix(last, "waits") && cases.Chance(l.r, 0.5) {
						states[len(states)-1] += " waits"
						return
					}
					states[len(states)-1] = strings.TrimSuffix(last, " waits")
					l.containers[c.Name] = append(states, l.running(c))
				})
			}
		}
		if init {
			begun = begun && (strings.HasPrefix(last, "exited 0") && !sidecar || sidecar && strings.HasPrefix(last, "running") && !strings.Contains(last, "unstarted"))
		}
	}
	if len(can) > 0 {
		can[l.r.IntN(len(can))]()
	}
	var out []string
	for _, c := range list {
		states := l.containers[c.Name]
		for i := range slices.Backward(states) {
			if i >= len(states)-2 { // the runtime keeps one that has ended
				out = append(out, fmt.Sprint(c.Name, " ", i, " ", states[i]))
			}
		}
	}
	return strings.Join(out, ", ")
}

func (l *life) running(c *v1.Container) string {
	state := "running"
	if c.StartupProbe != nil {
		state += cases.One(l.r, " started", " unstarted")
	}
	if c.ReadinessProbe != nil && !strings.Contains(state, "unstarted") {
		state += cases.One(l.r, " ready", " unready")
	}
	return state
}

// statusOf makes the kubelet's form of a moment.
func (kl *Kubelet) statusOf(pod *v1.Pod, moment string, ready, started results.Manager) *kubecontainer.PodStatus {
	st := &kubecontainer.PodStatus{ID: pod.UID, Name: pod.Name, Namespace: pod.Namespace, IPs: []string{"10.0.0.1"}, SandboxStatuses: []*runtimeapi.PodSandboxStatus{{
		Id: "s1", Metadata: &runtimeapi.PodSandboxMetadata{}, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: &runtimeapi.NamespaceOption{}}},
	}}}
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for c := range podutil.ContainerIter(&pod.Spec, podutil.AllContainers) {
		kl.reasonCache.Remove(pod.UID, c.Name)
	}
	for text := range strings.SplitSeq(moment, ", ") {
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		attempt, _ := strconv.Atoi(words[1])
		c := &kubecontainer.Status{
			ID: kubecontainer.ContainerID{Type: "test", ID: words[0] + words[1]}, Name: words[0], State: kubecontainer.State(words[2]), RestartCount: attempt,
			CreatedAt: begin.Add(time.Duration(attempt) * time.Minute), StartedAt: begin.Add(time.Duration(attempt) * time.Minute),
		}
		if c.State == kubecontainer.ContainerStateExited {
			c.FinishedAt, c.Reason = c.StartedAt.Add(time.Second), "Error"
		}
		for _, word := range words[3:] {
			switch word {
			case "0", "1":
				if c.ExitCode, _ = strconv.Atoi(word); c.ExitCode == 0 {
					c.Reason = "Completed"
				}
			case "waits":
				kl.reasonCache.add(pod.UID, c.Name, errors.New("CrashLoopBackOff"), "later")
			case "ready":
				ready.Set(c.ID, results.Success, pod)
			case "unready":
				ready.Set(c.ID, results.Failure, pod)
			case "started":
				started.Set(c.ID, results.Success, pod)
			case "unstarted":
				started.Set(c.ID, results.Failure, pod)
			}
		}
		st.ContainerStatuses = append(st.ContainerStatuses, c)
	}
	st.ActiveContainerStatuses = st.ContainerStatuses
	return st
}

// statusWords says in words what a status says.
func statusWords(st *v1.PodStatus) string {
	words := []string{string(st.Phase)}
	for _, c := range st.Conditions {
		if c.Status == v1.ConditionTrue && c.Type != v1.PodScheduled {
			words = append(words, string(c.Type))
		} else if c.Type == v1.PodReady && st.Phase != v1.PodFailed && st.Phase != v1.PodSucceeded {
			words = append(words, c.Reason)
		}
	}
	slices.Sort(words[1:])
	for _, list := range [][]v1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			text := fmt.Sprintf("%s %s restarts %d", c.Name, stateWords(&c.State), c.RestartCount)
			if last := stateWords(&c.LastTerminationState); last != "" {
				text += " last " + last
			}
			if c.Started != nil && *c.Started {
				text += " started"
			}
			if c.Ready {
				text += " ready"
			}
			words = append(words, text)
		}
	}
	return strings.Join(words, ", ")
}

func stateWords(s *v1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return s.Waiting.Reason
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s %d", s.Terminated.Reason, s.Terminated.ExitCode)
	}
	return ""
}
