package browsertest

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
)

// verdict records how a test ends.
type verdict struct {
	testing.TB
	end string
}

func (v *verdict) Helper()      {}
func (v *verdict) Skip(...any)  { v.end = "skipped"; runtime.Goexit() }
func (v *verdict) Fatal(...any) { v.end = "failed"; runtime.Goexit() }

// A pipeline does not pass by looking at nothing.
func TestPath_WithoutABrowser(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for ci, want := range map[string]string{"": "skipped", "true": "failed"} {
		t.Setenv("CI", ci)
		v := &verdict{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Path(v)
		}()
		<-done
		assert.Equal(t, want, v.end, "CI=%q", ci)
	}
}
