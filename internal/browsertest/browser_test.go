package browsertest

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
)

// recorder records how a test ends.
type recorder struct {
	testing.TB
	end string
}

func (r *recorder) Helper()      {}
func (r *recorder) Skip(...any)  { r.end = "skipped"; runtime.Goexit() }
func (r *recorder) Fatal(...any) { r.end = "failed"; runtime.Goexit() }

// A pipeline does not pass by looking at nothing.
func TestPath_WithoutABrowser(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for ci, want := range map[string]string{"": "skipped", "true": "failed"} {
		t.Setenv("CI", ci)
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Path(r)
		}()
		<-done
		assert.Equal(t, want, r.end, "CI=%q", ci)
	}
}
