package runtimetest

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// drain reads a streamed list to its end.
func drain[R any](c *CaseT, s grpc.ServerStreamingClient[R], err error, what string, each func(*R)) {
	c.implemented(err, what)
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		c.implemented(err, what)
		each(r)
	}
}

// hasItems expects a response of a streamed list to have items, as each of them must.
func (c *CaseT) hasItems(n int, what string) {
	c.check(n > 0, "%s sends a response without an item", what)
}

// streamsTheList expects a stream to have what the list has. On a machine that is in use both may change meanwhile; then
// it compares again.
func (c *CaseT) streamsTheList(what string, list, stream func() []string) {
	for range 10 {
		before, got, after := list(), stream(), list()
		slices.Sort(before)
		slices.Sort(after)
		if slices.Equal(before, after) {
			set(c, after, got, what)
			return
		}
		c.wait(time.Second)
	}
	c.skipped("the list changes all the time: other clients use the runtime")
}

// set expects two lists to have the same elements, in any order.
func set(c *CaseT, want, got []string, what string) {
	want, got = slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))
	if !slices.Equal(want, got) {
		c.Errorf("%s: got %d, %.400q; want %d, %.400q", what, len(got), got, len(want), want)
	}
}

// meanwhile calls check every 10 ms while change runs, to its end, which is a matter of the runtime, and 20
// times at least. The first failure ends the case.
func (c *CaseT) meanwhile(change, check func()) {
	changed := make(chan struct{})
	go func() { // a change that fails ends its goroutine
		defer close(changed)
		change()
	}()
	defer func() { <-changed }()
	for over, n := false, 0; !over || n < 20; n++ {
		check()
		if failures, _ := c.outcome(); len(failures) > 0 {
			return
		}
		select {
		case <-changed:
			over = true
		default:
		}
		c.wait(10 * time.Millisecond)
	}
}

func inState(s v1.ContainerState) *v1.ContainerStateValue { return &v1.ContainerStateValue{State: s} }

func listCases() []testCase {
	return []testCase{
		{"pods are found by id", "each inspection would have to read the whole node", 0, func(c *CaseT) {
			a := c.pod("a")
			c.pod("b")
			list := c.pods(&v1.PodSandboxFilter{Id: a.id})
			same(c, 1, len(list), "ListPodSandbox with the id of one of two pods: pods")
			c.check(slices.ContainsFunc(list, func(p *v1.PodSandbox) bool { return p.GetId() == a.id }), "ListPodSandbox with the id %s does not return that pod", a.id)
		}},
		{"pods are found by state", "dead sandboxes would be taken for ready ones", 0, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			c.ok(a.stop(), "stop pod a")
			for state, want := range map[v1.PodSandboxState]string{ready: b.id, notReady: a.id} {
				var got []string
				for _, p := range c.pods(&v1.PodSandboxFilter{State: &v1.PodSandboxStateValue{State: state}}) {
					got = append(got, p.GetId())
				}
				set(c, []string{want}, got, state.String())
			}
		}},
		{"pods are found by all labels of a selector", "a pod's sandboxes could not be found by its uid", 0, func(c *CaseT) {
			a := c.pod("a")
			c.pod("b")
			list := c.pods(&v1.PodSandboxFilter{LabelSelector: map[string]string{
				runLabel: c.s.id, "io.kubernetes.pod.uid": a.cfg.GetMetadata().GetUid(),
			}})
			same(c, 1, len(list), "ListPodSandbox with two labels of which one pod has both: pods")
			same(c, 0, len(c.pods(&v1.PodSandboxFilter{LabelSelector: map[string]string{runLabel: c.s.id, "none": "x"}})), "ListPodSandbox: pods with a label that none has")
		}},
		{"a filter that nothing meets gives an empty list", "nothing found would look like everything found", 0, func(c *CaseT) {
			c.pod("a").start("c", longRunTime)
			same(c, 0, len(c.pods(&v1.PodSandboxFilter{Id: unknownID})), "ListPodSandbox with an unknown id: pods")
			same(c, 0, len(c.containers(&v1.ContainerFilter{Id: unknownID})), "ListContainers with an unknown id: containers")
			same(c, 0, len(c.containers(&v1.ContainerFilter{PodSandboxId: unknownID})), "ListContainers with an unknown pod_sandbox_id: containers")
		}},
		{"containers are found by pod", "it would stop the containers of another pod", 0, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			want := []string{a.start("x", longRunTime), a.create("y", sh(longRunTime))}
			b.start("x", longRunTime)
			set(c, want, ids(c.containers(&v1.ContainerFilter{PodSandboxId: a.id})), "containers of pod a")
		}},
		{"containers are found by state", "it would take dead containers for running ones", 0, func(c *CaseT) {
			p := c.pod("p")
			made, runs, dead := p.create("a", sh(longRunTime)), p.start("b", longRunTime), p.start("d", "exit 0")
			c.exited(dead)
			for state, want := range map[v1.ContainerState]string{created: made, running: runs, exited: dead} {
				set(c, []string{want}, ids(c.containers(&v1.ContainerFilter{PodSandboxId: p.id, State: inState(state)})), state.String())
			}
		}},
		{"containers are found by labels", "a container could not be found by its name", 0, func(c *CaseT) {
			p := c.pod("p")
			want := p.create("a", sh(longRunTime))
			p.create("b", sh(longRunTime))
			got := c.containers(&v1.ContainerFilter{LabelSelector: map[string]string{
				"io.kubernetes.pod.uid": p.cfg.GetMetadata().GetUid(), "io.kubernetes.container.name": "a",
			}})
			set(c, []string{want}, ids(got), "containers")
		}},
		{"all parts of a filter count together", "it would act on containers that it did not mean", 0, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			a.start("x", longRunTime)
			id := b.start("x", longRunTime)
			same(c, 0, len(c.containers(&v1.ContainerFilter{Id: id, PodSandboxId: a.id})), "containers of b in pod a")
			same(c, 0, len(c.containers(&v1.ContainerFilter{Id: id, State: inState(exited)})), "running container as exited")
			same(c, 1, len(c.containers(&v1.ContainerFilter{Id: id, PodSandboxId: b.id, State: inState(running)})), "the one that is meant")
		}},
		{"a list without a filter has all", "pods that are missing from a list are taken for dead", 0, func(c *CaseT) {
			a, b := c.pod("a"), c.pod("b")
			want := []string{a.create("x", sh(longRunTime)), b.start("x", longRunTime)}
			all := ids(c.containers(nil))
			for _, id := range want {
				c.check(slices.Contains(all, id), "container %s is missing", id)
			}
			same(c, 2, len(c.pods(nil)), "ListPodSandbox without a filter: pods")
		}},
		{"list and status agree", "a pod would flap between two states", 0, func(c *CaseT) {
			p := c.pod("p")
			dead := p.start("a", "exit 2")
			c.exited(dead)
			p.start("b", longRunTime)
			for _, item := range c.containers(&v1.ContainerFilter{PodSandboxId: p.id}) {
				st := c.status(item.GetId())
				same(c, st.GetState(), item.GetState(), "state")
				same(c, st.GetCreatedAt(), item.GetCreatedAt(), "creation time")
				same(c, st.GetImageRef(), item.GetImageRef(), "image_ref")
				same(c, st.GetMetadata().GetName(), item.GetMetadata().GetName(), "name")
			}
		}},
		{"streamed pods are the listed pods", "a big node could not be read", alone, func(c *CaseT) {
			c.pod("a")
			c.pod("b")
			c.streamsTheList("streamed pods", func() (all []string) {
				list, err := c.rs.ListPodSandbox(c.ctx, &v1.ListPodSandboxRequest{})
				c.ok(err, "list pods")
				for _, p := range list.GetItems() {
					all = append(all, p.GetId())
				}
				return all
			}, func() (got []string) {
				s, err := c.rs.StreamPodSandboxes(c.ctx, &v1.StreamPodSandboxesRequest{})
				drain(c, s, err, "StreamPodSandboxes", func(r *v1.StreamPodSandboxesResponse) {
					c.hasItems(len(r.GetPodSandboxes()), "StreamPodSandboxes")
					for _, p := range r.GetPodSandboxes() {
						got = append(got, p.GetId())
					}
				})
				return got
			})
		}},
		{"streamed containers are the listed containers", "a big node could not be read", alone, func(c *CaseT) {
			p := c.pod("a")
			p.create("x", sh(longRunTime))
			p.create("y", sh(longRunTime))
			s, err := c.rs.StreamContainers(c.ctx, &v1.StreamContainersRequest{Filter: &v1.ContainerFilter{PodSandboxId: p.id}})
			var got []string
			drain(c, s, err, "StreamContainers", func(r *v1.StreamContainersResponse) {
				c.hasItems(len(r.GetContainers()), "StreamContainers")
				got = append(got, ids(r.GetContainers())...)
			})
			set(c, ids(c.containers(&v1.ContainerFilter{PodSandboxId: p.id})), got, "streamed containers")
		}},
		{"many pods with long annotations can be listed", "a full node would be unreadable, and all its pods taken for dead", alone, func(c *CaseT) {
			blob := strings.Repeat("x", 8<<10)
			var want, got []string
			for i := range c.s.largeListSize {
				p := c.pod(fmt.Sprintf("p%d", i), func(cfg *v1.PodSandboxConfig) { cfg.Annotations["sublet.dev/blob"] = blob }, hostNetwork)
				want = append(want, p.id)
			}
			for _, p := range c.pods(&v1.PodSandboxFilter{LabelSelector: map[string]string{runLabel: c.s.id}}) {
				got = append(got, p.GetId())
				same(c, len(blob), len(p.GetAnnotations()["sublet.dev/blob"]), "length of the annotation")
			}
			set(c, want, got, "pods")
		}},
	}
}
