//go:build linux

package cri

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// RT-14
func TestTerminationMessage(t *testing.T) {
	long := strings.Repeat("0123456789abcde\n", 1024)
	logOf := func(lines ...string) string {
		var b strings.Builder
		for _, l := range lines {
			b.WriteString("2026-11-21T04:05:06.789Z stderr F " + l + "\n")
		}
		return b.String()
	}
	cases := []struct {
		name, file, log, policy, said string
		exit                          int32
		want                          string
	}{
		{"a file", "last words", logOf("a log"), "File", "Error", 1, "last words"},
		{"a long file", long + "the reason", "", "File", "", 0, long[len(long)-4086:] + "the reason"},
		{"a long file of long characters", strings.Repeat("€", 2000), "", "File", "", 0, strings.Repeat("€", 1365)},
		{"a long file of no text", strings.Repeat("a\xff", 4000), "", "File", "", 0, strings.Repeat("a�", 1024)},
		{"an empty file, policy File", "", logOf("a log"), "File", "oom", 1, "oom"},
		{"an empty file, fallback, failed", "", logOf("a log", "of two"), "FallbackToLogsOnError", "", 1, "a log\nof two\n"},
		{"an empty file, fallback, went well", "", logOf("a log"), "FallbackToLogsOnError", "", 0, ""},
		{"a file wins over the log", "words", logOf("a log"), "FallbackToLogsOnError", "", 1, "words"},
		{"not text", "a\xffb", "", "File", "", 1, "a�b"},
		{"no file at all", "-", logOf("a log"), "FallbackToLogsOnError", "", 1, "a log\n"},
		{"the runtime's own words are bounded", "-", "", "File", long, 1, long[:4096]},
	}
	c := newFake().client(t, Config{})
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			file, log := filepath.Join(dir, "message"), filepath.Join(dir, "0.log")
			if tc.file != "-" {
				require.NoError(t, os.WriteFile(file, []byte(tc.file), 0o600))
			}
			require.NoError(t, os.WriteFile(log, []byte(tc.log), 0o600))
			st := &v1.ContainerStatus{
				Annotations: map[string]string{
					runtime.AnnotationTerminationMessagePath: "/dev/termination-log", runtime.AnnotationTerminationMessagePolicy: tc.policy,
				},
				Mounts: []*v1.Mount{{ContainerPath: "/other", HostPath: "/etc/passwd"}, {ContainerPath: "/dev/termination-log", HostPath: file}},
			}
			got := c.terminationMessage(runtime.Container{State: runtime.Exited, ExitCode: tc.exit, LogPath: log, Message: tc.said}, st)
			assert.Equal(t, tc.want, got)
		})
	}
}

// OW-3: what a container put in place of its file is not followed and does not block.
func TestTerminationMessageOfAHostileContainer(t *testing.T) {
	dir := t.TempDir()
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	require.NoError(t, os.Symlink("/etc/hostname", link))
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for _, path := range []string{link, fifo, dir} {
		_, err := tail(path, 10)
		assert.Error(t, err, path)
		st := &v1.ContainerStatus{
			Annotations: map[string]string{runtime.AnnotationTerminationMessagePath: "/m"},
			Mounts:      []*v1.Mount{{ContainerPath: "/m", HostPath: path}},
		}
		text := newFake().client(t, Config{}).terminationMessage(runtime.Container{State: runtime.Exited, ExitCode: 1}, st)
		assert.Contains(t, text, "read termination message: ")
		assert.NotContains(t, text, dir, "paths of the node are nobody's business")
	}
}

// OW-3: a device that a container has made in a volume, which is where its message file is, is not opened.
func TestTerminationMessageOfADevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a device")
	}
	device := filepath.Join(t.TempDir(), "device") // of a number that no driver has, which only an attempt to open it shows
	require.NoError(t, unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(511, 511))))
	_, err := tail(device, 10)
	require.ErrorContains(t, err, "not a regular file")
	_, err = logTail(device, 10, 1)
	require.ErrorContains(t, err, "not a regular file")
	require.ErrorContains(t, keepTail(device, 10), "not a regular file")
}

// OW-3: of a file without end no more is read than a message may have.
func TestTerminationMessageOfASparseFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "message")
	sparse(t, file)
	text, err := tail(file, messageLimit)
	require.NoError(t, err)
	assert.Len(t, text, messageLimit)
}

// A pod's directory goes before its containers do: that is no news.
func TestTerminationMessageIsMissing(t *testing.T) {
	var log strings.Builder
	c := newFake().client(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	st := &v1.ContainerStatus{
		Annotations: map[string]string{
			runtime.AnnotationTerminationMessagePath: "/m", runtime.AnnotationTerminationMessagePolicy: "FallbackToLogsOnError",
		},
		Mounts: []*v1.Mount{{ContainerPath: "/m", HostPath: t.TempDir() + "/gone/0"}},
	}
	assert.Empty(t, c.terminationMessage(runtime.Container{State: runtime.Exited, ExitCode: 1, LogPath: t.TempDir() + "/gone/0.log"}, st))
	assert.Empty(t, log.String())
}

func TestLogText(t *testing.T) {
	piece := "cut off line\n" +
		"2026-11-21T04:05:06.1Z stdout P half \n" +
		"2026-11-21T04:05:06.2Z stdout F and half\n" +
		"not a line\n" +
		"2026-11-21T04:05:06.3Z nowhere F x\n" +
		"2026-11-21T04:05:06.4Z stderr F:odd tagged\n" +
		"2026-11-21T04:05:06.5Z stderr F\n" +
		"2026-11-21T04:05:06.6Z stderr F last"
	assert.Equal(t, "half and half\ntagged\n\nlast\n", logText([]byte(piece), 1000, 80))
	assert.Equal(t, "\nlast\n", logText([]byte(piece), 1000, 2))
	assert.Equal(t, "ast\n", logText([]byte(piece), 4, 80))
}

// The tail of a log is the same whether the whole of it is read or its end.
func TestLogTailReadsNoMoreThanItsEnd(t *testing.T) {
	var b strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&b, "2026-11-21T04:05:06.%09dZ stdout F line %d of the log\n", i, i)
	}
	path := filepath.Join(t.TempDir(), "0.log")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	got, err := logTail(path, logMessageLimit, logMessageLines)
	require.NoError(t, err)
	assert.Equal(t, logText([]byte(b.String()), logMessageLimit, logMessageLines), got)
	assert.True(t, strings.HasSuffix(got, "line 19999 of the log\n"))
	assert.Equal(t, 80, strings.Count(got, "\n"))
}

// The message has the end of a last line that is longer, and of such a line before a short one.
func TestLogTailOfALongLine(t *testing.T) {
	const header = "2026-11-21T04:05:06.123456789Z stderr "
	for _, length := range []int{100, 9 << 10, 12 << 10, 16 << 10} {
		for _, after := range []string{"", header + "F bye\n"} {
			path := filepath.Join(t.TempDir(), "0.log")
			line := strings.Repeat("x", length-3) + "end"
			log := header + "P " + strings.Repeat("y", 16<<10) + "\n" + header + "F " + line + "\n" + after
			require.NoError(t, os.WriteFile(path, []byte(log), 0o600))
			got, err := logTail(path, logMessageLimit, logMessageLines)
			require.NoError(t, err)
			assert.Equal(t, logText([]byte(log), logMessageLimit, logMessageLines), got, "%d bytes", length)
			assert.Len(t, got, logMessageLimit)
			assert.Contains(t, got, "end\n")
		}
	}
}

func FuzzLogText(f *testing.F) {
	f.Add([]byte("2026-11-21T04:05:06.1Z stdout F x\n2026-11-21T04:05:06.1Z stderr P y"), 10, 2)
	f.Add([]byte("2026-11-21T04:05:06.1Z stdout F \xff\xfe\n"), 1, 1)
	f.Fuzz(func(t *testing.T, piece []byte, limit, lines int) {
		limit, lines = max(limit%5000, 0), max(lines%200, 1)
		got := logText(piece, limit, lines)
		require.LessOrEqual(t, len(got), limit)
		require.LessOrEqual(t, strings.Count(strings.TrimSuffix(got, "\n"), "\n"), lines)
		require.True(t, utf8.ValidString(got))
	})
}

// What a container wrote into its message file is text of at most the limit, and its end.
func FuzzTextTail(f *testing.F) {
	f.Add([]byte("died"))
	f.Add([]byte("\x84\xa2 \xe2\x84\xa2\xff"))
	f.Fuzz(func(t *testing.T, file []byte) {
		got := textTail(file[max(len(file)-messageLimit, 0):])
		require.LessOrEqual(t, len(got), messageLimit)
		require.True(t, utf8.ValidString(got))
		if utf8.Valid(file) {
			require.True(t, strings.HasSuffix(string(file), got))
		}
		clipped := clip(string(file), logMessageLimit)
		require.LessOrEqual(t, len(clipped), logMessageLimit)
		require.True(t, utf8.ValidString(clipped))
	})
}
