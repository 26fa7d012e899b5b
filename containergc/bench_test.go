package containergc_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/internal/owner"
	"github.com/sublet-dev/agent/runtime"
)

func BenchmarkPlan(b *testing.B) {
	n := crowded(20_000)
	pods, _ := n.Pods(context.Background())
	b.ReportAllocs()
	for b.Loop() {
		containergc.Plan(pods, podStates{}.of, containergc.Policy{}, false, testTime)
	}
}

// BenchmarkCollect collects where there is nothing to remove: each pod runs, and has a log directory.
func BenchmarkCollect(b *testing.B) {
	const pods = 1000
	dir := b.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(b, err)
	defer root.Close()
	n := &node{pods: map[types.UID]*runtime.Pod{}}
	for i := range pods {
		uid := types.UID(fmt.Sprint("u", i))
		n.pods[uid] = &runtime.Pod{UID: uid, Namespace: "ns", Name: "web", Containers: []runtime.Container{ctr("c"+string(uid), "a", "", 0, runtime.Running, 1)}}
		name := "ns_web_" + string(uid)
		require.NoError(b, os.Mkdir(filepath.Join(dir, name), 0o755))
		require.NoError(b, owner.Mark(root, name, "one"))
	}
	c, err := containergc.New(containergc.Config{Containers: n, LogsDir: dir, Owner: func() string { return "one" }, PodState: podStates{}.of})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Collect(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
