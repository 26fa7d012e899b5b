package syncloop

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/runtime"
)

func staticPod(uid, name string) *Pod {
	return newPod(uid, func(p *Pod) {
		p.Name, p.Annotations = name, map[string]string{podspec.AnnotationSource: "file"}
	})
}

// SR-3, PW-9: what runs of an earlier version of a static pod is passed to the workers first,
// if it is an orphan.
func TestHousekeeper_TerminatesPredecessors(t *testing.T) {
	ready := func(uid, name string) runtime.Pod {
		p := runtimePod(uid, "file")
		p.Name, p.Sandboxes[0].State = name, runtime.SandboxReady
		return p
	}
	for name, tt := range map[string]struct {
		do      func(h *housekeeperEnv)
		replace bool
	}{
		"a ready sandbox": {func(h *housekeeperEnv) { h.observed = []runtime.Pod{ready("v1", "web")} }, true},
		"a running container": {func(h *housekeeperEnv) {
			p := runtimePod("v1", "file")
			p.Name, p.Containers = "web", []runtime.Container{{State: runtime.Running}}
			h.observed = []runtime.Pod{p}
		}, true},
		"nothing runs": {func(h *housekeeperEnv) {
			p := runtimePod("v1", "file")
			p.Name = "web"
			h.observed = []runtime.Pod{p}
		}, false},
		"another name": {func(h *housekeeperEnv) { h.observed = []runtime.Pod{ready("v1", "db")} }, false},
		"another namespace": {func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{ready("v1", "web")}
			h.observed[0].Namespace = "other"
		}, false},
		"no source": {func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{ready("v1", "web")}
			h.observed[0].Sandboxes[0].Source = ""
		}, false},
		"the pod itself": {func(h *housekeeperEnv) { h.observed = []runtime.Pod{ready("v2", "web")} }, false},
		"the new pod runs already": {func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{ready("v1", "web"), ready("v2", "web")}
			h.pods.cfg.Inspector = running(func(uid types.UID) bool { return uid == "v2" })
		}, false},
		"it has a worker": {func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{ready("v1", "web")}
			h.w.states["v1"] = podworkers.State{Phase: podworkers.Terminating}
		}, false},
		"it is desired": {func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{ready("v1", "web")}
			h.sources.pods = []*Pod{staticPod("v1", "web")}
		}, false},
		"its source has not synced": {func(h *housekeeperEnv) {
			h.observed = []runtime.Pod{ready("v1", "web")}
			h.sources.unready = map[string]bool{"file": true}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHousekeeperEnv(t)
			tt.do(h)
			h.w.take()
			got := h.pods.do(podsource.Add, staticPod("v2", "web"))
			want := []string{"create v2 "}
			if tt.replace {
				want = []string{"orphan v1", "create v2 "}
			}
			assert.Equal(t, want, got)
		})
	}
}

// The pods of an API server have names of their own.
func TestHousekeeper_OnlyStaticPodsHavePredecessors(t *testing.T) {
	h := newHousekeeperEnv(t)
	h.observed = []runtime.Pod{runtimePod("v1", "file")}
	h.observed[0].Name, h.observed[0].Sandboxes[0].State = "v2", runtime.SandboxReady
	assert.Equal(t, []string{"create v2 "}, h.pods.do(podsource.Add, newPod("v2")))
}
