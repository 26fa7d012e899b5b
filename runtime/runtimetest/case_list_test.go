package runtimetest

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Other pods and images may come and go while the suite compares lists.
func TestRun_ComparesListsOfANodeInUse(t *testing.T) {
	const pods, images = "streamed pods are the listed pods", "streamed images are the listed images"
	for _, tt := range []struct {
		name  string
		count int
		want  Result
	}{
		{"one change is no failure", 1, Passed},
		{"without an end nothing can be said", 0, Skipped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				name := func() string { n++; return string(rune('a' + n%20)) }
				r, err := Run(t.Context(), simulatedConn(t,
					Rule{Fault: Corrupt, RPC: "ListPodSandbox", Count: tt.count, Mutate: onResponse(func(r *v1.ListPodSandboxResponse) {
						r.Items = append(r.Items, &v1.PodSandbox{Id: name()})
					})},
					Rule{Fault: Corrupt, RPC: "ListImages", Count: tt.count, Mutate: onResponse(func(r *v1.ListImagesResponse) {
						r.Images = append(r.Images, &v1.Image{Id: name()})
					})}), only(pods, images), MaxParallel(1))
				require.NoError(t, err)
				require.Len(t, r.Cases, 2)
				for _, c := range r.Cases {
					assert.Equal(t, tt.want, c.Result, c.String())
				}
			})
		})
	}
}
