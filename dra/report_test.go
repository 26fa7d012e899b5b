package dra_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/dra"
	"github.com/sublet-dev/agent/internal/logtest"
)

// resources describes the devices of the first container of a pod, one a line.
func resources(m *dra.Manager, p *corev1.Pod) []string {
	var out []string
	for _, c := range m.DynamicResources(p, &p.Spec.Containers[0]) {
		for _, r := range c.GetClaimResources() {
			line := fmt.Sprintf("%s/%s: %s/%s/%s", c.GetClaimNamespace(), c.GetClaimName(), r.GetDriverName(), r.GetPoolName(), r.GetDeviceName())
			if r.ShareId != nil {
				line += " share " + r.GetShareId()
			}
			for _, d := range r.GetCdiDevices() {
				line += " " + d.GetName()
			}
			out = append(out, line)
		}
	}
	return out
}

// The devices of claims are known while they are prepared, also after a restart without the drivers
// and the API server. A file that cannot be read is logged once.
func TestManager_ReportsDynamicResources(t *testing.T) {
	file := stateFile(t)
	m := newManager(t, file, fakeClaims{"a": claim("a", gpuDriver), "b": claim("b", gpuDriver)})
	register(t, m, serve(t, new(fakeDriver)))
	p, template := pod("p", "a", "b"), "template"
	require.Empty(t, resources(m, p), "nothing is prepared")
	p.Spec.ResourceClaims[1] = corev1.PodResourceClaim{Name: "b", ResourceClaimTemplateName: &template}
	require.Empty(t, resources(m, p), "no claim is made from the template")
	name := "b"
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: &name}}
	inject(t, m, p, false)
	want := []string{
		"lab/a: gpu.vendor.example/node/gpu0 share 1 vendor.example/gpu=a", "lab/a: gpu.vendor.example/node/link vendor.example/link=0",
		"lab/b: gpu.vendor.example/node/gpu0 share 1 vendor.example/gpu=b", "lab/b: gpu.vendor.example/node/link vendor.example/link=0",
	}
	require.Equal(t, want, resources(m, p))
	require.Equal(t, want, resources(newManager(t, file, fakeClaims{}), p))
	require.Empty(t, resources(m, pod("other", "a")), "it does not use them")

	require.NoError(t, os.Rename(file, file+".away"))
	require.NoError(t, os.Mkdir(file, 0o700)) // not a file
	var log logtest.Buffer
	restarted := newManager(t, file, fakeClaims{}, func(cfg *dra.Config) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 2 {
		require.Empty(t, resources(restarted, p))
	}
	require.Equal(t, 1, strings.Count(log.String(), `level=ERROR msg="prepared resource claims not reported"`), log.String())
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Rename(file+".away", file))
	require.Equal(t, want, resources(restarted, p))
	require.NoError(t, m.Release(t.Context(), p.UID))
	require.Empty(t, resources(m, p))
}

// A container has the devices of the requests that it names, each once.
func TestManager_ReportsDevicesOfRequests(t *testing.T) {
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver)})
	register(t, m, serve(t, new(fakeDriver)))
	p := pod("p", "a")
	inject(t, m, p, false)
	gpu, link := "lab/a: gpu.vendor.example/node/gpu0 share 1 vendor.example/gpu=a", "lab/a: gpu.vendor.example/node/link vendor.example/link=0"
	for _, tt := range []struct {
		claims []corev1.ResourceClaim
		want   []string
	}{
		{[]corev1.ResourceClaim{{Name: "a", Request: "gpu"}}, []string{gpu, link}},
		{[]corev1.ResourceClaim{{Name: "a", Request: "other"}}, []string{link}},
		{[]corev1.ResourceClaim{{Name: "a", Request: "other"}, {Name: "a", Request: "gpu/large"}}, []string{gpu, link}},
		{[]corev1.ResourceClaim{{Name: "unknown"}}, nil},
		{nil, nil},
	} {
		p.Spec.Containers[0].Resources.Claims = tt.claims
		require.Equal(t, tt.want, resources(m, p), tt.claims)
	}
}
