package runtimetest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A runtime in the making that loses labels, or cannot list pods, is left without those of the suite nevertheless.
func TestRun_RemovesPodsThatAreNotListed(t *testing.T) {
	for name, rule := range map[string]Rule{
		"labels are lost": {Fault: Corrupt, RPC: "ListPodSandbox", Mutate: onResponse(func(r *v1.ListPodSandboxResponse) { r.Items = nil })},
		"lists fail":      {Fault: Fail, RPC: "ListPodSandbox", Code: codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSuite()
				s.logs = t.TempDir()
				var mu sync.Mutex
				pods := map[string]bool{}
				s.cc = mutant{call: func(c rpcCall) error {
					err := c.next()
					mu.Lock()
					defer mu.Unlock()
					switch r := c.resp.(type) {
					case *v1.RunPodSandboxResponse:
						if err == nil {
							pods[r.GetPodSandboxId()] = true
						}
					case *v1.RemovePodSandboxResponse:
						delete(pods, c.req.(*v1.RemovePodSandboxRequest).GetPodSandboxId())
					}
					return err
				}}.proxied(t, simulatedConn(t, rule))
				s.execute(t.Context(), testCase{name: "a case", run: func(c *CaseT) {
					c.pod("p").start("c", longRunTime)
					c.ok(c.pod("q").remove(), "remove pod")
				}})
				mu.Lock()
				defer mu.Unlock()
				assert.Empty(t, pods, "pods that are left")
			})
		})
	}
}

// Kubelets make the directories of logs, so a runtime need not.
func TestRun_MakesLogDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		s := newSuite()
		s.logs = t.TempDir()
		s.cc = mutant{request: func(req any) {
			switch r := req.(type) {
			case *v1.RunPodSandboxRequest:
				calls = append(calls, "pod")
				assert.DirExists(t, r.GetConfig().GetLogDirectory())
			case *v1.CreateContainerRequest:
				calls = append(calls, "container")
				assert.DirExists(t, filepath.Join(r.GetSandboxConfig().GetLogDirectory(), filepath.Dir(r.GetConfig().GetLogPath())))
			}
		}}.proxied(t, simulatedConn(t))
		require.NoError(t, s.getImages(t.Context()))
		c := s.execute(t.Context(), testCase{name: "a case", run: func(c *CaseT) { c.pod("p").create("c", sh(longRunTime)) }})
		assert.Empty(t, c.failures)
		assert.Equal(t, []string{"pod", "container"}, calls)
		left, err := os.ReadDir(s.logs)
		require.NoError(t, err)
		assert.Empty(t, left)
	})
}
