package eviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/runtime"
)

// bounded is a pod with an emptyDir and a container for each limit on its local
// storage; "" is for none.
func bounded(sizeLimit string, limits ...string) *corev1.Pod {
	dir := &corev1.EmptyDirVolumeSource{}
	if sizeLimit != "" {
		q := resource.MustParse(sizeLimit)
		dir.SizeLimit = &q
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "config"},
		{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: dir}},
	}}}
	for i, limit := range limits {
		c := corev1.Container{Name: string(rune('a' + i))}
		if limit != "" {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

// EV-7: what counts towards which limit, to the byte.
func TestOverLocalLimit(t *testing.T) {
	const (
		ofVolume    = `Usage of EmptyDir volume "v" exceeds the limit "100". `
		ofContainer = `Container a exceeded its local ephemeral storage limit "100". `
		ofPod       = "Pod ephemeral local storage usage exceeds the total limit of containers 100. "
	)
	now := time.Now()
	old := now.Add(-time.Second)
	disk := func(n uint64) runtime.DiskUsage { return runtime.DiskUsage{At: now, Bytes: n} }
	volume := func(d runtime.DiskUsage, uncounted bool) map[string]runtime.VolumeUsage {
		return map[string]runtime.VolumeUsage{"v": {DiskUsage: d, Uncounted: uncounted}}
	}
	container := func(writable, logs runtime.DiskUsage) []runtime.ContainerUsage {
		return []runtime.ContainerUsage{{Name: "a", Rootfs: writable, Logs: logs}}
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		used runtime.PodUsage
		want string
	}{
		"a volume at its limit":                    {bounded("100"), runtime.PodUsage{Volumes: volume(disk(100), false)}, ""},
		"a volume above it":                        {bounded("100"), runtime.PodUsage{Volumes: volume(disk(101), false)}, ofVolume},
		"one in memory too":                        {bounded("100"), runtime.PodUsage{Volumes: volume(disk(101), true)}, ofVolume},
		"an old figure of it":                      {bounded("100"), runtime.PodUsage{Volumes: volume(runtime.DiskUsage{At: old, Bytes: 101}, false)}, ""},
		"a limit of nothing is none":               {bounded("0"), runtime.PodUsage{Volumes: volume(disk(101), false)}, ""},
		"no limit":                                 {bounded(""), runtime.PodUsage{Volumes: volume(disk(101), false)}, ""},
		"layer and logs of a container at it":      {bounded("", "100"), runtime.PodUsage{Containers: container(disk(60), disk(40))}, ""},
		"layer and logs above it":                  {bounded("", "100"), runtime.PodUsage{Containers: container(disk(60), disk(41))}, ofContainer},
		"an old layer":                             {bounded("", "100"), runtime.PodUsage{Containers: container(runtime.DiskUsage{At: old, Bytes: 60}, disk(41))}, ""},
		"a container without a limit":              {bounded("", "0"), runtime.PodUsage{Containers: container(disk(60), disk(41))}, ""},
		"a container that the spec does not have":  {bounded("", "100"), runtime.PodUsage{Containers: []runtime.ContainerUsage{{Name: "x", Rootfs: disk(101)}}}, ofPod},
		"what is dead counts for the pod":          {bounded("", "100"), runtime.PodUsage{Containers: container(disk(60), disk(0)), ExitedContainers: disk(41)}, ofPod},
		"so does what is mounted into containers":  {bounded("", "100"), runtime.PodUsage{Containers: container(disk(60), disk(0)), Files: disk(41)}, ofPod},
		"so do volumes":                            {bounded("", "100"), runtime.PodUsage{Containers: container(disk(60), disk(0)), Volumes: volume(disk(41), false)}, ofPod},
		"together they are at it":                  {bounded("", "100"), runtime.PodUsage{ExitedContainers: disk(50), Volumes: volume(disk(50), false)}, ""},
		"volumes in memory are no storage":         {bounded("", "100"), runtime.PodUsage{Containers: container(disk(60), disk(0)), Volumes: volume(disk(41), true)}, ""},
		"limits add up":                            {bounded("", "60", "40"), runtime.PodUsage{Volumes: volume(disk(100), false)}, ""},
		"and bound the pod":                        {bounded("", "60", "40"), runtime.PodUsage{Volumes: volume(disk(101), false)}, ofPod},
		"one limit of two containers bounds both":  {bounded("", "100", ""), runtime.PodUsage{Volumes: volume(disk(101), false)}, ofPod},
		"a limit of nothing beside one bounds too": {bounded("", "100", "0"), runtime.PodUsage{Volumes: volume(disk(101), false)}, ofPod},
	} {
		t.Run(name, func(t *testing.T) {
			limit, message := exceededLimit(tc.pod, &tc.used, now)
			assert.Equal(t, tc.want, message)
			assert.Equal(t, map[string]Signal{ofVolume: "emptydirfs.limit", ofContainer: "ephemeralcontainerfs.limit", ofPod: "ephemeralpodfs.limit"}[tc.want], limit)
			assert.Equal(t, tc.want != "", limit.IsLocalStorageLimit())
		})
	}
}

// EV-7: of the init containers, only sidecars have a limit of their own.
func TestOverLocalLimit_InitContainers(t *testing.T) {
	now := time.Now()
	always := corev1.ContainerRestartPolicyAlways
	used := runtime.PodUsage{Containers: []runtime.ContainerUsage{{Name: "init", Rootfs: runtime.DiskUsage{At: now, Bytes: 101}}}}
	pod := bounded("", "500")
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("100")},
	}}}
	limit, message := exceededLimit(pod, &used, now)
	assert.Empty(t, limit, message)
	used.Containers[0].Rootfs.Bytes = 501
	_, message = exceededLimit(pod, &used, now)
	assert.Equal(t, "Pod ephemeral local storage usage exceeds the total limit of containers 500. ", message)
	used.Containers[0].Rootfs.Bytes = 101
	pod.Spec.InitContainers[0].RestartPolicy = &always
	_, message = exceededLimit(pod, &used, now)
	assert.Equal(t, `Container init exceeded its local ephemeral storage limit "100". `, message)
}

// EV-7: files of pods are counted only where a limit wants it.
func TestHasLocalLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"nothing":                    {bounded(""), false},
		"an emptyDir":                {bounded("1"), true},
		"an emptyDir of nothing":     {bounded("0"), false},
		"a container":                {bounded("", "1"), true},
		"one of several containers":  {bounded("", "", "1"), true},
		"a container's of nothing":   {bounded("", "0"), false},
		"a container without limits": {bounded("", ""), false},
	} {
		assert.Equal(t, tc.want, HasLocalStorageLimit(tc.pod), name)
	}
}
