package deviceplugin_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A plugin that was replaced provides its resource again if its successor ends first, as when an upgrade fails.
func TestServer_ReturnsToAPluginThatStillRuns(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	old := newPlugin("a")
	stopOld := old.provide(t, dir, "old.sock")
	becomes(t, m, 1)
	stopNew := newPlugin("a", "b").provide(t, dir, "new.sock")
	becomes(t, m, 2)
	stopNew()
	becomes(t, m, 1)
	old.list(api.Healthy, "a", "b", "c")
	becomes(t, m, 3)
	one := pod("one", "1")
	_, err := m.Inject(t.Context(), one, &one.Spec.Containers[0], false)
	require.NoError(t, err)

	stopNewer := newPlugin("a", "b").provide(t, dir, "newer.sock")
	becomes(t, m, 2)
	stopOld() // the usual order
	stopNewer()
	becomes(t, m, 0)
}

// Of more plugins than an upgrade has, the oldest is left.
func TestServer_LeavesOldPlugins(t *testing.T) {
	dir, m := socketDir(t), newManager(t)
	start(t, dir, m)
	newPlugin("a").provide(t, dir, "first.sock")
	becomes(t, m, 1)
	stopSecond := newPlugin("a", "b").provide(t, dir, "second.sock")
	becomes(t, m, 2)
	stopThird := newPlugin("a", "b", "c").provide(t, dir, "third.sock")
	becomes(t, m, 3)
	stopThird()
	becomes(t, m, 2)
	stopSecond()
	becomes(t, m, 0)
}
