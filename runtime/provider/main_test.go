package provider_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sublet-dev/agent/internal/leaktest"
)

func TestMain(m *testing.M) {
	// The library waits in the background for streams of a closed connection.
	leaktest.Main(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}
