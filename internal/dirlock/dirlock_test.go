package dirlock_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/dirlock"
)

// AG-3: flock is held by the open file, so a second open of one process meets
// it as another process does.
func TestAcquire_ReportsHolder(t *testing.T) {
	dir := t.TempDir()
	release, err := dirlock.Acquire(dir)
	require.NoError(t, err)
	_, err = dirlock.Acquire(dir)
	require.ErrorIs(t, err, dirlock.ErrInUse)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))
	require.ErrorContains(t, err, dir)
	release()
	reacquired, err := dirlock.Acquire(dir)
	require.NoError(t, err, "released locks can be taken")
	reacquired()
}

func TestLockIsNotFollowedThroughALink(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(victim, filepath.Join(dir, "agent.lock")))
	_, err := dirlock.Acquire(dir)
	require.Error(t, err)
	b, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
}

func TestAcquire_CreatesDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	release, err := dirlock.Acquire(dir)
	require.NoError(t, err)
	defer release()
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = dirlock.Acquire(file)
	require.ErrorContains(t, err, "create root directory")
}

// Nothing is made with permissions that keep an agent from starting later, too.
func TestAcquire_RejectsAUmaskForTheOwner(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux reports the umask")
	}
	dir := filepath.Join(t.TempDir(), "root")
	old := syscall.Umask(0o777)
	_, err := dirlock.Acquire(dir)
	syscall.Umask(old)
	require.ErrorContains(t, err, "umask 0777")
	require.NoDirExists(t, dir)
	defer syscall.Umask(syscall.Umask(0o077))
	release, err := dirlock.Acquire(dir)
	require.NoError(t, err)
	release()
}

func ExampleAcquire() {
	dir, _ := os.MkdirTemp("", "")
	defer os.RemoveAll(dir)
	release, err := dirlock.Acquire(dir)
	if err != nil {
		panic(err)
	}
	defer release()
	_, err = dirlock.Acquire(dir)
	fmt.Println(errors.Is(err, dirlock.ErrInUse))
	// Output: true
}
