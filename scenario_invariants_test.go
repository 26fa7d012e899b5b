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

// stops is when containers were first stopped while they ran, by pod and name.
type stops struct {
	mu    sync.Mutex
	first map[string]time.Duration
}

// noteStop notes a call that ends what runs, whether it will be carried out or not.
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

// finalState is what became of a scenario, by the names of pods.
type finalState struct {
	boxes    map[string]int                       // ready sandboxes
	runs     map[string][]string                  // containers that run, with their images
	phases   map[string][]string                  // told, with reasons
	told     map[string]map[string]containerCount // of containers
	restless map[string]bool                      // pod/container: started again and again
	stops    map[string]time.Duration
}

// containerCount is what was told of a container.
type containerCount struct {
	state    string
	restarts int32
}

func (w *harness) outcome() *finalState {
	o := &finalState{
		boxes: map[string]int{}, runs: map[string][]string{}, phases: map[string][]string{},
		told: map[string]map[string]containerCount{}, restless: map[string]bool{},
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
		if o.told[name] == nil {
			o.told[name] = map[string]containerCount{}
		}
		for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
			state := containerText(corev1.ContainerStatus{Name: c.Name, State: c.State, Ready: c.Ready})
			o.told[name][c.Name] = containerCount{state: state, restarts: c.RestartCount}
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
	for _, containers := range o.told {
		for _, c := range containers {
			if c.restarts > 0 {
				return true
			}
		}
	}
	return false
}

// later finds out what does not come to rest, from an outcome some time later.
func (o *finalState) later(next *finalState) {
	for pod, containers := range o.told {
		for name, c := range containers {
			if next.told[pod][name].restarts > c.restarts {
				o.restless[pod+"/"+name] = true
			}
		}
	}
}

// compare holds what became of a scenario in which things went wrong against what
// becomes of it if nothing does.
func (o *finalState) compare(t *testing.T, w *harness, want *finalState) {
	if !w.mayRestart() {
		assert.Equal(t, want.restless, o.restless, "what is started again and again")
	}
	for pod := range o.pods(want) {
		if _, limited := w.sc.option("max-pods"); limited && o.refused(pod) != want.refused(pod) {
			continue // which of them find room is a matter of when the others go
		}
		if w.mayBeOver(pod, o) {
			assert.Empty(t, o.runs[pod], "%s is over: what runs", pod)
			continue
		}
		assert.Equal(t, want.boxes[pod], o.boxes[pod], "%s: ready sandboxes", pod)
		assert.Equal(t, want.phases[pod], o.phases[pod], "%s: told", pod)
		assert.Equal(t, want.steady(pod, want.runs[pod]), want.steady(pod, o.runs[pod]), "%s: what runs", pod)
		for name, c := range want.told[pod] {
			if want.restless[pod+"/"+name] || strings.HasPrefix(want.phases[pod][0], "Failed DeadlineExceeded") {
				continue
			}
			got := o.told[pod][name]
			assert.Equal(t, c.state, got.state, "%s: told of %s", pod, name)
			if !w.mayRestart() && !w.takesNumbers() {
				assert.LessOrEqual(t, got.restarts, c.restarts, "%s: restarts of %s", pod, name)
			}
		}
	}
	for what, at := range o.stops {
		first, ok := want.stops[what]
		asked := w.ends() // it may run yet, when it would have ended by itself
		if !w.mayRestart() && at < asked {
			assert.True(t, ok, "%s is stopped at %v, and without faults never", what, at)
			assert.GreaterOrEqual(t, at, first-retry, "%s is stopped earlier than without faults", what)
		}
	}
	w.leaked(want.restless)
}

// pods are all that either knows.
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

func (o *finalState) refused(pod string) bool {
	return slices.Contains(o.phases[pod], "Failed OutOfpods")
}

// retry is how much sooner something may be found out without faults: by another
// retry of a call or turn.
const retry = 10 * time.Second

// steady are those of a pod's containers that are not started again and again.
func (o *finalState) steady(pod string, runs []string) []string {
	steady := []string{}
	for _, c := range runs {
		if name, _, _ := strings.Cut(c, " "); !o.restless[pod+"/"+name] {
			steady = append(steady, c)
		}
	}
	return steady
}

// mayRestart reports whether containers may be restarted for no other reason than
// the faults: an inspection was lied to, or what runs inside of containers could
// not be asked how they are.
func (w *harness) mayRestart() bool {
	return w.chance.lies() || w.chance.strikes("", "ExecSync") && w.manifests("exec:")
}

// mayBeOver reports whether a pod is told as over because of a lie that it ended:
// its sandbox may have been left out of the list when it was to be stopped.
func (w *harness) mayBeOver(pod string, o *finalState) bool {
	lied := w.chance.lies() && (w.manifests("restartPolicy: Never") || w.manifests("restartPolicy: OnFailure"))
	for _, phase := range o.phases[pod] {
		if lied && (strings.HasPrefix(phase, "Failed") || strings.HasPrefix(phase, "Succeeded")) {
			return true
		}
	}
	return false
}

// takesNumbers reports whether a container may have been made by a call whose answer
// was lost, been seen with a number of its own, and removed before it ran: like a
// kubelet's, that number is not used again.
func (w *harness) takesNumbers() bool { return w.chance.strikes(runtimetest.Drop, "CreateContainer") }

func (w *harness) manifests(text string) bool {
	for name, file := range w.sc.files {
		if strings.HasSuffix(name, ".yaml") && strings.Contains(file, text) {
			return true
		}
	}
	return false
}

// ends is when the script first asks for the end of a pod.
func (w *harness) ends() time.Duration {
	for _, s := range w.sc.script {
		switch s.args[0] {
		case "delete", "mark", "remove", "copy", "stop-agent":
			return s.at
		}
	}
	return 1000 * time.Hour
}

// leaked asserts that there is nothing of pods of which nothing is told any more:
// in the runtime, in the agent's folders, among the logs.
func (w *harness) leaked(restless map[string]bool) {
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
		assert.True(w.t, owned[uid], "%s#%d of %s is nobody's", name, c.GetMetadata().GetAttempt(), pod)
		key := fmt.Sprintf("%s %s %v", uid, name, c.GetState())
		of[key]++
		most := 1
		if restless[pod+"/"+name] && c.GetState() == v1.ContainerState_CONTAINER_EXITED {
			most = 2 // the older one has still to be collected
		}
		assert.LessOrEqual(w.t, of[key], most, "%s of %s that are %v", name, pod, c.GetState())
	}
	boxes, err := w.inside.ListPodSandbox(ctx, &v1.ListPodSandboxRequest{})
	require.NoError(w.t, err)
	for _, s := range boxes.GetItems() {
		m := s.GetMetadata()
		assert.True(w.t, owned[m.GetUid()], "sandbox %s#%d is nobody's", m.GetName(), m.GetAttempt())
		if s.GetState() == v1.PodSandboxState_SANDBOX_NOTREADY && !full[s.GetId()] {
			of[m.GetUid()]++ // the newest one of a pod that is over stays
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
			assert.True(w.t, owned[uid], "%s/%s is left of a pod that is gone", sub, e.Name())
		}
	}
}
