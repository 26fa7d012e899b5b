package embedded_test

import (
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/embedded"
)

// runtime/cri finds the capability of a connection by assertion.
var (
	_ runtime.PodDialer = (*embedded.Conn)(nil)
	_ runtime.PodDialer = (*embedded.Runtime)(nil)
)
