package volume_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// Volumes of a pod with one claim are one mount: it is read-only if none of them can be written to. Containers cannot write to one
// that is read-only all the same.
func TestMount_OfOneClaimReadOnlyAndNot(t *testing.T) {
	for name, tc := range map[string]struct {
		readOnly []bool
		unused   int
		want     []bool // of the driver
	}{
		"read-only first":               {[]bool{true, false}, -1, []bool{false, false}},
		"read-only last":                {[]bool{false, true}, -1, []bool{false, false}},
		"all read-only":                 {[]bool{true, true}, -1, []bool{true, true}},
		"no container has the other":    {[]bool{true, false}, 1, []bool{true}},
		"a container has it read-write": {[]bool{true, false, true}, 2, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(fakeDriver)
			m := driverManager(t, boundClaim(nfs()), d)
			pod := claimPod(corev1.VolumeSource{})
			pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = nil, nil
			want := map[string]runtime.Volume{}
			for i, readOnly := range tc.readOnly {
				name := string(rune('a' + i))
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: viaClaim(readOnly)})
				if i != tc.unused {
					pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
					want[name] = runtime.Volume{HostPath: "/driver/" + name, ReadOnly: readOnly}
				}
			}
			volumes, err := m.Mount(t.Context(), pod, nil)
			require.NoError(t, err)
			assert.Equal(t, want, volumes)
			var got []bool
			for _, v := range d.mounted {
				got = append(got, v.ReadOnly)
			}
			assert.Equal(t, tc.want, got)
		})
	}
}
