package deviceplugin_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// What a plugin answers does not flood the status of a pod and logs.
func TestPlugin_BoundsErrors(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	huge := "no power: " + strings.Repeat("x", 1<<20)
	p := newPlugin("a")
	p.provide(t, dir, "gpu.sock")
	becomes(t, m, 1)
	one := pod("one", "1")
	for _, tc := range []struct {
		answer *api.AllocateResponse
		err    error
		want   string
	}{
		{nil, errors.New(huge), "no power: xxx"},
		{&api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{Mounts: []*api.Mount{{HostPath: huge}}}}}, nil, `invalid answer: mount: path "no power: xxx`},
	} {
		p.answer = func(*api.AllocateRequest) (*api.AllocateResponse, error) { return tc.answer, tc.err }
		_, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], false)
		require.ErrorContains(t, err, tc.want)
		require.Less(t, len(err.Error()), 2048)
	}
}
