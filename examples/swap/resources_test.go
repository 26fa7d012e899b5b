package swap_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// countingObjects counts what is looked up in other Objects. What these implement in
// addition, such as podspec.Projections in a cluster, is hidden.
type countingObjects struct {
	agent.Objects
	lookups *counter
}

func (o countingObjects) Object(ctx context.Context, ref podspec.Ref) (podspec.Object, error) {
	o.lookups.add()
	return o.Objects.Object(ctx, ref)
}

func Example_objectsDecorated() {
	var lookups counter
	runPod(agent.WithObjectsFunc(func(c *agent.Components) (agent.Objects, error) {
		o, err := agent.NewObjects(c)
		return countingObjects{o, &lookups}, err
	}))
	fmt.Println("lookups counted:", lookups.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// lookups counted: true
}

// sameObjects finds the same content under every name.
type sameObjects map[string][]byte

func (o sameObjects) Object(_ context.Context, ref podspec.Ref) (podspec.Object, error) {
	return podspec.Object{Ref: ref, Data: o}, nil
}

func Example_objectsOwn() {
	runPod(agent.WithObjectsFunc(func(*agent.Components) (agent.Objects, error) { return sameObjects{"COLOR": []byte("blue")}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}

// rememberedCgroups only remembers which pods have one: the runtime chooses where
// containers run, and nothing is limited. A decorator of the default would change the
// cgroups of the machine.
type rememberedCgroups struct {
	mu   sync.Mutex
	pods map[types.UID]bool
}

func (g *rememberedCgroups) Ensure(_ context.Context, pod *corev1.Pod) (parent string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pods[pod.UID] = true
	return "", nil
}

func (g *rememberedCgroups) Raise(ctx context.Context, pod *corev1.Pod) (parent string, err error) {
	return g.Ensure(ctx, pod)
}

func (g *rememberedCgroups) Remove(_ context.Context, uid types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pods, uid)
	return nil
}

func (g *rememberedCgroups) PodUIDs() ([]types.UID, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.pods)), nil
}

func (*rememberedCgroups) PodCgroup(*corev1.Pod) string { return "" }
func (*rememberedCgroups) PodsCgroup() string           { return "" }

func Example_cgroupsOwn() {
	cgroups := &rememberedCgroups{pods: map[types.UID]bool{}}
	runPod(agent.WithCgroups(func(*agent.Components) (agent.Cgroups, error) { return cgroups, nil }))
	fmt.Println("left:", len(cgroups.pods))
	// Output:
	// the pod runs
	// the pod is gone
	// left: 0
}

// countingUserNamespaces counts the pods whose ids other UserNamespaces release.
type countingUserNamespaces struct {
	agent.UserNamespaces
	releases *counter
}

func (n countingUserNamespaces) Release(uid types.UID) {
	n.releases.add()
	n.UserNamespaces.Release(uid)
}

func Example_userNamespacesDecorated() {
	var releases counter
	runPod(agent.WithUserNamespaces(func(c *agent.Components) (agent.UserNamespaces, error) {
		n, err := agent.NewUserNamespaces(c)
		return countingUserNamespaces{n, &releases}, err
	}))
	fmt.Println("releases counted:", releases.wasCalled())
	// Output:
	// the pod runs
	// the pod is gone
	// releases counted: true
}

// noUserNamespaces keeps pods with hostUsers false from starting, and no others.
type noUserNamespaces struct{}

func (noUserNamespaces) Ensure(types.UID) (users, groups []runtime.IDMapping, err error) {
	return nil, nil, fmt.Errorf("user namespaces: %w", runtime.ErrUnsupported)
}

func (noUserNamespaces) Release(types.UID) {}

func Example_userNamespacesOwn() {
	runPod(agent.WithUserNamespaces(func(*agent.Components) (agent.UserNamespaces, error) { return noUserNamespaces{}, nil }))
	// Output:
	// the pod runs
	// the pod is gone
}
