package logoptions_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/logoptions"
)

func TestParse_LeavesTheQueryAsItIs(t *testing.T) {
	query := url.Values{"tail": {"3"}}
	opts, err := logoptions.Parse(query)
	require.NoError(t, err)
	assert.Equal(t, int64(3), *opts.TailLines)
	assert.Equal(t, url.Values{"tail": {"3"}}, query)
}

func ExampleValidate() {
	opts, err := logoptions.Parse(url.Values{"tailLines": {"-1"}, "follow": {"true"}})
	fmt.Println(opts.Follow, err)
	fmt.Println(logoptions.Validate(opts).ToAggregate())
	// Output:
	// true <nil>
	// tailLines: Invalid value: -1: must be at least 0
}
