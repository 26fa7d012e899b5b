//go:build linux

package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/devices"
	"github.com/sublet-dev/agent/internal/containerdtest"
	"github.com/sublet-dev/agent/podsync"
	"github.com/sublet-dev/agent/runtime"
)

// zeros is a plugin whose devices are /dev/zero.
type zeros struct {
	broken atomic.Bool
	calls  atomic.Int32 // of PreStart
}

func (*zeros) Allocate(_ context.Context, ids []string) (runtime.Injection, error) {
	return runtime.Injection{
		Env:     map[string]string{"ZERO": ids[0]},
		Devices: []runtime.InjectedDevice{{HostPath: "/dev/zero", ContainerPath: "/dev/" + ids[0], Permissions: "r"}},
	}, nil
}

func (z *zeros) PreStart(context.Context, []string) error {
	z.calls.Add(1)
	if z.broken.Load() {
		return errors.New("device does not reset")
	}
	return nil
}

// A container sees the device that it requests, also after a restart of the agent. A pod
// for which there is none waits, and gets it when it is free.
func TestDevices(t *testing.T) {
	containerdtest.Each(t, func(t *testing.T, n *containerdtest.Node) {
		const zero corev1.ResourceName = "factory.example/zero"
		file := filepath.Join(t.TempDir(), "devices.json")
		r := newRig(n.Dial(t), filepath.Join(n.Shared, "devices"), n.Busybox, n.CgroupParent)
		r.tap.eventful = true
		start := func(broken bool) (*agentProcess, *devices.Manager, *zeros) {
			m, err := devices.New(devices.Config{StateFile: file})
			require.NoError(t, err)
			z := new(zeros)
			z.broken.Store(broken)
			require.NoError(t, m.Update(zero, z, []devices.Device{{ID: "zero0", Healthy: true}}))
			r.opts = []agent.Option{agent.WithInjector(m), agent.WithConfig(podsync.Config{BackOff: runtime.ExponentialBackOff{Base: 100 * time.Millisecond, Max: time.Second}})}
			return r.start(t), m, z
		}
		pod := func(name string) *corev1.Pod {
			p := r.pod(name)
			c := &p.Spec.Containers[0]
			c.Command = []string{"sh", "-c", "dd if=/dev/$ZERO of=/dev/null bs=1 count=3 && echo got $ZERO; trap 'exit 0' TERM; sleep 1000000 & wait"}
			c.Resources.Limits = corev1.ResourceList{zero: resource.MustParse("1")}
			c.Resources.Requests = c.Resources.Limits
			return p
		}
		// logs of all attempts of the pod's container
		logs := func(name string) string {
			files, err := filepath.Glob(filepath.Join(n.Shared, "devices", "logs", "default_"+name+"_*", "main", "*.log"))
			require.NoError(t, err)
			var all strings.Builder
			for _, f := range files {
				text, err := os.ReadFile(f)
				require.NoError(t, err)
				all.Write(text)
			}
			return all.String()
		}
		sees := func(name string) {
			t.Helper()
			require.Eventually(t, func() bool { return strings.Contains(logs(name), "got zero0") }, testTimeout, tick)
		}

		l, m, z := start(true)
		first, second := pod("first"), pod("second")
		l.Put(first)
		require.Eventually(t, func() bool { return z.calls.Load() > 1 }, testTimeout, tick)
		require.Empty(t, logs("first"), "a container is not started before its device is ready")
		z.broken.Store(false)
		sees("first")
		holders, err := m.PodUIDs()
		require.NoError(t, err)
		l.stop()

		l, m, _ = start(false)
		l.Put(first, second)
		require.Eventually(t, func() bool { return l.agent.Healthy() == nil }, testTimeout, tick)
		still, err := m.PodUIDs()
		require.NoError(t, err)
		require.Equal(t, holders, still)
		require.NotContains(t, logs("second"), "got zero0")
		require.Equal(t, 1, strings.Count(logs("first"), "got zero0"), "the container was not restarted")
		l.Set(second)
		sees("second")
		l.Set()
		require.Eventually(t, func() bool { uids, err := m.PodUIDs(); return err == nil && len(uids) == 0 }, testTimeout, tick)
		l.stop()
	})
}
