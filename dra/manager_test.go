package dra_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	api "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/sublet-dev/agent/dra"
	"github.com/sublet-dev/agent/podspec"
)

const gpuDriver = "gpu.vendor.example"

// A claim is prepared before its first container is created, and released after the last pod
// that uses it, also if the agent is restarted between.
func TestManager_PreparesClaims(t *testing.T) {
	file, d := stateFile(t), new(fakeDriver)
	claims := fakeClaims{"a": claim("a", gpuDriver), "b": claim("b", gpuDriver)}
	var calls []dra.Call
	m := newManager(t, file, claims, func(cfg *dra.Config) { cfg.Hooks.Called = func(c dra.Call) { calls = append(calls, c) } })
	p := serve(t, d)
	register(t, m, p)
	one, two := pod("one", "a", "b"), pod("two", "a")
	require.Empty(t, inject(t, m, pod("none"), false))
	require.Equal(t, []string{"vendor.example/gpu=a", "vendor.example/link=0", "vendor.example/gpu=b"}, inject(t, m, one, false))
	require.Equal(t, []string{"prepare a", "prepare b"}, d.taken())
	require.Equal(t, inject(t, m, one, false), inject(t, m, one, true))
	require.Equal(t, []string{"vendor.example/gpu=a", "vendor.example/link=0"}, inject(t, m, two, false))
	require.Empty(t, d.taken(), "both are prepared already")
	require.Equal(t, []string{"a", "b"}, stored(t, file))
	require.Equal(t, dra.Call{Driver: gpuDriver, Method: "NodePrepareResources", Namespace: "lab", Name: "a", Duration: calls[0].Duration}, calls[0])

	m = newManager(t, file, fakeClaims{})
	require.Equal(t, []string{"vendor.example/gpu=a", "vendor.example/link=0"}, inject(t, m, two, false), "without the driver and the API server")
	register(t, m, p)
	require.NoError(t, m.Release(t.Context(), "one"))
	require.Equal(t, []string{"unprepare b"}, d.taken(), "the other pod uses a")
	require.NoError(t, m.Release(t.Context(), "two"))
	require.Equal(t, []string{"unprepare a"}, d.taken())
	require.NoError(t, m.Release(t.Context(), "two"))
	require.Empty(t, d.taken())
	require.Empty(t, stored(t, file))
}

// A container gets the devices of the requests that it names.
func TestInject_SelectsRequests(t *testing.T) {
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver)})
	register(t, m, serve(t, new(fakeDriver)))
	p := pod("p", "a")
	for request, want := range map[string][]string{
		"":          {"vendor.example/gpu=a", "vendor.example/link=0"},
		"gpu":       {"vendor.example/gpu=a", "vendor.example/link=0"},
		"gpu/large": {"vendor.example/gpu=a", "vendor.example/link=0"},
		"other":     {"vendor.example/link=0"},
	} {
		p.Spec.Containers[0].Resources.Claims[0].Request = request
		require.Equal(t, want, inject(t, m, p, false), request)
	}
	p.Spec.Containers[0].Resources.Claims = nil
	require.Empty(t, inject(t, m, p, false))
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "unknown"}}
	require.ErrorContains(t, injectErr(t, m, p), "resource claim unknown of container c: the pod has no resource claim of this name")
}

// The claims of templates are those that the status of the pod names.
func TestInject_FindsClaimsOfTemplates(t *testing.T) {
	d := new(fakeDriver)
	m := newManager(t, stateFile(t), fakeClaims{"p-a-x": claim("p-a-x", gpuDriver)})
	register(t, m, serve(t, d))
	p, template := pod("p", "a"), "template"
	p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "a", ResourceClaimTemplateName: &template}
	require.ErrorContains(t, injectErr(t, m, p), "resource claim a: resource claim a of the pod: no ResourceClaim was made from its template")
	made := "p-a-x"
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "other"}, {Name: "a", ResourceClaimName: &made}}
	require.Equal(t, []string{"vendor.example/gpu=p-a-x", "vendor.example/link=0"}, inject(t, m, p, false))
	unneeded := p.DeepCopy()
	unneeded.UID, unneeded.Status.ResourceClaimStatuses[1].ResourceClaimName = "q", nil
	require.Empty(t, inject(t, m, unneeded, false))
}

func TestInject_ChecksClaims(t *testing.T) {
	unallocated, reserved := claim("unallocated"), claim("reserved", gpuDriver)
	unallocated.Status.Allocation = nil
	reserved.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{UID: "other"}, {UID: "p"}}
	claims := fakeClaims{"unallocated": unallocated, "reserved": reserved, "unreserved": claim("unreserved", gpuDriver)}
	m := newManager(t, stateFile(t), claims, func(cfg *dra.Config) { cfg.RequireReservation = true })
	register(t, m, serve(t, new(fakeDriver)))
	require.ErrorContains(t, injectErr(t, m, pod("p", "missing")), "ResourceClaim missing: lab/missing not found")
	require.ErrorIs(t, injectErr(t, m, pod("p", "unallocated")), dra.ErrNotAllocated)
	require.ErrorContains(t, injectErr(t, m, pod("p", "unreserved")), "it is not reserved for the pod")
	require.ErrorContains(t, injectErr(t, m, pod("q", "reserved")), "it is not reserved for the pod", "but for others")
	require.Len(t, inject(t, m, pod("p", "reserved"), false), 2)
	_, err := m.Inject(t.Context(), pod("q", "reserved"), &pod("q", "reserved").Spec.Containers[0], true)
	require.ErrorContains(t, err, "ResourceClaim reserved is not prepared", "one that runs waits for nothing")
}

// What is not the name of a CDI device never gets to the runtime.
func TestInject_ChecksCDINames(t *testing.T) {
	d := new(fakeDriver)
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver)})
	register(t, m, serve(t, d))
	for _, name := range []string{"gpu0", "vendor.example=gpu0", "/gpu=gpu0", "vendor.example/=gpu0", "vendor.example/gpu=", "vendor.example/gpu"} {
		d.cdi = name
		require.ErrorContains(t, injectErr(t, m, pod("p", "a")), "must have the form vendor.example/class=name", name)
	}
	d.cdi = "vendor.example/gpu=gpu0"
	require.Contains(t, inject(t, m, pod("p", "a"), false), d.cdi)
}

// A driver that fails, lies or hangs keeps its own pods waiting, and says why.
func TestManager_SurvivesBadDrivers(t *testing.T) {
	d := new(fakeDriver)
	claims, file, plugin, p := fakeClaims{"a": claim("a", gpuDriver), "b": claim("b", "none.example")}, stateFile(t), serve(t, d), pod("p", "a")
	m := newManager(t, file, claims)
	require.ErrorIs(t, injectErr(t, m, pod("q", "b")), dra.ErrNoDriver)
	register(t, m, plugin)
	// quick returns a manager that gives up soon: sooner than a busy machine may have an answer.
	quick := func(file string) *dra.Manager {
		m := newManager(t, file, claims, func(cfg *dra.Config) { cfg.CallTimeout = time.Second })
		register(t, m, plugin)
		return m
	}
	d.answers("no such device", nil)
	require.ErrorContains(t, injectErr(t, m, p), "ResourceClaim a: prepare: driver gpu.vendor.example: NodePrepareResources: no such device")
	d.answers("", errors.New("broken"))
	require.ErrorContains(t, injectErr(t, m, p), "broken")
	d.answers("", errHang)
	require.ErrorContains(t, injectErr(t, quick(stateFile(t)), p), "driver gpu.vendor.example: NodePrepareResources: no answer within 1s")
	d.answers("", nil)
	d.silent = true
	require.ErrorContains(t, injectErr(t, m, p), "but not for the one that it was asked for")
	d.silent, d.cdi = false, "no CDI name"
	require.ErrorContains(t, injectErr(t, m, p), `CDI device "no CDI name" of its answer must have the form`)
	d.cdi = ""
	require.Len(t, inject(t, m, p, false), 2)

	d.answers("busy", nil)
	require.ErrorContains(t, m.Release(t.Context(), "p"), "release ResourceClaim lab/a: driver gpu.vendor.example: NodeUnprepareResources: busy")
	d.answers("", errHang)
	require.ErrorContains(t, quick(file).Release(t.Context(), "p"), "no answer within 1s")
	d.answers("", nil)
	d.silent = true
	require.ErrorContains(t, m.Release(t.Context(), "p"), "it did not answer for the claim")
	d.silent = false
	require.NoError(t, m.Release(t.Context(), "p"))
}

// That a pod uses a claim is stored before the driver is asked: it is released also if the agent is killed meanwhile.
func TestManager_ReleasesWhatWasInterrupted(t *testing.T) {
	file, d := stateFile(t), new(fakeDriver)
	m := newManager(t, file, fakeClaims{"a": claim("a", gpuDriver)})
	p := serve(t, d)
	register(t, m, p)
	d.answer = func(string, *api.Claim) (string, error) {
		require.Equal(t, []string{"a"}, stored(t, file))
		return "", errors.New("killed")
	}
	require.ErrorContains(t, injectErr(t, m, pod("one", "a")), "killed")
	m = newManager(t, file, fakeClaims{})
	register(t, m, p)
	d.answers("", nil)
	d.taken()
	require.NoError(t, m.Release(t.Context(), "one"))
	require.Equal(t, []string{"unprepare a"}, d.taken())
}

// While a claim is being prepared for one pod, another that shares it waits, and the release
// of the first does not take it from the second.
func TestManager_SharesClaims(t *testing.T) {
	d := new(fakeDriver)
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver)})
	register(t, m, serve(t, d))
	begun, release := make(chan struct{}), make(chan struct{})
	d.answer = func(string, *api.Claim) (string, error) {
		close(begun)
		<-release
		return "", nil
	}
	first := make(chan error, 1)
	one, two := pod("one", "a"), pod("two", "a")
	go func() {
		_, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], false)
		first <- err
	}()
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := m.Inject(ctx, two, &two.Spec.Containers[0], false)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(release)
	require.NoError(t, <-first)
	d.answers("", nil)
	require.NoError(t, m.Release(t.Context(), "one"))
	require.Equal(t, []string{"prepare a"}, d.taken(), "two uses it")
	require.Len(t, inject(t, m, two, false), 2)
	require.NoError(t, m.Release(t.Context(), "two"))
}

// During an upgrade of a driver the new one is called; when it goes, the other.
func TestManager_FollowsRegistrations(t *testing.T) {
	previous, next := new(fakeDriver), new(fakeDriver)
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver), "b": claim("b", gpuDriver)})
	register(t, m, serve(t, previous))
	p := serve(t, next)
	require.NoError(t, m.Register(t.Context(), p))
	inject(t, m, pod("one", "a"), false)
	require.Equal(t, []string{"prepare a"}, next.taken())
	m.Deregister(t.Context(), p)
	inject(t, m, pod("two", "b"), false)
	require.Equal(t, []string{"prepare b"}, previous.taken())
	for _, bad := range []func(){func() { p.Versions = []string{"v1alpha3"} }, func() { p.Versions, p.Endpoint = []string{"v1.DRAPlugin"}, "relative" }} {
		bad()
		require.ErrorContains(t, m.Register(t.Context(), p), "dra: driver gpu.vendor.example")
	}
}

func TestManager_SurvivesDamagedState(t *testing.T) {
	for name, text := range map[string]string{
		"truncated": `{"version":1,"claims":[{"na`, "another version": `{"version":3}`, "no uid": `{"version":1,"claims":[{"namespace":"n","name":"a"}]}`,
		"no claim": `{"version":1,"claims":[null]}`, "twice": `{"version":1,"claims":[{"namespace":"n","name":"a","uid":"u"},{"namespace":"n","name":"b","uid":"u"}]}`,
		"huge": `{"version":1}` + strings.Repeat(" ", 16<<20),
	} {
		t.Run(name, func(t *testing.T) {
			file := stateFile(t)
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			var lost error
			m := newManager(t, file, fakeClaims{"a": claim("a", gpuDriver)}, func(cfg *dra.Config) { cfg.Hooks.StateLost = func(err error) { lost = err } })
			register(t, m, serve(t, new(fakeDriver)))
			require.Len(t, inject(t, m, pod("p", "a"), false), 2)
			require.ErrorContains(t, lost, file)
			require.FileExists(t, file+".damaged")
			require.Equal(t, []string{"a"}, stored(t, file))
		})
	}
}

// Nothing is prepared that cannot be stored, or while the state cannot be read.
func TestInject_FailsWithoutDisk(t *testing.T) {
	file, d := filepath.Join(t.TempDir(), "dir", "claims.json"), new(fakeDriver)
	m := newManager(t, file, fakeClaims{"a": claim("a", gpuDriver)})
	register(t, m, serve(t, d))
	require.ErrorIs(t, injectErr(t, m, pod("p", "a")), os.ErrNotExist)
	require.Empty(t, d.taken())
	require.NoError(t, os.WriteFile(filepath.Dir(file), nil, 0o600)) // no directory
	m = newManager(t, file, fakeClaims{"a": claim("a", gpuDriver)})
	require.ErrorContains(t, injectErr(t, m, pod("p", "a")), "none is prepared until they can be")
	require.ErrorContains(t, m.Release(t.Context(), "p"), "cannot be read")
}

func TestNew_ChecksConfig(t *testing.T) {
	_, err := dra.New(dra.Config{StateFile: "relative", CallTimeout: -1})
	for _, want := range []string{"Config.Claims: required", `Config.StateFile: "relative"`, "Config.CallTimeout: -1ns"} {
		require.ErrorContains(t, err, want)
	}
}

func TestManager_SupportsField(t *testing.T) {
	m := newManager(t, stateFile(t), fakeClaims{})
	for field, want := range map[string]bool{"spec.resourceClaims": true, "spec.containers[0].resources.claims": true, "spec.volumes[0].csi": false} {
		require.Equal(t, want, m.SupportsField(field), field)
	}
}

// After a boot of the node its claims are prepared again, by what is stored of them while the API
// server is away; one that does not exist any more is not.
func TestManager_PreparesClaimsAfterABoot(t *testing.T) {
	file, d := stateFile(t), new(fakeDriver)
	boot := func(id string) func(*dra.Config) { return func(cfg *dra.Config) { cfg.BootID = id } }
	claims := fakeClaims{"a": claim("a", gpuDriver)}
	p, plugin := pod("one", "a"), serve(t, d)
	m := newManager(t, file, claims, boot("first"))
	register(t, m, plugin)
	inject(t, m, p, false)
	require.Equal(t, []string{"prepare a"}, d.taken())

	m = newManager(t, file, fakeClaims{}, boot("first"))
	register(t, m, plugin)
	inject(t, m, p, false)
	require.Empty(t, d.taken(), "the node runs on")

	deleted := newManager(t, file, noClaims{}, boot("second"))
	register(t, deleted, plugin)
	require.ErrorIs(t, injectErr(t, deleted, p), podspec.ErrObjectNotFound)
	require.Empty(t, d.taken())

	m = newManager(t, file, fakeClaims{}, boot("second"))
	register(t, m, plugin)
	require.NotEmpty(t, inject(t, m, p, false))
	require.NotEmpty(t, inject(t, m, p, false))
	require.Equal(t, []string{"prepare a"}, d.taken())
	m = newManager(t, file, fakeClaims{}, boot("second"))
	register(t, m, plugin)
	inject(t, m, p, false)
	require.Empty(t, d.taken())
	require.NoError(t, m.Release(t.Context(), "one"))
	require.Equal(t, []string{"unprepare a"}, d.taken())
}

// noClaims says that there are none.
type noClaims struct{}

func (noClaims) ResourceClaim(context.Context, string, string) (*resourcev1.ResourceClaim, error) {
	return nil, podspec.ErrObjectNotFound
}

// Extended resources of a pod are devices of the claim that the scheduler has made for them, by the
// container and the request in the status of the pod (KEP-5004).
func TestManager_ExtendedResources(t *testing.T) {
	d, file := new(fakeDriver), stateFile(t)
	m := newManager(t, file, fakeClaims{"extended": claim("extended", gpuDriver), "a": claim("a", gpuDriver)})
	register(t, m, serve(t, d))
	p := pod("p")
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other"})
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "extended",
		RequestMappings:   []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "vendor.example/gpu", RequestName: "gpu"}},
	}
	require.Equal(t, []string{"vendor.example/gpu=extended", "vendor.example/link=0"}, inject(t, m, p, false))
	require.Equal(t, []string{"prepare extended"}, d.taken())
	require.Equal(t, []string{
		"lab/extended: gpu.vendor.example/node/gpu0 share 1 vendor.example/gpu=extended", "lab/extended: gpu.vendor.example/node/link vendor.example/link=0",
	}, resources(m, p))
	other, err := m.Inject(t.Context(), p, &p.Spec.Containers[1], false)
	require.NoError(t, err)
	require.Empty(t, other.CDIDevices, "it requests none")
	require.Empty(t, d.taken(), "it is prepared")
	require.True(t, m.HasUnreleased(p))
	require.NoError(t, m.Release(t.Context(), p.UID))
	require.False(t, m.HasUnreleased(p))
	require.Equal(t, []string{"unprepare extended"}, d.taken())

	both := pod("both", "a")
	both.Status.ExtendedResourceClaimStatus = p.Status.ExtendedResourceClaimStatus
	require.ElementsMatch(t, []string{"vendor.example/gpu=a", "vendor.example/gpu=extended", "vendor.example/link=0"}, inject(t, m, both, false))
	require.Len(t, both.Spec.ResourceClaims, 1, "the pod is not changed")
	both.UID, both.Status.ExtendedResourceClaimStatus.ResourceClaimName = "none", "none"
	require.ErrorContains(t, injectErr(t, m, both), "resource claim for extended resources: ResourceClaim none: ")
}

// What a driver answers cannot make the state file larger than what is read of it, which would lose all claims, and does not
// prevent those of others from being stored.
func TestManager_StoresNoMoreThanItReads(t *testing.T) {
	d, file := new(fakeDriver), stateFile(t)
	claims := fakeClaims{"a": claim("a", gpuDriver), "b": claim("b", gpuDriver), "c": claim("c", gpuDriver)}
	plugin := serve(t, d)
	m := newManager(t, file, claims)
	register(t, m, plugin)
	inject(t, m, pod("one", "a"), false)
	d.device = strings.Repeat("<", 3<<20) // has six times the size in JSON
	for range 2 {
		require.ErrorContains(t, injectErr(t, m, pod("two", "b")), "store prepared claims")
	}
	d.device = ""
	inject(t, m, pod("three", "c"), false)

	m = newManager(t, file, claims)
	register(t, m, plugin)
	d.taken()
	inject(t, m, pod("one", "a"), true)
	inject(t, m, pod("three", "c"), true)
	require.Empty(t, d.taken(), "they are known")
	inject(t, m, pod("two", "b"), false)
	require.Equal(t, []string{"prepare b"}, d.taken())
}
