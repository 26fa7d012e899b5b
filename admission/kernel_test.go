package admission_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/admission"
)

func TestKernelRelease(t *testing.T) {
	if _, err := os.Stat("/proc/sys/kernel/osrelease"); err != nil {
		assert.Empty(t, admission.KernelRelease())
		return
	}
	assert.Regexp(t, regexp.MustCompile(`^\d+\.\d+\S*$`), admission.KernelRelease())
}
