package imagegc

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/runtime"
)

func ages(n int) map[string]ImageRecord {
	known := make(map[string]ImageRecord)
	for i := range n {
		at := time.Date(2026, 1, 1, 0, i, 0, i, time.UTC)
		known[fmt.Sprintf("sha256:%064x", i)] = ImageRecord{FirstDetected: at, LastUsed: at.Add(time.Hour)}
	}
	return known
}

// IG-3: whatever is left of the file is either as it was or not there, the loss
// is told, and the damaged file is kept for a look.
func TestStoreCutAtEveryByte(t *testing.T) {
	want := ages(5)
	whole := encode(want)
	path := t.TempDir() + "/ages"
	for n := range len(whole) + 1 {
		require.NoError(t, os.WriteFile(path, whole[:n], 0o600))
		got, err := load(path)
		for id, k := range got {
			require.Equal(t, want[id], k, "cut at %d", n)
		}
		if n >= len(whole)-1 { // the last line feed may be missing
			require.NoError(t, err)
			require.Len(t, got, 5)
			continue
		}
		require.ErrorIs(t, err, ErrImageRecords, "cut at %d", n)
		require.Less(t, len(got), 5)
		require.NoFileExists(t, path)
		require.FileExists(t, path+".damaged")
	}
}

// A byte that flipped costs its line at most.
func TestStoreFlippedBytes(t *testing.T) {
	want := ages(3)
	whole := encode(want)
	for i := range whole {
		data := bytes.Clone(whole)
		data[i] ^= 0x15
		got, err := decode(bytes.NewReader(data))
		require.Error(t, err, "flipped at %d", i)
		for id, k := range got {
			require.Equal(t, want[id], k)
		}
	}
}

func TestStoreForeignFiles(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "json": `{"images":[]}`, "binary": "\x00\xff\x7fELF", "one endless line": string(make([]byte, 1<<20)),
	} {
		got, err := decode(bytes.NewReader([]byte(text)))
		require.ErrorIs(t, err, ErrImageRecords, name)
		assert.Empty(t, got, name)
	}
	path := t.TempDir() + "/none"
	got, err := load(path)
	require.NoError(t, err, "none yet is no loss")
	assert.NotNil(t, got)
	_, err = load(t.TempDir())
	require.ErrorIs(t, err, ErrImageRecords, "a folder")
}

func TestStoreIsBounded(t *testing.T) {
	known := ages(3)
	for i := range maxStored {
		known[fmt.Sprint(i)] = ImageRecord{LastUsed: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}
	}
	got, err := decode(bytes.NewReader(encode(known)))
	require.NoError(t, err)
	assert.Len(t, got, maxStored)
	for id := range ages(3) {
		assert.Contains(t, got, id, "the oldest have most to lose")
	}
}

func TestSave(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, save(dir+"/ages", ages(2)))
	got, err := load(dir + "/ages")
	require.NoError(t, err)
	assert.Equal(t, ages(2), got)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, list, 1, "no leftovers")
	info, err := os.Stat(dir + "/ages")
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	require.ErrorIs(t, save(dir+"/none/ages", nil), ErrImageRecords)
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(ages(3)))
	f.Add([]byte(recordsHeader))
	f.Fuzz(func(t *testing.T, data []byte) {
		known, err := decode(bytes.NewReader(data))
		if known == nil {
			t.Fatal("nil")
		}
		if err == nil {
			if again, err := decode(bytes.NewReader(encode(known))); err != nil || len(again) != len(known) {
				t.Fatal(err)
			}
		}
	})
}

func TestNames(t *testing.T) {
	const hex = "0123456789012345678901234567890123456789012345678901234567890123"
	image := runtime.Image{ID: "sha256:" + hex, Tags: []string{"docker.io/library/busybox:latest", "reg.io:5000/a/b:2"}, Digests: []string{"reg.io:5000/a/b@sha256:abcd"}}
	for name, want := range map[string]bool{
		"busybox": true, "busybox:latest": true, "docker.io/busybox": false, "library/busybox": true, "index.docker.io/library/busybox": true,
		"busybox:1": false, "reg.io:5000/a/b:2": true, "reg.io:5000/a/b": false, "other/x@sha256:abcd": true, "other/x@sha256:abce": false,
		"sha256:" + hex: true, hex: true, "": false, "reg.io:5000/a/b:2@sha256:ffff": true, "localhost/busybox": false,
	} {
		set := nameSet{}
		set.add(name)
		assert.Equal(t, want, set.has(image), name)
	}
}

func TestNote(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	later := now.Add(time.Hour)
	known := map[string]ImageRecord{"gone": {}, "old": {now, now}, "used": {now, now}, "future": {later.Add(time.Hour), later.Add(time.Hour)}}
	note(known, []runtime.Image{{ID: "old"}, {ID: "used"}, {ID: "new"}, {ID: "future"}},
		func(im runtime.Image) bool { return im.ID == "used" }, later)
	assert.Equal(t, map[string]ImageRecord{
		"old": {now, now}, "used": {now, later}, "new": {later, later}, "future": {later, later},
	}, known)
}

func TestStatfs(t *testing.T) {
	fs, err := statfs(t.TempDir())
	require.NoError(t, err)
	assert.Positive(t, fs.CapacityBytes)
	assert.LessOrEqual(t, fs.AvailableBytes, fs.CapacityBytes)
	_, err = statfs(t.TempDir() + "/none")
	assert.Error(t, err)
}
