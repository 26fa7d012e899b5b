package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What is set for a class is that of the requests of its pods, however often a pod is set up,
// changes its requests or its class, or is removed.
func TestManager_SumsRequestsByClass(t *testing.T) {
	m, err := New(Config{Root: t.TempDir()})
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
	classes := []corev1.PodQOSClass{corev1.PodQOSBurstable, corev1.PodQOSGuaranteed, corev1.PodQOSBestEffort}
	naive := map[types.UID]podGroup{}
	for step := range 1000 {
		uid := types.UID("abcdefgh"[random.IntN(8)])
		var now podGroup
		if random.IntN(4) > 0 {
			now = podGroup{qos: classes[random.IntN(len(classes))], group: "/pod" + string(uid), requests: requests{random.Int64N(maxMilliCPU + 1), random.Int64N(maxMemory + 1)}}
		}
		require.Equal(t, naive[uid], m.put(uid, now), "step %d", step)
		naive[uid] = now
		for _, class := range classes {
			var want requests
			for _, p := range naive {
				if p.qos == class {
					want.milli += p.milli
					want.memory += p.memory
				}
			}
			require.Equal(t, want, m.requestsOf(class), "step %d", step)
		}
		require.Equal(t, now.group != "", m.made(uid), "step %d", step)
	}
}

// recordedTree records what is set of cgroups that are mere directories.
type recordedTree struct {
	tree

	root string
	err  error
	all  []string
}

func (t *recordedTree) set(group string, l limits) error {
	t.all = append(t.all, fmt.Sprint("set ", group, " ", l.shares))
	return errors.Join(t.err, os.MkdirAll(t.dirs(group)[0], 0o700))
}

func (t *recordedTree) weigh(group string, l limits) error {
	t.all = append(t.all, fmt.Sprint("weigh ", group, " ", l.shares))
	return t.err
}

func (t *recordedTree) release(context.Context, string) error { return nil }

func (t *recordedTree) dirs(group string) []string { return []string{filepath.Join(t.root, group)} }

// A pod changes the weight of its class, and no more is written then.
func TestManager_SetsWhatHasChangedOfTiers(t *testing.T) {
	m, err := New(Config{})
	require.NoError(t, err)
	tr := &recordedTree{root: t.TempDir()}
	added := func(uid types.UID, milli int64) {
		m.put(uid, podGroup{qos: corev1.PodQOSBurstable, group: "/pod" + string(uid), requests: requests{milli: milli}})
	}
	wrote := func(all ...string) {
		t.Helper()
		assert.Equal(t, all, tr.all)
		tr.all = nil
	}
	added("a", 1000)
	require.NoError(t, m.setTiers(tr))
	wrote("set /kubepods 0", "set /kubepods/burstable 1024", "set /kubepods/besteffort 2")
	require.NoError(t, m.setTiers(tr))
	wrote()

	added("b", 1000)
	tr.err = errors.New("disk on fire")
	require.EqualError(t, m.setTiers(tr), "set the weight of cgroup /kubepods/burstable: disk on fire")
	tr.err = nil
	require.NoError(t, m.setTiers(tr))
	wrote("weigh /kubepods/burstable 2048", "weigh /kubepods/burstable 2048")

	require.NoError(t, os.Remove(tr.dirs("/kubepods/burstable")[0]))
	added("c", 1000)
	require.NoError(t, m.setTiers(tr))
	wrote("set /kubepods/burstable 3072")
}
