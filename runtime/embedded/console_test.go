package embedded

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// However output is cut into writes, the log says what was written.
func TestContainerStreams_LogWhatWasWritten(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var text strings.Builder
		for range rnd.IntN(40) {
			text.WriteString(strings.Repeat("x", rnd.IntN(2*maxLine)>>rnd.IntN(15)))
			if rnd.IntN(3) > 0 {
				text.WriteByte('\n')
			}
		}
		path := filepath.Join(t.TempDir(), "log")
		c := newContainerStreams(path, &v1.ContainerConfig{})
		for rest := text.String(); rest != ""; {
			n := min(len(rest), 1+rnd.IntN(8000))
			_, err := c.io().Stdout.Write([]byte(rest[:n]))
			require.NoError(t, err)
			rest = rest[n:]
		}
		c.close()
		var got strings.Builder
		b, err := os.ReadFile(path)
		if err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
		for l := range strings.Lines(string(b)) {
			_, l, _ = strings.Cut(strings.TrimSuffix(l, "\n"), " ")
			part, isPart := strings.CutPrefix(l, "stdout P ")
			if !isPart {
				part = strings.TrimPrefix(l, "stdout F ") + "\n"
			}
			require.LessOrEqual(t, len(part), maxLine+1)
			got.WriteString(part)
		}
		want := text.String()
		if want != "" && !strings.HasSuffix(want, "\n") {
			want += "\n" // what no newline ended is a line of its own
		}
		require.True(t, want == got.String(), "the log differs from the output")
	}
}

// write writes output of a container.
func (c *containerStreams) write(t *testing.T, text string) {
	t.Helper()
	_, err := c.io().Stdout.Write([]byte(text))
	require.NoError(t, err)
}

// loggedLines returns the lines of a log file, without the headers of entries.
func loggedLines(t *testing.T, path string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	for l := range strings.Lines(string(b)) {
		if _, text, ok := strings.Cut(l, " stdout F "); ok {
			l = text
		}
		lines = append(lines, l)
	}
	return lines
}

func TestContainerStreams_LogAfterAFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	c := newContainerStreams(path, &v1.ContainerConfig{})
	defer c.close()
	c.write(t, "one\n")
	require.NoError(t, c.file.Close())
	c.write(t, "lost\n")
	c.write(t, "two\n")
	c.write(t, "three\n")
	assert.Equal(t, []string{"one\n", "two\n", "three\n"}, loggedLines(t, path))
}

func TestContainerStreams_LogOnceTheDirectoryCanBeCreated(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "parent")
	require.NoError(t, os.WriteFile(parent, nil, 0o600))
	path := filepath.Join(parent, "c", "log")
	c := newContainerStreams(path, &v1.ContainerConfig{})
	defer c.close()
	c.write(t, "lost\n")
	require.NoError(t, os.Remove(parent))
	require.NoError(t, os.Mkdir(parent, 0o700))
	c.write(t, "two\n")
	assert.Equal(t, []string{"two\n"}, loggedLines(t, path))
}

// A disk that is full in the middle of an entry does not spoil the next one.
func TestContainerStreams_EndATornEntry(t *testing.T) {
	for name, tc := range map[string]struct {
		next func(c *containerStreams) error
		want []string
	}{
		"in the same file":  {func(*containerStreams) error { return nil }, []string{"one\n", "\n", "two\n", "three\n"}},
		"not in a new file": {(*containerStreams).rotate, []string{"two\n", "three\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			c := newContainerStreams(path, &v1.ContainerConfig{})
			defer c.close()
			c.write(t, "one\n")

			r, w, err := os.Pipe() // it takes the first bytes and then fails, as a full disk
			require.NoError(t, err)
			require.NoError(t, c.file.Close())
			c.file = w
			failed := make(chan error, 1)
			go func() {
				_, err := r.Read(make([]byte, 1))
				failed <- errors.Join(err, r.Close())
			}()
			c.write(t, strings.Repeat("x", 1<<20)+"\n") // more than any pipe has room for
			require.NoError(t, <-failed)

			require.NoError(t, tc.next(c))
			c.write(t, "two\n")
			c.write(t, "three\n")
			assert.Equal(t, tc.want, loggedLines(t, path))
		})
	}
}

// rotate renames the log file and opens a new one.
func (c *containerStreams) rotate() error {
	return errors.Join(os.Rename(c.path, c.path+".1"), c.reopen())
}
