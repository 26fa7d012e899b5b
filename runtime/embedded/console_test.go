package embedded

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
