package runtimetest

import (
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ready and notReady are the states of a sandbox.
const (
	ready    = v1.PodSandboxState_SANDBOX_READY
	notReady = v1.PodSandboxState_SANDBOX_NOTREADY
)

// statuses expects the statuses of exactly these containers, in these states.
func (c *CaseT) statuses(got []*v1.ContainerStatus, where string, want map[string]v1.ContainerState) {
	states := map[string]v1.ContainerState{}
	for _, st := range got {
		states[st.GetId()] = st.GetState()
	}
	for id, state := range want {
		if _, ok := states[id]; !ok {
			c.Errorf("containers_statuses of %s lacks container %s, which is %s", where, id, state)
			continue
		}
		same(c, state, states[id], "state of a container in containers_statuses of "+where)
	}
	same(c, len(want), len(states), "number of containers_statuses of "+where)
}

// requireRemoved expects a sandbox to be in neither list nor status.
func (p *pod) requireRemoved() {
	c := p.c
	same(c, 0, len(c.pods(&v1.PodSandboxFilter{Id: p.id})), "removed sandboxes in the list")
	_, err := c.rs.PodSandboxStatus(c.ctx, &v1.PodSandboxStatusRequest{PodSandboxId: p.id})
	c.rejected(err, "status of a removed sandbox", codes.NotFound)
}

func sandboxCases() []testCase {
	return []testCase{
		{"a pod that was run is ready at once", "it would start containers in a pod that is not there yet", 0, func(c *CaseT) {
			p := c.pod("p")
			st := p.status()
			same(c, p.id, st.GetId(), "id in the status")
			same(c, ready, st.GetState(), "state in the status")
			list := c.pods(&v1.PodSandboxFilter{Id: p.id})
			same(c, 1, len(list), "pods of that id in the list")
			for _, s := range list {
				same(c, ready, s.GetState(), "state in the list")
			}
		}},
		{"a pod is reported with its name, UID and attempt", "after a restart it would not know its own pods and kill them as orphans", 0, func(c *CaseT) {
			p := c.pod("p", attempt(3))
			want := p.cfg.GetMetadata()
			for what, got := range map[string]*v1.PodSandboxMetadata{
				"status": p.status().GetMetadata(), "list": p.listed().GetMetadata(),
			} {
				same(c, want.GetName(), got.GetName(), what+": name")
				same(c, want.GetNamespace(), got.GetNamespace(), what+": namespace")
				same(c, want.GetUid(), got.GetUid(), what+": uid")
				same(c, want.GetAttempt(), got.GetAttempt(), what+": attempt")
			}
		}},
		{"a pod keeps its labels and annotations", "it finds pods by labels and keeps grace periods in annotations; both would be lost", 0, func(c *CaseT) {
			p := c.pod("p", func(cfg *v1.PodSandboxConfig) { cfg.Annotations["sublet.dev/odd"] = "a=b,\n\"ü\"" })
			st, item := p.status(), p.listed()
			c.check(maps.Equal(p.cfg.Labels, st.GetLabels()), "labels in the status: %v", st.GetLabels())
			c.check(maps.Equal(p.cfg.Annotations, st.GetAnnotations()), "annotations in the status: %v", st.GetAnnotations())
			c.check(maps.Equal(p.cfg.Labels, item.GetLabels()), "labels in the list: %v", item.GetLabels())
			c.check(maps.Equal(p.cfg.Annotations, item.GetAnnotations()), "annotations in the list: %v", item.GetAnnotations())
		}},
		{"a pod reports its creation time", "it picks the newest sandbox by that time; the wrong one would be kept", 0, func(c *CaseT) {
			before := time.Now()
			p := c.pod("p")
			at := p.status().GetCreatedAt()
			c.isNow(before, at, "created_at of the pod")
			same(c, at, p.listed().GetCreatedAt(), "creation time in list and status")
		}},
		{"a stopped pod is not ready", "it would go on using a pod whose network is gone", 0, func(c *CaseT) {
			p := c.pod("p")
			c.ok(p.stop(), "stop pod")
			same(c, notReady, p.status().GetState(), "state")
		}},
		{"a pod may be stopped again and again", "it stops a pod at least once more than needed; terminating pods would hang in errors", 0, func(c *CaseT) {
			p := c.pod("p")
			for i := range 3 {
				c.ok(p.stop(), fmt.Sprintf("stop number %d", i+1))
			}
		}},
		{"stopping a pod that is not there is no error", "a retry after a lost answer would never succeed", 0, func(c *CaseT) {
			c.ok((&pod{c, unknownID, nil}).stop(), "stop unknown pod")
		}},
		{"removing a pod that is not there is no error", "a retry after a lost answer would never succeed", 0, func(c *CaseT) {
			c.ok((&pod{c, unknownID, nil}).remove(), "remove unknown pod")
		}},
		{"a pod may be removed again and again", "garbage collection would keep failing on removed objects", 0, func(c *CaseT) {
			p := c.pod("p")
			c.ok(p.stop(), "stop pod")
			c.ok(p.remove(), "remove pod")
			c.ok(p.remove(), "remove pod again")
			p.requireRemoved()
		}},
		{"a removed pod is in neither list nor status", "it would keep observing dead pods", 0, func(c *CaseT) {
			p := c.pod("p")
			c.ok(p.stop(), "stop pod")
			c.ok(p.remove(), "remove pod")
			p.requireRemoved()
		}},
		{"a ready pod can be removed without a stop", "a pod whose stop was lost could not be cleaned up", 0, func(c *CaseT) {
			p := c.pod("p")
			p.start("c", longRunTime)
			c.ok(p.remove(), "remove ready pod")
			p.requireRemoved()
			same(c, 0, len(c.containers(&v1.ContainerFilter{PodSandboxId: p.id})), "containers of the removed pod")
		}},
		{"one name is one pod", "a retried call would make a second pod beside the first, with everything running twice", 0, func(c *CaseT) {
			p := c.pod("p")
			_, err := c.runConfig(p.cfg)
			c.rejected(err, "a second pod of the same name, uid and attempt")
			same(c, 1, len(c.pods(nil)), "pods")
		}},
		{"a stopped pod keeps its name reserved", "two sandboxes of one attempt could not be distinguished", 0, func(c *CaseT) {
			p := c.pod("p")
			c.ok(p.stop(), "stop pod")
			_, err := c.runConfig(p.cfg)
			c.rejected(err, "a second pod of the same name, uid and attempt")
		}},
		{"a removed pod's name is free", "a pod that failed to start once could never start", 0, func(c *CaseT) {
			p := c.pod("p")
			c.ok(p.remove(), "remove pod")
			_, err := c.runConfig(p.cfg)
			c.ok(err, "run the pod again under its name")
		}},
		{"a new attempt coexists with the dead one", "a pod could not be given a new sandbox after a crash of the old one", 0, func(c *CaseT) {
			old := c.pod("p")
			c.ok(old.stop(), "stop pod")
			next := c.pod("p", attempt(1))
			c.check(old.id != next.id, "both attempts have one id")
			same(c, 2, len(c.pods(nil)), "sandboxes")
			same(c, notReady, old.status().GetState(), "state of the old one")
			same(c, ready, next.status().GetState(), "state of the new one")
		}},
		{"pods of one name and different UIDs coexist", "a static pod that was edited could not be replaced", 0, func(c *CaseT) {
			c.pod("p")
			c.pod("p", func(cfg *v1.PodSandboxConfig) { cfg.Metadata.Uid += "-2" })
			same(c, 2, len(c.pods(nil)), "pods")
		}},
		{"stopping a pod ends its containers", "containers would run on without a pod", 0, func(c *CaseT) {
			p := c.pod("p")
			a, b := p.start("a", ignoresTERM), p.start("b", longRunTime)
			c.ok(p.stop(), "stop pod")
			for _, id := range []string{a, b} {
				same(c, v1.ContainerState_CONTAINER_EXITED, c.status(id).GetState(), "container state")
			}
		}},
		{"stopping a pod leaves its containers to be read", "exit codes would be lost when a pod ends", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "exit 6")
			c.exited(id)
			c.ok(p.stop(), "stop pod")
			same(c, 6, c.status(id).GetExitCode(), "exit code after the pod was stopped")
		}},
		{"a stopped pod takes no more containers", "a container could start in a pod that is being torn down", 0, func(c *CaseT) {
			p := c.pod("p")
			c.ok(p.stop(), "stop pod")
			id, err := p.createConfig(p.containerConfig("c", sh(longRunTime)))
			if err == nil {
				c.rejected(c.start(id), "start of a container in a stopped pod")
			}
		}},
		{"a pod that was stopped is never ready again", "it would send traffic to a pod that it has given up", 0, func(c *CaseT) {
			p := c.pod("p")
			c.ok(p.stop(), "stop pod")
			c.wait(300 * time.Millisecond)
			same(c, notReady, p.status().GetState(), "state")
			for _, s := range c.pods(&v1.PodSandboxFilter{Id: p.id}) {
				same(c, notReady, s.GetState(), "state in the list")
			}
		}},
		{"stopping one pod leaves the others alone", "one pod's end would take its neighbours down", 0, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			id := b.start("c", longRunTime)
			c.ok(a.stop(), "stop pod a")
			c.ok(a.remove(), "remove pod a")
			same(c, v1.ContainerState_CONTAINER_RUNNING, c.status(id).GetState(), "container of pod b")
			same(c, ready, b.status().GetState(), "pod b")
		}},
	}
}

func networkCases() []testCase {
	return []testCase{
		{"a pod has an address", "status.podIP would stay empty, and the pod would be created again and again", 0, func(c *CaseT) {
			p := c.pod("p")
			network := p.status().GetNetwork()
			if network.GetIp() == "" {
				c.fatal("the ready pod has no address")
			}
			c.isAddress(network.GetIp(), "ip of the pod")
			for _, more := range network.GetAdditionalIps() {
				c.isAddress(more.GetIp(), "additional_ips of the pod")
			}
		}},
		{"a pod keeps its address", "status.podIP would change while the pod runs, and traffic go nowhere", 0, func(c *CaseT) {
			p := c.pod("p")
			first := p.status().GetNetwork().GetIp()
			p.start("c", longRunTime)
			for range 3 {
				same(c, first, p.status().GetNetwork().GetIp(), "address of the ready pod in a later status")
			}
		}},
		{"the status of a pod has the statuses of its containers", "pods would seem to have no containers whenever an event arrives", 0, func(c *CaseT) {
			p := c.pod("p")
			runs, dead := p.start("a", longRunTime), p.start("b", "exit 4")
			c.exited(dead)
			r, err := c.rs.PodSandboxStatus(c.ctx, &v1.PodSandboxStatusRequest{PodSandboxId: p.id})
			c.ok(err, "status of pod")
			c.check(r.GetTimestamp() > 0, "timestamp is missing from the answer of PodSandboxStatus")
			c.statuses(r.GetContainersStatuses(), "the answer of PodSandboxStatus", map[string]v1.ContainerState{runs: running, dead: exited})
		}},
		{"a pod on the host's network is ready", "control plane pods could not start", 0, func(c *CaseT) {
			p := c.pod("p", hostNetwork)
			same(c, ready, p.status().GetState(), "state")
			same(c, v1.NamespaceMode_NODE, p.status().GetLinux().GetNamespaces().GetOptions().GetNetwork(), "network namespace in the status")
		}},
		{"a stopped pod can be asked for its status", "the last status of a pod could not be reported", 0, func(c *CaseT) {
			p := c.pod("p")
			c.ok(p.stop(), "stop pod")
			same(c, p.cfg.GetMetadata().GetUid(), p.status().GetMetadata().GetUid(), "uid")
		}},
	}
}
