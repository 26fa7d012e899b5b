package volume_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logtest"
	"github.com/sublet-dev/agent/volume"
)

const diskSize = 16 << 20

// diskEnv is a node with a local PersistentVolume that is a disk.
type diskEnv struct {
	t                  *testing.T
	root, file, device string // the file has what the device has
	claims             *fakeClaims
	log                logtest.Buffer
	operations         []volume.Operation
	*volume.Manager
}

func newDiskEnv(t *testing.T) *diskEnv {
	t.Helper()
	e := &diskEnv{t: t, root: t.TempDir()}
	e.file, e.device = newDisk(t)
	e.claims = boundClaim(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: e.device}})
	e.restart()
	t.Cleanup(func() {
		for _, uid := range e.PodUIDs() {
			require.NoError(t, e.Unmount(context.WithoutCancel(t.Context()), uid))
		}
	})
	return e
}

// newDisk returns a file and the loop device that it is.
func newDisk(t *testing.T) (file, device string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("block devices need root and loop devices")
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("needs the Debian package e2fsprogs: ", err)
	}
	file = filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Truncate(file, diskSize))
	out, err := exec.CommandContext(t.Context(), "losetup", "-f", "--show", file).Output()
	if err != nil {
		t.Skip("block devices need root and loop devices: ", err)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() { require.NoError(t, exec.Command("losetup", "-d", device).Run()) })
	return file, device
}

// restart replaces the Manager, as a new process does.
func (e *diskEnv) restart() {
	e.t.Helper()
	var err error
	e.Manager, err = volume.New(volume.Config{
		Root: e.root, Logger: logtest.NewLogger(&e.log, slog.LevelInfo), Claims: e.claims,
		Hooks: volume.Hooks{OperationEnded: func(op volume.Operation, _ time.Duration, _ error) { e.operations = append(e.operations, op) }},
	})
	require.NoError(e.t, err)
}

// path is where the disk is mounted.
func (e *diskEnv) path() string {
	return filepath.Join(e.root, "plugins/kubernetes.io/local-volume/mounts/pv")
}

// mounted mounts the volume for a pod and requires that it has a file of that name, unless that is empty.
func (e *diskEnv) mounted(pod *corev1.Pod, name string) {
	e.t.Helper()
	volumes, err := e.Mount(e.t.Context(), pod, nil)
	require.NoError(e.t, err)
	require.Equal(e.t, e.path(), volumes["data"].HostPath)
	var disk, dir unix.Stat_t
	require.NoError(e.t, unix.Stat(e.device, &disk))
	require.NoError(e.t, unix.Stat(e.path(), &dir))
	require.Equal(e.t, disk.Rdev, dir.Dev)
	if name != "" {
		_, err := os.Stat(filepath.Join(e.path(), name))
		require.NoError(e.t, err)
	}
}

func (e *diskEnv) write(name string) {
	e.t.Helper()
	require.NoError(e.t, os.WriteFile(filepath.Join(e.path(), name), nil, 0o600))
}

func (e *diskEnv) unmounted(uid types.UID) {
	e.t.Helper()
	require.NoError(e.t, e.Unmount(e.t.Context(), uid))
	require.NoDirExists(e.t, filepath.Join(e.root, "pods", string(uid)))
}

// rejected requires that a pod cannot have the volume, and that the disk is not used then.
func (e *diskEnv) rejected(pod *corev1.Pod, want string) {
	e.t.Helper()
	_, err := e.Mount(e.t.Context(), pod, nil)
	require.ErrorContains(e.t, err, `MountVolume.SetUp failed for volume "data": local volume: `)
	require.ErrorContains(e.t, err, want)
}

// unchanged requires that a pod cannot have the volume, and that nothing was written to the disk.
func (e *diskEnv) unchanged(pod *corev1.Pod, want string) {
	e.t.Helper()
	before, err := os.ReadFile(e.file)
	require.NoError(e.t, err)
	e.rejected(pod, want)
	require.NoDirExists(e.t, e.path())
	after, err := os.ReadFile(e.file)
	require.NoError(e.t, err)
	require.True(e.t, bytes.Equal(before, after), "the disk was changed")
}

func (e *diskEnv) fsType(t string) { e.claims.volume.Spec.Local.FSType = &t }

func (e *diskEnv) format(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), args[0], append(args[1:], e.device)...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// programs makes these the only programs of the node, those of its own first.
func programs(t *testing.T, own map[string]string, names ...string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range own {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	for _, name := range names {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	t.Setenv("PATH", dir)
}

// An empty disk is formatted for the first pod. Pods share it until the last one has ended, also when the agent is started again. VD-9
func TestMount_LocalDisk(t *testing.T) {
	e := newDiskEnv(t)
	first, second := localPod("uid-1", 7), localPod("uid-2", 7)
	e.mounted(first, "")
	assert.Contains(t, e.log.String(), `level=INFO msg="empty device formatted" pod=default/web podUID=uid-1 volume=pv device=`+e.device+" fsType=ext4\n")
	info, err := os.Stat(e.path())
	require.NoError(t, err)
	assert.Equal(t, uint32(os.Getegid()+7), info.Sys().(*syscall.Stat_t).Gid)
	e.write("of-first")
	e.mounted(first, "of-first")
	e.restart()
	e.mounted(first, "of-first")
	e.mounted(second, "of-first")
	e.unmounted(first.UID)
	e.mounted(second, "of-first")
	e.restart()
	e.unmounted(second.UID)
	require.NoDirExists(t, e.path())
	assert.Contains(t, e.operations, volume.Operation{Name: volume.OperationUnmountDevice, Kind: volume.Kind{Plugin: "kubernetes.io/local-volume"}})

	e.log.Reset()
	e.mounted(localPod("uid-3", -1), "of-first")
	require.Empty(t, e.log.String())
	e.unmounted("uid-3")
}

// Mounts of subPaths do not keep the disk from being unmounted.
func TestMount_LocalDiskWithSubPath(t *testing.T) {
	e, pod := newDiskEnv(t), localPod("uid-1", -1)
	volumes, err := e.Mount(t.Context(), pod, nil)
	require.NoError(t, err)
	path, err := e.SubPath(t.Context(), pod.UID, "app", volumes["data"], "sub")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
	e.unmounted(pod.UID)
	require.NoDirExists(t, e.path())
	e.mounted(pod, "sub/file")
}

// What is on a disk is never lost to a wrong path. VD-9
func TestMount_LocalDiskIsLeftAsItIs(t *testing.T) {
	data := []byte("the only copy")
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, e *diskEnv)
		want    string
	}{
		"partitions": {func(t *testing.T, e *diskEnv) {
			mbr := make([]byte, 512)
			copy(mbr[446:], []byte{0, 0, 2, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 100, 0, 0, 0})
			mbr[510], mbr[511] = 0x55, 0xaa
			writeAt(t, e.file, mbr, 0)
		}, "has a partition table (dos), and is left as it is"},
		"unknown data": {func(t *testing.T, e *diskEnv) { writeAt(t, e.file, data, 4096) }, "has data that is no known file system"},
		"unknown data at its end": {
			func(t *testing.T, e *diskEnv) { writeAt(t, e.file, data, diskSize-int64(len(data))) }, "has data that is no known file system",
		},
		"swap":                  {func(t *testing.T, e *diskEnv) { e.format(t, "mkswap") }, "has swap, which is no file system, and is left as it is"},
		"read-only and empty":   {func(_ *testing.T, e *diskEnv) { e.claims.volume.Spec.MountOptions = []string{"noatime,ro"} }, "is empty, and is not formatted"},
		"a type that is a path": {func(_ *testing.T, e *diskEnv) { e.fsType("../ext4") }, `invalid fsType "../ext4"`},
		"a type that is a flag": {func(_ *testing.T, e *diskEnv) { e.fsType("-a") }, `invalid fsType "-a"`},
		"a type that is not there": {
			func(_ *testing.T, e *diskEnv) { e.fsType("none") }, "the node has no program mkfs.none: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newDiskEnv(t)
			tc.prepare(t, e)
			e.unchanged(localPod("uid-1", -1), tc.want)
		})
	}
}

func writeAt(t *testing.T, file string, b []byte, offset int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(b, offset)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// A device that something else has is not formatted, whatever is on it.
func TestMount_LocalDiskInUse(t *testing.T) {
	e := newDiskEnv(t)
	other, err := os.OpenFile(e.device, os.O_RDONLY|os.O_EXCL, 0)
	require.NoError(t, err)
	e.unchanged(localPod("uid-1", -1), "device or resource busy")
	require.NoError(t, other.Close())
	e.mounted(localPod("uid-1", -1), "")
}

func TestMount_LocalDiskOfAnotherType(t *testing.T) {
	e := newDiskEnv(t)
	e.format(t, "mkfs.ext4", "-q")
	e.fsType("xfs")
	e.rejected(localPod("uid-1", -1), "it has a file system of type ext4, not xfs: ")
	require.NoDirExists(t, e.path())
	e.claims.volume.Spec.Local.FSType = nil
	e.mounted(localPod("uid-1", -1), "lost+found")
	e.unmounted("uid-1")
}

func TestMount_LocalDiskReadOnly(t *testing.T) {
	e := newDiskEnv(t)
	reader := claimPod(viaClaim(true))
	reader.UID = "uid-1"
	e.unchanged(reader, "is empty, and is not formatted for a volume that is read-only")
	writer := localPod("uid-2", -1)
	e.mounted(writer, "")
	e.write("file")
	volumes, err := e.Mount(t.Context(), reader, nil)
	require.NoError(t, err)
	require.True(t, volumes["data"].ReadOnly)
	e.write("another")
	e.unmounted(reader.UID)
	e.unmounted(writer.UID)

	e.mounted(reader, "file")
	require.ErrorIs(t, os.WriteFile(filepath.Join(e.path(), "file"), nil, 0o600), unix.EROFS)
	e.rejected(writer, "is mounted read-only, for pods that do not write: it waits for their end")
	e.unmounted(reader.UID)
	e.mounted(writer, "another")
	e.write("file")
}

// Programs that are missing, or that fail, are named.
func TestMount_LocalDiskNeedsPrograms(t *testing.T) {
	t.Run("blkid", func(t *testing.T) {
		e := newDiskEnv(t)
		programs(t, nil, "mkfs.ext4", "mount", "losetup")
		e.unchanged(localPod("uid-1", -1), "the node has no program blkid: ")
	})
	t.Run("mkfs", func(t *testing.T) {
		e := newDiskEnv(t)
		programs(t, nil, "blkid", "mount", "losetup")
		e.unchanged(localPod("uid-1", -1), "the node has no program mkfs.ext4: ")
	})
	for name, tc := range map[string]struct{ script, want, log string }{
		"fsck is missing":      {"", "", "the node has no program fsck"},
		"fsck repairs":         {"exit 1", "", `msg="file system repaired"`},
		"fsck does not know":   {"echo no checker; exit 8", "", "no checker"},
		"fsck does not repair": {"echo run it by hand; exit 4", "is damaged, and fsck does not repair it by itself: fsck: exit status 4: run it by hand", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newDiskEnv(t)
			e.format(t, "mkfs.ext4", "-q")
			own := map[string]string{"fsck": tc.script}
			if tc.script == "" {
				own = nil
			}
			programs(t, own, "blkid", "mount", "losetup")
			if tc.want != "" {
				e.unchanged(localPod("uid-1", -1), tc.want)
				return
			}
			e.mounted(localPod("uid-1", -1), "lost+found")
			assert.Contains(t, e.log.String(), tc.log)
		})
	}
}

// A pod that did not come so far as to have its mark leaves nothing mounted. VD-9
func TestMount_LocalDiskAfterACrash(t *testing.T) {
	e, pod := newDiskEnv(t), localPod("uid-1", -1)
	mark := filepath.Join(e.root, "pods/uid-1/volumes/kubernetes.io~local-volume/pv")
	require.NoError(t, os.MkdirAll(mark+"/obstacle", 0o700))
	e.rejected(pod, "kubernetes.io~local-volume/pv")
	require.DirExists(t, e.path()+"/lost+found")
	e.restart()
	e.unmounted(pod.UID)
	require.NoDirExists(t, e.path())
}

// A disk that was unmounted by hand, or by a reboot, is mounted again: no pod writes to the directory below.
func TestMount_LocalDiskThatWasUnmounted(t *testing.T) {
	e, pod := newDiskEnv(t), localPod("uid-1", 0)
	e.mounted(pod, "")
	e.write("file")
	for _, restart := range []bool{false, true} {
		require.NoError(t, unix.Unmount(e.path(), 0))
		if restart {
			e.restart()
		}
		e.mounted(pod, "file")
	}
}

// The disk of a volume that was made again, under its name, is not that which pods still have.
func TestMount_LocalDiskOfAnotherVolume(t *testing.T) {
	e := newDiskEnv(t)
	e.mounted(localPod("uid-1", -1), "")
	_, e.device = newDisk(t)
	t.Cleanup(func() { require.NoError(t, e.Unmount(context.WithoutCancel(t.Context()), "uid-2")) })
	e.claims.volume.Spec.Local.Path = e.device
	e.rejected(localPod("uid-2", -1), "for pods that had another volume pv: it waits for their end")
	e.unmounted("uid-1")
	e.mounted(localPod("uid-2", -1), "")
}

// What keeps a disk busy keeps no pod from ending. The next pod has the disk, and the last one unmounts it.
func TestUnmount_LocalDiskThatIsBusy(t *testing.T) {
	e, pod := newDiskEnv(t), localPod("uid-1", -1)
	e.mounted(pod, "")
	busy, err := os.Open(e.path())
	require.NoError(t, err)
	defer busy.Close()
	require.NoError(t, e.Unmount(t.Context(), pod.UID))
	require.NoDirExists(t, filepath.Join(e.root, "pods/uid-1"))
	assert.Contains(t, e.log.String(), `level=WARN msg="volume of no pod stays mounted"`)
	e.mounted(localPod("uid-2", -1), "lost+found")
	require.NoError(t, busy.Close())
	e.unmounted("uid-2")
}

// A disk that was busy at the end of its last pod is unmounted as another pod ends, whatever that has.
func TestUnmount_LocalDiskThatWasBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newDiskEnv(t)
		end := func(uid types.UID) {
			require.NoError(t, os.MkdirAll(filepath.Join(e.root, "pods", string(uid)), 0o700))
			e.unmounted(uid)
		}
		e.mounted(localPod("uid-1", -1), "")
		busy, err := os.Open(e.path())
		require.NoError(t, err)
		defer busy.Close()
		e.unmounted("uid-1")
		time.Sleep(2 * time.Minute)
		end("uid-2")
		require.DirExists(t, e.path(), "it is still busy")
		require.NoError(t, busy.Close())
		end("uid-3")
		require.DirExists(t, e.path(), "it is tried once a minute")
		time.Sleep(time.Minute)
		end("uid-4")
		require.NoDirExists(t, e.path())
	})
}

func TestMount_LocalDiskNeedsRoot(t *testing.T) {
	e := newDiskEnv(t)
	m, err := volume.New(volume.Config{Root: t.TempDir(), Claims: e.claims, Unprivileged: true})
	require.NoError(t, err)
	_, err = m.Mount(t.Context(), localPod("uid-1", -1), nil)
	require.ErrorIs(t, err, volume.ErrPrivilege)
}
