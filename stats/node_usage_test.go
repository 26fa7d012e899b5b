package stats_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/stats"
)

// silent is a runtime whose container stats must not be requested.
type silent struct{ t *testing.T }

func (s silent) ContainerStats(context.Context) ([]runtime.ContainerUsage, error) {
	s.t.Error("a nodeUsage asked the runtime")
	return nil, nil
}

// NodeUsage calls the runtime once in ten minutes. While the runtime does not answer, the
// last reported file systems are measured.
func TestProvider_NodeUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, hangs, removed := 0, error(nil), false
		p, err := stats.New(stats.Config{
			Proc: proc(), Cgroups: files(nil), NodeFS: "/node", ContainerStats: silent{t},
			Pods: func() []stats.Pod { t.Error("a nodeUsage looked at pods"); return nil },
			ImageFS: imageFS(func(context.Context) (images, containers []runtime.FSUsage, err error) {
				asked++
				return mountedAt("/images"), mountedAt("/layers"), hangs
			}),
			Statfs: func(path string) (runtime.FSUsage, error) {
				if removed && path == "/layers" {
					return runtime.FSUsage{}, errors.New("not there")
				}
				return runtime.FSUsage{At: time.Now(), Mountpoint: path, CapacityBytes: 1}, nil
			},
		})
		require.NoError(t, err)
		nodeUsage := func() runtime.NodeUsage {
			u, err := p.NodeUsage(t.Context())
			require.NoError(t, err)
			return u
		}
		hangs = errors.New("no answer")
		assert.True(t, nodeUsage().ImageFS.At.IsZero(), "not known yet")
		assert.Equal(t, "/node", nodeUsage().NodeFS.Mountpoint)
		require.Equal(t, 2, asked)

		hangs = nil
		for range 590 {
			u := nodeUsage()
			require.Equal(t, "/images", u.ImageFS.Mountpoint)
			require.Equal(t, "/layers", u.ContainerFS.Mountpoint)
			require.NotZero(t, u.Memory.Capacity)
			require.NotZero(t, u.Pids.Max)
			require.Empty(t, u.Pods)
			time.Sleep(time.Second)
		}
		require.Equal(t, 3, asked)

		hangs = errors.New("no answer")
		for range 60 {
			time.Sleep(time.Second)
			require.Equal(t, "/images", nodeUsage().ImageFS.Mountpoint)
		}
		require.Equal(t, 4, asked, "it is asked again after a minute")

		hangs, removed = nil, true
		assert.True(t, nodeUsage().ContainerFS.At.IsZero())
		removed = false
		assert.Equal(t, "/layers", nodeUsage().ContainerFS.Mountpoint)
		require.Equal(t, 5, asked, "where nothing is any more it is asked at once")
	})
}

// Files of pods that are not tracked are counted on request, and then for a while; those of pods with limits always are.
func TestRefreshDiskUsage_CountsUntrackedPods(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"watched", "other"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "file"), []byte("x"), 0o600))
	}
	synctest.Test(t, func(t *testing.T) {
		p, err := stats.New(stats.Config{Proc: proc(), Cgroups: files(nil), NodeFS: dir, Pods: func() (out []stats.Pod) {
			for _, name := range []string{"watched", "other"} {
				out = append(out, stats.Pod{
					Pod: pod(types.UID(name)), TrackDiskUsage: name == "watched",
					Volumes: map[string]stats.Volume{"v": {Path: filepath.Join(dir, name)}},
				})
			}
			return out
		}})
		require.NoError(t, err)
		age := func(i int) time.Duration {
			u, err := p.Usage(t.Context(), time.Time{})
			require.NoError(t, err)
			if v, ok := u.Pods[i].Volumes["v"]; ok {
				return time.Since(v.At)
			}
			return -1
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		assert.LessOrEqual(t, age(0), time.Minute)
		assert.Equal(t, time.Duration(-1), age(1), "no caller wants to know")

		p.RefreshDiskUsage(t.Context(), time.Now().Add(-time.Minute))
		assert.Zero(t, age(1))
		p.RefreshDiskUsage(t.Context(), time.Now().Add(-time.Minute))
		for range 5 {
			time.Sleep(time.Minute)
			assert.InDelta(t, 0, age(1).Seconds(), 61, "it is counted on")
		}
		time.Sleep(10 * time.Minute)
		assert.Greater(t, age(1), 5*time.Minute, "no caller asks any more")
		assert.LessOrEqual(t, age(0), time.Minute)

		late, over := context.WithCancel(t.Context())
		over()
		p.RefreshDiskUsage(late, time.Now())
		time.Sleep(time.Minute + time.Second)
		assert.LessOrEqual(t, age(1), time.Minute, "what the caller did not wait for is counted after")
		cancel()
		require.NoError(t, <-done)
	})
}
