package runtimetest

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A value that is empty or has line breaks is quoted, so that the end of the message can be found.
func TestSame_QuotesWhatIsHardToSee(t *testing.T) {
	c := &CaseT{}
	same(c, "out\n", "out\nerr\n", "stdout")
	same(c, "err", "", "stderr")
	same(c, "Completed", "Error", "reason")
	same(c, 42, 0, "exit code")
	same(c, "", "", "nothing")
	assert.Equal(t, []string{
		`stdout is "out\nerr\n", want "out\n"`, `stderr is "", want err`, "reason is Error, want Completed", "exit code is 0, want 42",
	}, c.failures)
}
