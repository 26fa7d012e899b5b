package podstream_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sublet-dev/agent/internal/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m,
		// A server whose client has gone before it opened its streams waits for them up to 30 s.
		goleak.IgnoreAnyFunction("k8s.io/cri-streaming/pkg/streaming/remotecommand.(*v4ProtocolHandler).waitForStreams"),
		// The library waits in the background for streams of a closed connection: for the answer to one that it opens up to 30 s.
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Stream).WaitTimeout"),
		goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"),
		// It never closes a stream whose client has gone before the server answered: a leak of the library.
		goleak.IgnoreAnyFunction("github.com/moby/spdystream.(*Stream).waitWriteReply"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}
