package dra_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/dra"
)

// The claims of a pod are prepared and released once, and each call of a driver has its gRPC status: an error for a claim is
// none of the call.
func TestHooks_PodsAndCalls(t *testing.T) {
	var pods, calls []string
	m := newManager(t, stateFile(t), fakeClaims{"a": claim("a", gpuDriver), "b": claim("b", gpuDriver)}, func(cfg *dra.Config) {
		cfg.Hooks = dra.Hooks{
			PodPrepared: func(uid types.UID, _ time.Duration, err error) {
				pods = append(pods, fmt.Sprint(uid, " prepared ", err == nil))
				panic("defect of the application")
			},
			PodReleased: func(uid types.UID, _ time.Duration, err error) {
				pods = append(pods, fmt.Sprint(uid, " released ", err == nil))
			},
			RPCEnded: func(driver, method, code string, _ time.Duration) {
				calls = append(calls, driver+" "+method+" "+code)
			},
		}
	})
	d := new(fakeDriver)
	register(t, m, serve(t, d))
	require.Equal(t, map[string]int{"<any>": 0}, m.ClaimsInUse())
	inject(t, m, pod("none"), false)
	one := pod("one", "a", "b")
	d.answers("no such device", nil)
	require.Error(t, injectErr(t, m, one))
	d.answers("", status.Error(codes.Internal, "broken"))
	require.Error(t, injectErr(t, m, one))
	d.answers("", nil)
	inject(t, m, one, false)
	inject(t, m, one, false)
	require.Equal(t, map[string]int{"<any>": 2, gpuDriver: 2}, m.ClaimsInUse())
	d.answers("", errors.New("busy"))
	require.Error(t, m.Release(t.Context(), "one"))
	d.answers("", nil)
	require.NoError(t, m.Release(t.Context(), "one"))
	require.NoError(t, m.Release(t.Context(), "one"))
	require.Equal(t, map[string]int{"<any>": 0}, m.ClaimsInUse())

	require.Equal(t, []string{"one prepared false", "one prepared false", "one prepared true", "one released false", "one released true"}, pods)
	const prepare = gpuDriver + " /k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources "
	require.Equal(t, []string{prepare + "OK", prepare + "Internal", prepare + "OK", prepare + "OK"}, calls[:4])
	require.Contains(t, calls[4], "/NodeUnprepareResources Unknown")
}
