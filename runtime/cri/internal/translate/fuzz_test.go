package translate

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// Whatever a pod says, translating it neither panics nor gives a message that
// leaves the directories it may use, or differs the second time.
func FuzzTranslate(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(f, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fx := new(fixture)
		if len(text) > 1<<14 || yaml.Unmarshal(text, fx) != nil || !isNode(&fx.Node) {
			return
		}
		tr := fx.translator(t)
		one, err := tr.Sandbox(fx.Attempt)
		if err == nil {
			two, err := tr.Sandbox(fx.Attempt)
			require.NoError(t, err)
			require.True(t, proto.Equal(one, two))
			_, err = proto.Marshal(one)
			if err != nil {
				require.ErrorContains(t, err, "UTF-8")
			}
			checkResources(t, one.GetLinux().GetResources())
		}
		for ct := range podspec.Containers(&fx.Pod) {
			cfg, err := fx.container(context.Background(), tr, ct)
			if err != nil {
				continue
			}
			second, err := fx.container(context.Background(), tr, ct)
			require.NoError(t, err)
			require.True(t, proto.Equal(cfg, second))
			checkResources(t, cfg.GetLinux().GetResources())
			checkContainer(t, fx, cfg)
		}
	})
}

// The annotations of a pod are those of its sandbox, and others write those of containers:
// whatever they are, they are read or ignored.
func FuzzObservedContainer(f *testing.F) {
	for key, value := range map[string]string{
		runtime.AnnotationGracePeriod: "30", runtime.AnnotationDeletionGracePeriod: "-1", runtime.AnnotationRestartCount: "4294967296",
		runtime.AnnotationPreStop: `{"exec":{"command":["a"]}}`, runtime.AnnotationPorts: `[{"containerPort":80}]`,
		runtime.AnnotationContainerType: "Sidecar", runtime.AnnotationBackOffStep: "-9",
	} {
		f.Add(key, value)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		a := map[string]string{key: value}
		ct := ObservedContainer(&v1.Container{Annotations: a}, "boot")
		require.Equal(t, ct.GracePeriod, ObservedSandbox(&v1.PodSandbox{Annotations: a}).GracePeriod)
		require.Equal(t, Ports(a), Ports(ct.Annotations))
		require.GreaterOrEqual(t, ct.GracePeriod, time.Duration(0))
		require.GreaterOrEqual(t, ct.BackOffStep, 0)
	})
}

// isNode reports whether a node is one that a client's configuration can have.
func isNode(n *Node) bool {
	return (n.CPUQuotaPeriod == 0 || n.CPUQuotaPeriod >= time.Millisecond && n.CPUQuotaPeriod <= time.Second) &&
		n.MemoryCapacity >= 0 && n.SwapCapacity >= 0 && (n.SeccompRoot == "" || filepath.IsAbs(n.SeccompRoot))
}

func checkResources(t *testing.T, r *v1.LinuxContainerResources) {
	require.GreaterOrEqual(t, r.GetCpuShares(), int64(minShares))
	require.LessOrEqual(t, r.GetCpuShares(), int64(maxShares))
	require.True(t, r.GetCpuQuota() == 0 || r.GetCpuQuota() >= minQuota)
	require.GreaterOrEqual(t, r.GetMemoryLimitInBytes(), int64(0))
	require.GreaterOrEqual(t, r.GetOomScoreAdj(), int64(-997))
	require.LessOrEqual(t, r.GetOomScoreAdj(), int64(1000))
}

func checkContainer(t *testing.T, fx *fixture, cfg *v1.ContainerConfig) {
	for _, m := range cfg.GetMounts() {
		require.True(t, strings.HasPrefix(m.GetContainerPath(), "/"), m.GetContainerPath())
		known := strings.HasPrefix(m.GetHostPath(), "/safe/") || m.GetImage() != nil
		for _, v := range fx.Volumes {
			known = known || v.HostPath == m.GetHostPath()
		}
		require.True(t, known, "mount of %q", m.GetHostPath())
	}
	if p := cfg.GetLinux().GetSecurityContext().GetSeccomp(); p.GetProfileType() == v1.SecurityProfile_Localhost {
		rel, err := filepath.Rel(fx.Node.SeccompRoot, p.GetLocalhostRef())
		require.NoError(t, err)
		require.True(t, filepath.IsLocal(rel))
	}
	require.Equal(t, cfg.GetLabels()[runtime.LabelPodUID], string(fx.Pod.UID))
}

// Shares and quotas against the figures that the API's documentation gives.
func TestCPUFormulas(t *testing.T) {
	for milli, want := range map[int64][2]int64{
		0: {2, 0}, 1: {2, 1000}, 2: {2, 1000}, 3: {3, 1000}, 10: {10, 1000}, 100: {102, 10_000}, 250: {256, 25_000},
		256_001: {262144, 25_600_100}, 1000: {1024, 100_000}, 1500: {1536, 150_000}, 256_000: {262144, 25_600_000}, 1 << 62: {262144, milliToQuota(1<<40, quotaPeriod)},
	} {
		require.Equal(t, want, [2]int64{milliToShares(milli), milliToQuota(milli, quotaPeriod)}, milli)
	}
	require.Zero(t, sharesToMilli(minShares))
	require.Equal(t, int64(3), sharesToMilli(3))
	// What is read back gives the same figures again.
	for milli := int64(3); milli < 4000; milli++ {
		require.Equal(t, milliToShares(milli), milliToShares(sharesToMilli(milliToShares(milli))))
		require.Equal(t, milliToQuota(milli, quotaPeriod), milliToQuota(quotaToMilli(milliToQuota(milli, quotaPeriod), quotaPeriod), quotaPeriod))
	}
}

func BenchmarkTranslate(b *testing.B) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox"}}}}
	tr := &Translator{Pod: pod, Node: Node{CPUQuotaPeriod: quotaPeriod * time.Microsecond}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tr.Sandbox(0); err != nil {
			b.Fatal(err)
		}
		if _, err := tr.Container(ContainerInput{Spec: &pod.Spec.Containers[0], Image: &v1.Image{Id: "x"}}); err != nil {
			b.Fatal(err)
		}
	}
}
