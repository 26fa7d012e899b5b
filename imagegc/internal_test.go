package imagegc

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/clocktest"
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

// IG-3: every record read from a truncated file is unchanged, the loss is reported, and
// the damaged file is kept.
func TestLoad_TruncatedFile(t *testing.T) {
	want := ages(5)
	content := encode(want)
	path := t.TempDir() + "/ages"
	for n := range len(content) + 1 {
		require.NoError(t, os.WriteFile(path, content[:n], 0o600))
		got, err := load(path)
		for id, k := range got {
			require.Equal(t, want[id], k, "cut at %d", n)
		}
		if n >= len(content)-1 { // the last line feed may be missing
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

// A flipped byte loses one line at most.
func TestDecode_FlippedByte(t *testing.T) {
	want := ages(3)
	content := encode(want)
	for i := range content {
		data := bytes.Clone(content)
		data[i] ^= 0x15
		got, err := decode(bytes.NewReader(data))
		require.Error(t, err, "flipped at %d", i)
		for id, k := range got {
			require.Equal(t, want[id], k)
		}
	}
}

func TestDecode_ForeignFiles(t *testing.T) {
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

func TestEncode_IsBounded(t *testing.T) {
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

// IG-3, AG-10: after the clock was set, the next process reads the ages that images have had, and removes none
// as older than it is.
func TestCollector_SavesAgesAfterTheClockWasSet(t *testing.T) {
	const years = 8766 * time.Hour
	at := time.Now().Add(-time.Hour)
	for name, d := range map[string]time.Duration{"forward": -50 * years, "back": 3 * time.Hour} {
		path := t.TempDir() + "/ages"
		then := clocktest.BeforeSetBack(t, at, d)
		c, err := New(Config{Images: ImagesOf(nil), RecordsFile: path})
		require.NoError(t, err)
		c.loaded, c.known = true, map[string]ImageRecord{"a": {then, then}}
		c.save()
		got, err := load(path)
		require.NoError(t, err)
		assert.WithinDuration(t, at, got["a"].FirstDetected, time.Minute, name)
		assert.WithinDuration(t, at, got["a"].LastUsed, time.Minute, name)
	}
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
			if decoded, err := decode(bytes.NewReader(encode(known))); err != nil || len(decoded) != len(known) {
				t.Fatal(err)
			}
		}
	})
}

func TestNameSet(t *testing.T) {
	const hex = "0123456789012345678901234567890123456789012345678901234567890123"
	image := runtime.Image{ID: "sha256:" + hex, Tags: []string{"docker.io/library/busybox:latest", "reg.io:5000/a/b:2"}, Digests: []string{"reg.io:5000/a/b@sha256:abcd"}}
	for name, want := range map[string]bool{
		"busybox": true, "busybox:latest": true, "docker.io/busybox": true, "library/busybox": true, "index.docker.io/library/busybox": true,
		"busybox:1": false, "reg.io:5000/a/b:2": true, "reg.io:5000/a/b": false, "other/x@sha256:abcd": true, "other/x@sha256:abce": false,
		"sha256:" + hex: true, hex: true, "": false, "reg.io:5000/a/b:2@sha256:ffff": true, "localhost/busybox": false, "sha256:xyz": false, "abcd": false, "localhost/busybox:1": false,
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

// A name matches as it is and fully qualified. A local registry, one with a port and an
// IPv6 address are not names on Docker Hub.
func TestForms(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for name, want := range map[string][]string{
		"":                  nil,
		"localhost/a:1":     {"localhost/a:1", "localhost/a:1"},
		"reg.io/a":          {"reg.io/a", "reg.io/a:latest"},
		"reg:5000/a:1":      {"reg:5000/a:1", "reg:5000/a:1"},
		"[::1]/a:1":         {"[::1]/a:1", "[::1]/a:1"},
		"user/a:1":          {"user/a:1", "docker.io/user/a:1"},
		"index.docker.io/a": {"index.docker.io/a", "docker.io/library/a:latest"},
		"docker.io/a:1":     {"docker.io/a:1", "docker.io/library/a:1"},
		"docker.io/b/a:1":   {"docker.io/b/a:1", "docker.io/b/a:1"},
		"a":                 {"a", "docker.io/library/a:latest"},
		"a@sha256:12":       {"sha256:12"},
		"a:1@sha256:12":     {"sha256:12", "docker.io/library/a:1"},
		"sha256:12":         {"sha256:12"},
		hex:                 {"sha256:" + hex},
		hex[1:]:             {hex[1:], "docker.io/library/" + hex[1:] + ":latest"},
		"sha256:":           {"sha256:", "docker.io/library/sha256:"},
		"cafe":              {"cafe", "docker.io/library/cafe:latest"},
		"sha256:g":          {"sha256:g", "docker.io/library/sha256:g"},
		"user/sha256:12":    {"user/sha256:12", "docker.io/user/sha256:12"},
	} {
		assert.Equal(t, want, forms(name), name)
	}
}

// The records are written least recently used first, then by id, and records with ids
// beyond the maximum length of a line are left out.
func TestEncode(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	known := map[string]ImageRecord{"c": {at, at}, "b": {at, at.Add(time.Hour)}, "a": {at, at.Add(time.Hour)}}
	for range 20 {
		lines := strings.Split(strings.TrimSpace(string(encode(known))), "\n")
		require.Len(t, lines, 4)
		for i, id := range []string{"c", "a", "b"} {
			require.Contains(t, lines[i+1], `"id":"`+id+`"`)
		}
	}
	known[strings.Repeat("x", maxStoreLine)] = ImageRecord{at, at}
	got, err := decode(bytes.NewReader(encode(known)))
	require.ErrorIs(t, err, ErrImageRecords)
	assert.Len(t, got, 3)
}

// Records that cannot be written are left out, and reading says how many.
func TestEncode_LeavesOutInvalidRecords(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	overhead := len(strings.Split(string(encode(map[string]ImageRecord{"x": {at, at}})), "\n")[1]) - len("00000000 x")
	for name, tt := range map[string]struct {
		id   string
		at   time.Time
		want int
	}{
		"as long as a line may be": {strings.Repeat("x", maxStoreLine-17-overhead), at, 1},
		"too long":                 {strings.Repeat("x", maxStoreLine-16-overhead), at, 0},
		"too far in the future":    {"x", time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), 0},
	} {
		got, err := decode(bytes.NewReader(encode(map[string]ImageRecord{tt.id: {tt.at, tt.at}})))
		assert.Len(t, got, tt.want, name)
		if tt.want == 0 {
			require.EqualError(t, err, "image records: read 0 of 1, 0 lines are damaged", name)
		} else {
			require.NoError(t, err, name)
		}
	}
}

// A file with more records than there may be is read up to that number.
func TestDecode_IsBounded(t *testing.T) {
	var file bytes.Buffer
	encodeRecord(&file, fmt.Sprint(recordsHeader, " ", maxStored+2))
	for i := range maxStored + 2 {
		encodeRecord(&file, fmt.Sprintf(`{"id":"%d"}`, i))
	}
	got, err := decode(&file)
	require.ErrorIs(t, err, ErrImageRecords)
	assert.Len(t, got, maxStored)
}

// An image has had no name since it was first listed without one, and never since a time
// in the future. A digest is a name.
func TestCollector_NoteUnnamed(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &Collector{unnamed: map[string]time.Time{"old": now.Add(-time.Hour), "future": now.Add(time.Hour), "removed": now, "named": now}}
	c.noteUnnamed([]runtime.Image{
		{ID: "old"},
		{ID: "future"},
		{ID: "new"},
		{ID: "named", Tags: []string{"a:1"}},
		{ID: "digest", Digests: []string{"a@1"}},
		{ID: "both", Tags: []string{"a:1"}, Digests: []string{"a@1"}},
	}, now)
	assert.Equal(t, map[string]time.Time{"old": now.Add(-time.Hour), "future": now, "new": now}, c.unnamed)
}

// A lease that ends twice is not missing later, and its images were used once.
func TestLeases_Forget(t *testing.T) {
	image := runtime.Image{ID: "sha256:1", Tags: []string{"reg.io/a:1"}}
	l := newLeases()
	l.acquire("p", []string{"reg.io/a:1"})
	assert.True(t, l.has(image))
	ended := func(types.UID) bool { return true }
	l.drop(ended)
	l.drop(ended)
	assert.False(t, l.has(image))
	assert.True(t, l.takeUsed().has(image))
	assert.False(t, l.takeUsed().has(image))
	l.acquire("q", []string{"reg.io/a:1"})
	assert.True(t, l.has(image))
	assert.Empty(t, l.takeUsed())
}

// A damaged line is counted, and one without an id is damaged.
func TestDecode_DamagedLines(t *testing.T) {
	var file bytes.Buffer
	encodeRecord(&file, recordsHeader+" 3")
	encodeRecord(&file, `{"id":"a"}`)
	encodeRecord(&file, `{"id":""}`)
	file.WriteString("no checksum\n1234567 x\n12345678\n")
	got, err := decode(&file)
	require.EqualError(t, err, "image records: read 1 of 3, 4 lines are damaged")
	assert.Len(t, got, 1)

	file.Reset()
	encodeRecord(&file, recordsHeader+" x")
	_, err = decode(&file)
	require.ErrorContains(t, err, "no valid header")
	file.Reset()
	encodeRecord(&file, "9")
	_, err = decode(&file)
	require.ErrorContains(t, err, "no valid header")

	file.Reset()
	encodeRecord(&file, recordsHeader+" 2")
	encodeRecord(&file, `{"id":"a"}`)
	file.WriteString(strings.Repeat("x", maxStoreLine+1) + "\n")
	got, err = decode(&file)
	require.ErrorIs(t, err, bufio.ErrTooLong)
	assert.Len(t, got, 1)
}
