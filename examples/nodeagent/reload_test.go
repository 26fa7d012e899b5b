package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/nodeshutdown"
)

// The document has each field that a reload applies, and no other.
func TestReloads_Document(t *testing.T) {
	var table strings.Builder
	notes := map[string]string{}
	for _, f := range kubeletconfig.Fields() {
		notes[f.Path] = f.Note
	}
	for _, r := range (&daemon{}).reloads(nil) {
		for _, path := range r.paths {
			require.NotEmpty(t, notes[path], path)
			fmt.Fprintf(&table, "| `%s` | %s |\n", path, notes[path])
		}
	}
	doc, err := os.ReadFile("packaging/README.md")
	require.NoError(t, err)
	_, got, _ := strings.Cut(string(doc), "\n| --- | --- |\n")
	assert.Equal(t, table.String(), got, "the table must be:\n%s", table.String())
}

// policies takes the policies of a reload.
type policies struct {
	eviction eviction.Policy
	images   imagegc.Policy
}

type evictionPolicies struct {
	*eviction.Manager
	p *policies
}

func (e evictionPolicies) SetPolicy(p eviction.Policy) error {
	e.p.eviction = p
	return p.Check()
}

type imagePolicies struct {
	*imagegc.Collector
	p *policies
}

func (i imagePolicies) SetPolicy(p imagegc.Policy) error {
	i.p.images = p
	return p.Check()
}

// Soft thresholds change at once. Hard ones decide what is allocatable, so they stay with
// those of the start.
func TestDaemon_SetEviction(t *testing.T) {
	thresholds := func(hard, soft, reclaim string) []eviction.Threshold {
		grace := ""
		if soft != "" {
			grace = "memory.available=1m"
		}
		all, err := eviction.ParseThresholds(hard, soft, grace, reclaim)
		require.NoError(t, err)
		return all
	}
	got := &policies{}
	d := &daemon{}
	d.hard, _ = byKind(thresholds("memory.available<1Gi", "", ""))
	for name, tc := range map[string]struct{ next, want []eviction.Threshold }{
		"a soft one is added": {
			thresholds("memory.available<1Gi", "memory.available<2Gi", ""), thresholds("memory.available<1Gi", "memory.available<2Gi", ""),
		},
		"another hard one": {
			thresholds("memory.available<3Gi", "memory.available<2Gi", ""), thresholds("memory.available<1Gi", "memory.available<2Gi", ""),
		},
		"no hard one": {thresholds("none", "", ""), thresholds("memory.available<1Gi", "", "")},
		"another reclaim and hard one": {
			thresholds("memory.available<3Gi", "", "memory.available=1Mi"), thresholds("memory.available<1Gi", "", "memory.available=1Mi"),
		},
		"another reclaim": {thresholds("memory.available<1Gi", "", "memory.available=1Mi"), thresholds("memory.available<1Gi", "", "memory.available=1Mi")},
	} {
		require.NoError(t, d.setEviction(evictionPolicies{p: got}, eviction.Config{Thresholds: tc.next, MaxPodGracePeriod: time.Second, PressureTransitionPeriod: time.Hour}), name)
		assert.Equal(t, eviction.Policy{Thresholds: tc.want, MaxPodGracePeriod: time.Second, PressureTransitionPeriod: time.Hour}, got.eviction, name)
	}
	d.hard = nil
	require.NoError(t, d.setEviction(evictionPolicies{p: got}, eviction.Config{Thresholds: thresholds("none", "", "")}))
	assert.NotNil(t, got.eviction.Thresholds, "none are not the default ones")
	require.ErrorIs(t, d.setEviction(nil, eviction.Config{}), errRestart)

	require.NoError(t, setImagePolicy(imagePolicies{p: got}, imagegc.Policy{HighThresholdPercent: 50, LowThresholdPercent: 40}))
	assert.Equal(t, 50, got.images.HighThresholdPercent)
	require.ErrorIs(t, setImagePolicy(nil, imagegc.Policy{}), errRestart)
}

// The periods of a shutdown change, but not whether there is one.
func TestShutdownFlags_Set(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nshutdownGracePeriod: 10s\n"), 0o600))
	f, err := parse([]string{"-config", file, "-manifests", t.TempDir(), "-root-dir", t.TempDir()}, io.Discard)
	require.NoError(t, err)
	require.ErrorIs(t, f.shutdown.set(nodeshutdown.GracePeriods(time.Second, 0)), errRestart, "it was off at the start")
	_, err = options(&f, f.logger(io.Discard), nil, pluginDirs{}, &lateAccounts{})
	require.NoError(t, err)
	require.NoError(t, f.shutdown.set(nodeshutdown.GracePeriods(20*time.Second, time.Second)))
	require.ErrorIs(t, f.shutdown.set(nil), errRestart)
}

func TestShown_HasNoSecrets(t *testing.T) {
	assert.Equal(t, "https://h/pods", shown("staticPodURL", "https://u:secret@h/pods?token=secret"))
	assert.Equal(t, "(hidden)", shown("staticPodURLHeader", "Authorization:secret"))
	assert.Empty(t, shown("staticPodURLHeader", ""))
	assert.Equal(t, "7", shown("maxPods", "7"))
}
