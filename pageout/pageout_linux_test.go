package pageout

import (
	"context"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fileKiB returns how much memory of this process is mapped from files.
func fileKiB(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	m := regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(text)
	require.NotNil(t, m, "%s", text)
	n, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return n
}

// mapProgram has the whole program in memory, whatever was paged out before.
func mapProgram(t *testing.T) {
	t.Helper()
	mappings, err := programMappings()
	require.NoError(t, err)
	for _, m := range mappings {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_POPULATE_READ)
		require.Zero(t, errno, "MADV_POPULATE_READ needs Linux 5.14")
	}
}

func TestProgram(t *testing.T) {
	file, err := os.Executable()
	require.NoError(t, err)
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(file, &fs))
	mapProgram(t)
	before := fileKiB(t)
	released, err := Program()
	require.NoError(t, err)
	after := fileKiB(t)
	t.Logf("%d KiB of the program were mapped, now %d", before, after)
	if fs.Type != unix.TMPFS_MAGIC { // a file in memory cannot be paged out
		assert.Less(t, after, before/2)
		assert.Greater(t, released, int64(before)*1024/2)
	}
	_, err = Program() // the program still works, and what is not mapped is no error
	require.NoError(t, err)
}

// Runners of New call Program, which other tests replace.
func TestNew_PagesOutProgram(t *testing.T) {
	r, err := New(Config{Delay: time.Nanosecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	program, called := r.program, false
	r.program = func() (released int64, err error) {
		defer cancel()
		called = true
		released, err = program()
		assert.NoError(t, err)
		return released, err
	}
	require.NoError(t, r.Run(ctx))
	assert.True(t, called)
}

func TestReadOnlyMappings(t *testing.T) {
	for name, tc := range map[string]struct {
		maps string
		want []mapping
		err  string
	}{
		"only those of the file that are not writable": {
			maps: "00400000-00f29000 r-xp 00000000 fe:00 123                                /opt/edge agent\n" +
				"00f29000-01a9b000 r--p 00b29000 fe:00 123                                /opt/edge agent\n" +
				"01a9b000-01b10000 rw-p 0169b000 fe:00 123                                /opt/edge agent\n" +
				"01b10000-03b57000 rw-p 00000000 00:00 0 \n" +
				"7f0f48000000-7f0f48100000 r--p 00000000 fe:00 9                          /opt/edge\n" +
				"7ffd66280000-7ffd662a1000 rw-p 00000000 00:00 0                          [stack]\n",
			want: []mapping{{0x400000, 0xf29000}, {0xf29000, 0x1a9b000}},
		},
		"none": {
			maps: "01b10000-03b57000 rw-p 00000000 00:00 0 \n",
			err:  "no mapping of its file found in /proc/self/maps",
		},
		"an invalid line": {
			maps: "here-there r-xp 00000000 fe:00 123 /opt/edge agent\n",
			err:  `invalid line of /proc/self/maps: "here-there r-xp 00000000 fe:00 123 /opt/edge agent"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readOnlyMappings(tc.maps, "/opt/edge agent")
			if tc.err != "" {
				require.EqualError(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
}
