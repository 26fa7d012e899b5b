package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/csitest"
	"github.com/sublet-dev/agent/volume"
)

// VD-6: secrets that a driver repeats occur in no error.
func TestMount_HidesSecrets(t *testing.T) {
	e := newEnv(t, nil)
	e.objects = map[string]map[string][]byte{"ns/stage": {csitest.SecretKey: []byte("s3cret")}}
	v := e.volumeOf(newPod("1"), "v")
	v.PersistentVolume.Spec.CSI.VolumeAttributes = map[string]string{"secret": "another"}
	v.PersistentVolume.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "stage"}
	_, err := e.Mount(t.Context(), v)
	require.EqualError(t, err, "CSI driver csitest.example: NodeStageVolume: secret *** is wrong")
	v.PersistentVolume.Spec.CSI.NodeStageSecretRef.Name = "none"
	_, err = e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "secret ns/none")
	v.Objects = nil
	_, err = e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "this agent has no Secrets")
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

// VD-3: a driver that hangs makes its own pods wait, whichever call it does not answer, and an event says
// for whom and for what. Nineteen other pods are mounted, expanded and unmounted meanwhile, and
// nothing is left in the end.
func TestMount_HungDrivers(t *testing.T) {
	const others = 19
	for _, method := range faultyMethods() {
		t.Run(method, func(t *testing.T) {
			e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.SlowCallAge, cfg.HealthPeriod = time.Millisecond, time.Millisecond })
			hung := make(chan struct{})
			var once sync.Once
			e.driver.SetBefore(func(ctx context.Context, m string, request any) error {
				r, ok := request.(interface{ GetVolumeId() string })
				if ok && r.GetVolumeId() == "hung" && m == method {
					once.Do(func() { close(hung) })
					<-ctx.Done()
					return ctx.Err() // and does nothing, at a time when others may have begun
				}
				return nil
			})
			running, stop := context.WithCancel(t.Context())
			done := make(chan error, 3)
			go func() { done <- e.Run(running) }()
			ctx, cancel := context.WithCancel(t.Context())
			v := e.volumeOf(newPod("1"), "hung")
			go func() { // until it hangs
				_, err := e.Mount(ctx, v)
				done <- errors.Join(err, e.Unmount(ctx, v.Pod.UID))
			}()
			<-hung
			second := e.volumeOf(newPod("2"), "hung")
			go func() {
				_, err := e.Mount(ctx, second)
				done <- err
			}()
			var wg sync.WaitGroup
			for i := range others {
				wg.Go(func() {
					pod := newPod(fmt.Sprint("other-", i))
					v := e.volumeOf(pod, fmt.Sprint("v", i))
					_, err := e.Mount(t.Context(), v)
					v.PersistentVolume.Spec.Capacity["storage"] = resource.MustParse("2Gi")
					_, err2 := e.Mount(t.Context(), v)
					assert.NoError(t, errors.Join(err, err2, e.Unmount(t.Context(), pod.UID)))
					assert.EqualValues(t, int64(2<<30), e.driver.Size(fmt.Sprint("v", i)))
				})
			}
			wg.Wait()
			var events []string
			require.Eventually(t, func() bool {
				events = slices.DeleteFunc(e.recorded("VolumeDriverSlow"), func(s string) bool { return strings.HasPrefix(s, "pod-other-") })
				return len(events) >= 2
			}, testTimeout, time.Millisecond)
			assert.Contains(t, strings.Join(events, "\n"), `pod-1: volume "data" waits for CSI driver csitest.example, which has not answered `+method+" for")
			assert.Contains(t, strings.Join(events, "\n"), `pod-2: volume "data" waits for CSI driver csitest.example, which has not answered an earlier call for this volume for`)
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
			require.ErrorIs(t, <-done, context.Canceled)
			stop()
			require.NoError(t, <-done)
			e.driver.SetBefore(nil)
			e.register() // Run has closed the connection
			e.unmounted(v.Pod)
			e.unmounted(second.Pod)
			e.unstageOrphans()
			e.requireNothingLeft()
		})
	}
}

func TestMount_BoundsCalls(t *testing.T) {
	e := newEnv(t, nil)
	hung := make(chan struct{})
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == "NodeStageVolume" {
			<-hung // whatever the deadline
			return errors.New("too late")
		}
		return nil
	})
	v := e.volumeOf(newPod("1"), "v")
	e.clients[csitest.Name].timeout = 10 * time.Millisecond
	_, err := e.Mount(t.Context(), v)
	require.EqualError(t, err, "CSI driver csitest.example: NodeStageVolume: no answer in 10ms")
	close(hung)
	e.clients[csitest.Name].timeout = testTimeout
	// An operation on the volume that does not end makes others of it wait for so long.
	e.cfg.CallTimeout = 10 * time.Millisecond
	_, release, err := e.acquire(t.Context(), volumeID{driver: csitest.Name, handle: "v", name: "pv-v"})
	require.NoError(t, err)
	_, err = e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "another operation on volume pv-v takes longer than 10ms")
	release()
	e.cfg.CallTimeout = testTimeout
	e.driver.SetBefore(nil)
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

// VD-3: what a driver says to have done is checked.
func TestMount_LyingDrivers(t *testing.T) {
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	lieAbout := func(methods ...string) {
		e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
			if slices.Contains(methods, method) {
				return errors.ErrUnsupported
			}
			return nil
		})
	}
	lieAbout("NodePublishVolume")
	_, err := e.Mount(t.Context(), v)
	require.ErrorContains(t, err, "NodePublishVolume succeeded, but nothing is mounted at "+filepath.Join(e.dir, "root/pods/1"))
	lieAbout()
	path := e.mounted(v)
	require.NoError(t, os.WriteFile(path+"/file", nil, 0o600))
	if os.Geteuid() == 0 {
		lieAbout("NodeUnpublishVolume", "NodeUnstageVolume")
		require.ErrorContains(t, e.Unmount(t.Context(), "1"), "NodeUnpublishVolume succeeded, but "+path+" is still mounted")
		lieAbout("NodeUnstageVolume")
		e.unmounted(v.Pod)
		require.ErrorContains(t, e.unstageOrphan(t.Context(), stagedVolume), "NodeUnstageVolume succeeded, but")
	}
	lieAbout()
	e.unmounted(v.Pod)
	e.unstageOrphans()
	e.requireNothingLeft()
	assert.FileExists(t, filepath.Join(e.driver.VolumeDir("v"), "data", "file"), "no data was deleted")
}

// While its driver is away a volume that is mounted stays so; one that is not waits.
func TestMount_DeadDrivers(t *testing.T) {
	e := newEnv(t, nil)
	one, two := e.volumeOf(newPod("1"), "a"), e.volumeOf(newPod("2"), "b")
	path := e.mounted(one)
	e.stop(true)
	assert.Equal(t, path, e.mounted(one))
	_, err := e.Mount(t.Context(), two)
	require.ErrorContains(t, err, "CSI driver csitest.example: NodeStageVolume: ")
	require.ErrorContains(t, e.Unmount(t.Context(), "1"), "CSI driver csitest.example: NodeUnpublishVolume: ")
	e.Deregister(t.Context(), e.plugin())
	assert.Equal(t, path, e.mounted(one))
	_, err = e.Mount(t.Context(), two)
	require.ErrorContains(t, err, "is not registered on this node; its socket must be in "+filepath.Join(e.dir, "root/plugins_registry"))
	require.ErrorContains(t, e.Unmount(t.Context(), "1"), "is not registered")
	e.serve()
	e.mounted(two)
	e.unmounted(one.Pod)
	e.unmounted(two.Pod)
	e.requireNothingLeft()
}

// A volume that does not exist any more is unmounted.
func TestUnmount_DeletedVolumes(t *testing.T) {
	e := newEnv(t, nil)
	v := e.volumeOf(newPod("1"), "v")
	e.driver.NoStage = true
	e.register()
	_, err := e.Mount(t.Context(), v)
	require.NoError(t, err)
	if os.Geteuid() == 0 {
		e.unmounted(v.Pod)
		v.PersistentVolume.Spec.CSI.VolumeHandle = "none"
		_, err = e.Mount(t.Context(), v)
		require.ErrorContains(t, err, "volume none not found")
	} else {
		require.NoError(t, os.RemoveAll(e.driver.VolumeDir("v")))
	}
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

func TestMount_RejectsInvalidVolumes(t *testing.T) {
	e := newEnv(t, nil)
	for name, change := range map[string]func(v *volume.DriverVolume){
		"volume has no CSI source": func(v *volume.DriverVolume) { v.PersistentVolume.Spec.CSI = nil },
		`invalid UID "../x"`:       func(v *volume.DriverVolume) { v.Pod.UID = "../x" },
		`invalid driver ".."`:      func(v *volume.DriverVolume) { v.PersistentVolume.Spec.CSI.Driver = ".." },
		`invalid volume "a/b"`:     func(v *volume.DriverVolume) { v.PersistentVolume.Name = "a/b" },
		"volumeHandle: required":   func(v *volume.DriverVolume) { v.PersistentVolume.Spec.CSI.VolumeHandle = "" },
	} {
		v := e.volumeOf(newPod("1"), "v")
		change(&v)
		_, err := e.Mount(t.Context(), v)
		require.ErrorContains(t, err, name)
	}
	require.ErrorContains(t, e.Unmount(t.Context(), types.UID("../x")), "invalid UID")
}

// What a driver writes when it publishes a volume once more gets the fsGroup, as before.
func TestMount_RepublishedFilesGetTheGroup(t *testing.T) {
	e := newEnv(t, nil)
	yes, group := true, int64(os.Getegid())
	e.setCSIDriver(storagev1.CSIDriverSpec{RequiresRepublish: &yes})
	pod := newPod("1")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	v := e.volumeOf(pod, "v")
	e.mounted(v)
	path := filepath.Join(e.driver.VolumeDir("v"), "data", "token")
	e.driver.SetAfter(func(_ context.Context, method string, _ any) error {
		if method == "NodePublishVolume" {
			return os.WriteFile(path, nil, 0o600)
		}
		return nil
	})
	e.mounted(v)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o660), info.Mode().Perm())
	e.unmounted(pod)
}

// A driver that knows what is used of a volume, but not how large it is, is reported. A volume in the
// spec of a pod has no staging path.
func TestStats_InlineVolumeWithoutCapacity(t *testing.T) {
	e := newEnv(t, nil)
	pod := newPod("1")
	e.mounted(volume.DriverVolume{Pod: pod, Source: "csi", Objects: e, Volume: &corev1.Volume{
		Name: "scratch", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: csitest.Name}},
	}})
	id := volumeID{driver: csitest.Name, handle: inlineHandle("1", "scratch"), name: "scratch"}
	require.NoError(t, e.measure(t.Context(), id))
	r, ok := e.driver.Calls("NodeGetVolumeStats")[0].Request.(*spec.NodeGetVolumeStatsRequest)
	require.True(t, ok)
	assert.Empty(t, r.GetStagingTargetPath())
	e.keepStats(id, "1", Stats{At: time.Now(), Used: 7})
	assert.Equal(t, uint64(7), e.VolumeUsage("1")["scratch"].UsedBytes)
	e.keepStats(id, "1", Stats{At: time.Now()})
	assert.Empty(t, e.VolumeUsage("1"), "nothing is known")
	e.unmounted(pod)
}

// VD-5: a driver that expands no volume in use is asked once for each mount, and keeps no pod from
// starting: the volume is always in use when it is asked.
func TestMount_VolumeInUseIsNotExpanded(t *testing.T) {
	e := newEnv(t, nil)
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == "NodeExpandVolume" {
			return status.Error(codes.FailedPrecondition, "volume is in use")
		}
		return nil
	})
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	e.mounted(v)
	assert.Len(t, e.driver.Calls("NodeExpandVolume"), 1)
	assert.Equal(t, []string{`pod-1: volume "data": CSI driver csitest.example: NodeExpandVolume: volume is in use`}, e.recorded("VolumeResizeFailed"))
	v.PersistentVolume.Spec.Capacity["storage"] = resource.MustParse("2Gi")
	e.mounted(v)
	assert.Len(t, e.driver.Calls("NodeExpandVolume"), 2, "for another size")
	e.unmounted(v.Pod)
	e.driver.SetBefore(nil)
	e.mounted(v)
	assert.Equal(t, int64(2<<30), e.driver.Size("v"))
	e.unmounted(v.Pod)
	e.requireNothingLeft()
}

// What a driver does not answer any more is unknown, and it is asked for the health all the same.
func TestStats_DriverFails(t *testing.T) {
	e := newEnv(t, nil)
	sick := []*spec.VolumeHealth_VolumeHealthEntry{{Status: spec.VolumeHealthErrorType_DATA_LOSS, Reason: "DiskFailed"}}
	e.driver.Health = func(string) []*spec.VolumeHealth_VolumeHealthEntry { return sick }
	e.register()
	v := e.volumeOf(newPod("1"), "v")
	e.mounted(v)
	id := stagedVolume
	require.NoError(t, e.measure(t.Context(), id))
	require.NotEmpty(t, e.VolumeUsage("1"))

	fails := "NodeGetVolumeStats"
	e.driver.SetBefore(func(_ context.Context, method string, _ any) error {
		if method == fails {
			return errors.New("away")
		}
		return nil
	})
	sick = append(sick, sick[0])
	require.ErrorContains(t, e.measure(t.Context(), id), "away")
	assert.Empty(t, e.VolumeUsage("1"))
	assert.Len(t, e.Stats("1")["data"].Abnormal, 2)

	fails = "NodeGetVolumeHealth"
	require.ErrorContains(t, e.measure(t.Context(), id), "away")
	assert.NotEmpty(t, e.VolumeUsage("1"))
	assert.Len(t, e.Stats("1")["data"].Abnormal, 2, "it has not recovered")

	e.Deregister(t.Context(), e.plugin())
	require.NoError(t, e.measure(t.Context(), id))
	assert.Empty(t, e.Stats("1"))
	e.driver.SetBefore(nil)
	e.register()
	e.unmounted(v.Pod)
}
