package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/runtimetest"
)

// stops records when each container was first stopped while it ran, by pod and name.
type stops struct {
	mu    sync.Mutex
	first map[string]time.Duration
}

// noteStop records a call that stops a running container, whether it succeeds or not.
func (w *harness) noteStop(req any) {
	var is func(c *v1.Container) bool
	switch q := req.(type) {
	case *v1.StopContainerRequest:
		is = func(c *v1.Container) bool { return c.GetId() == q.GetContainerId() }
	case *v1.RemoveContainerRequest:
		is = func(c *v1.Container) bool { return c.GetId() == q.GetContainerId() }
	case *v1.StopPodSandboxRequest:
		is = func(c *v1.Container) bool { return c.GetPodSandboxId() == q.GetPodSandboxId() }
	case *v1.RemovePodSandboxRequest:
		is = func(c *v1.Container) bool { return c.GetPodSandboxId() == q.GetPodSandboxId() }
	default:
		return
	}
	w.stops.mu.Lock()
	defer w.stops.mu.Unlock()
	for _, c := range w.running() {
		key := c.GetLabels()["io.kubernetes.pod.name"] + "/" + c.GetMetadata().GetName()
		if _, before := w.stops.first[key]; is(c) && !before {
			w.stops.first[key] = time.Since(w.trace.began)
		}
	}
}

// finalState is the state at the end of a scenario, by the names of pods.
type finalState struct {
	boxes      map[string]int                       // ready sandboxes
	runs       map[string][]string                  // running containers with their images
	phases     map[string][]string                  // reported, with reasons
	reported   map[string]map[string]containerCount // of containers
	restarting map[string]bool                      // pod/container: restarts indefinitely
	stops      map[string]time.Duration
}

// containerCount is the reported state of a container.
type containerCount struct {
	state    string
	restarts int32
}

func (w *harness) finalState() *finalState {
	o := &finalState{
		boxes: map[string]int{}, runs: map[string][]string{}, phases: map[string][]string{},
		reported: map[string]map[string]containerCount{}, restarting: map[string]bool{},
	}
	ctx := context.Background()
	list, err := w.inside.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{Filter: &v1.PodSandboxFilter{
		State: &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY},
	}})
	require.NoError(w.t, err)
	for _, s := range list.GetItems() {
		o.boxes[s.GetMetadata().GetName()]++
	}
	for _, c := range w.running() {
		name := c.GetLabels()["io.kubernetes.pod.name"]
		o.runs[name] = append(o.runs[name], c.GetMetadata().GetName()+" of "+c.GetImage().GetUserSpecifiedImage())
	}
	w.mu.Lock()
	for uid, st := range w.last {
		name, _, _ := strings.Cut(w.trace.label(uid, ""), "(")
		o.phases[name] = append(o.phases[name], strings.TrimSpace(string(st.Phase)+" "+st.Reason))
		if o.reported[name] == nil {
			o.reported[name] = map[string]containerCount{}
		}
		for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
			state := containerText(corev1.ContainerStatus{Name: c.Name, State: c.State, Ready: c.Ready})
			o.reported[name][c.Name] = containerCount{state: state, restarts: c.RestartCount}
		}
	}
	w.mu.Unlock()
	for name := range o.runs {
		slices.Sort(o.runs[name])
	}
	for name := range o.phases {
		slices.Sort(o.phases[name])
	}
	w.stops.mu.Lock()
	o.stops = w.stops.first
	w.stops.mu.Unlock()
	return o
}

func (o *finalState) restarted() bool {
	for _, containers := range o.reported {
		for _, c := range containers {
			if c.restarts > 0 {
				return true
			}
		}
	}
	return false
}

// later finds the containers that restart indefinitely, from a state some time later.
func (o *finalState) later(next *finalState) {
	for pod, containers := range o.reported {
		for name, c := range containers {
			if next.reported[pod][name].restarts > c.restarts {
				o.restarting[pod+"/"+name] = true
			}
		}
	}
}

// compare asserts that the final state with faults is the one without.
func (o *finalState) compare(t *testing.T, w *harness, want *finalState) {
	if !w.mayRestart() {
		assert.Equal(t, want.restarting, o.restarting, "containers that restart indefinitely")
	}
	for pod := range o.pods(want) {
		if _, limited := w.sc.option("max-pods"); limited && o.rejected(pod) != want.rejected(pod) {
			continue // which of them fit depends on when the others end
		}
		if w.mayBeOver(pod, o) {
			assert.Empty(t, o.runs[pod], "%s has finished: running containers", pod)
			continue
		}
		assert.Equal(t, want.boxes[pod], o.boxes[pod], "%s: ready sandboxes", pod)
		assert.Equal(t, want.phases[pod], o.phases[pod], "%s: reported phases", pod)
		assert.Equal(t, want.steady(pod, want.runs[pod]), want.steady(pod, o.runs[pod]), "%s: running containers", pod)
		for name, c := range want.reported[pod] {
			if want.restarting[pod+"/"+name] || strings.HasPrefix(want.phases[pod][0], "Failed DeadlineExceeded") {
				continue
			}
			got := o.reported[pod][name]
			assert.Equal(t, c.state, got.state, "%s: reported state of %s", pod, name)
			if !w.mayRestart() && !w.takesNumbers() {
				assert.LessOrEqual(t, got.restarts, c.restarts, "%s: restarts of %s", pod, name)
			}
		}
	}
	for what, at := range o.stops {
		first, ok := want.stops[what]
		asked := w.ends() // after that it can still run, where it exits by itself without faults
		if !w.mayRestart() && at < asked {
			assert.True(t, ok, "%s is stopped at %v, and without faults never", what, at)
			assert.GreaterOrEqual(t, at, first-retry, "%s is stopped earlier than without faults", what)
		}
	}
	w.leaked(want.restarting)
}

// pods returns the pods in either state.
func (o *finalState) pods(other *finalState) map[string]bool {
	all := map[string]bool{}
	for _, x := range []*finalState{o, other} {
		for pod := range x.boxes {
			all[pod] = true
		}
		for pod := range x.runs {
			all[pod] = true
		}
		for pod := range x.phases {
			all[pod] = true
		}
	}
	return all
}

func (o *finalState) rejected(pod string) bool {
	return slices.Contains(o.phases[pod], "Failed OutOfpods")
}

// retry is how much earlier an event can occur with faults, because of another retry of
// a call or sync.
const retry = 10 * time.Second

// steady returns the containers of a pod without those that restart indefinitely.
func (o *finalState) steady(pod string, runs []string) []string {
	steady := []string{}
	for _, c := range runs {
		if name, _, _ := strings.Cut(c, " "); !o.restarting[pod+"/"+name] {
			steady = append(steady, c)
		}
	}
	return steady
}

// mayRestart reports whether the faults alone can restart containers: an inspection got
// a wrong response, or exec probes failed.
func (w *harness) mayRestart() bool {
	return w.chance.lies() || w.chance.strikes("", "ExecSync") && w.manifests("exec:")
}

// mayBeOver reports whether a pod can be reported as finished because of a wrong
// response. Its sandbox may have been missing from the list when it was to be stopped.
func (w *harness) mayBeOver(pod string, o *finalState) bool {
	lied := w.chance.lies() && (w.manifests("restartPolicy: Never") || w.manifests("restartPolicy: OnFailure"))
	for _, phase := range o.phases[pod] {
		if lied && (strings.HasPrefix(phase, "Failed") || strings.HasPrefix(phase, "Succeeded")) {
			return true
		}
	}
	return false
}

// takesNumbers reports whether a container can have been created by a call whose response
// was lost, and removed before it ran. Its attempt number is not used again, as in the
// kubelet.
func (w *harness) takesNumbers() bool { return w.chance.strikes(runtimetest.Drop, "CreateContainer") }

func (w *harness) manifests(text string) bool {
	for name, file := range w.sc.files {
		if strings.HasSuffix(name, ".yaml") && strings.Contains(file, text) {
			return true
		}
	}
	return false
}

// ends returns the time of the first command that ends a pod.
func (w *harness) ends() time.Duration {
	for _, s := range w.sc.script {
		switch s.args[0] {
		case "delete", "mark", "remove", "copy", "stop-agent":
			return s.at
		}
	}
	return 1000 * time.Hour
}

// leaked asserts that of pods without a status nothing is left in the runtime, in the
// directories of the agent and among the logs.
func (w *harness) leaked(restarting map[string]bool) {
	ctx := context.Background()
	owned := map[string]bool{}
	w.mu.Lock()
	for uid := range w.last {
		owned[string(uid)] = true
	}
	w.mu.Unlock()
	list, err := w.inside.ListContainers(ctx, &v1.ListContainersRequest{})
	require.NoError(w.t, err)
	of, full := map[string]int{}, map[string]bool{}
	for _, c := range list.GetContainers() {
		uid, name := c.GetLabels()["io.kubernetes.pod.uid"], c.GetMetadata().GetName()
		pod := c.GetLabels()["io.kubernetes.pod.name"]
		full[c.GetPodSandboxId()] = true
		assert.True(w.t, owned[uid], "%s#%d of %s has no pod", name, c.GetMetadata().GetAttempt(), pod)
		key := fmt.Sprintf("%s %s %v", uid, name, c.GetState())
		of[key]++
		most := 1
		if restarting[pod+"/"+name] && c.GetState() == v1.ContainerState_CONTAINER_EXITED {
			most = 2 // the older one is collected later
		}
		assert.LessOrEqual(w.t, of[key], most, "%s of %s that are %v", name, pod, c.GetState())
	}
	boxes, err := w.inside.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
	require.NoError(w.t, err)
	for _, s := range boxes.GetItems() {
		m := s.GetMetadata()
		assert.True(w.t, owned[m.GetUid()], "sandbox %s#%d has no pod", m.GetName(), m.GetAttempt())
		if s.GetState() == v1.PodSandboxState_SANDBOX_NOTREADY && !full[s.GetId()] {
			of[m.GetUid()]++ // the newest one of a finished pod stays
			assert.LessOrEqual(w.t, of[m.GetUid()], 1, "empty sandboxes of %s", m.GetName())
		}
	}
	for _, sub := range []string{"pods", "logs", "statuses"} {
		entries, err := os.ReadDir(filepath.Join(w.dir, sub))
		if !os.IsNotExist(err) {
			require.NoError(w.t, err)
		}
		for _, e := range entries {
			uid := strings.TrimSuffix(e.Name()[strings.LastIndex(e.Name(), "_")+1:], ".json")
			assert.True(w.t, owned[uid], "%s/%s is left of a deleted pod", sub, e.Name())
		}
	}
}
