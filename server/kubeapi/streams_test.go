package kubeapi_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/server"
	"github.com/sublet-dev/agent/server/kubeapi"
)

// fakeStreams is a server.Streamer that prepares nothing. It has the last options.
type fakeStreams struct {
	exec  *corev1.PodExecOptions
	ports []int32
}

var errNoStream = errors.New("no stream")

func (f *fakeStreams) ExecURL(_ context.Context, _ *corev1.Pod, o *corev1.PodExecOptions) (*url.URL, error) {
	f.exec = o
	return nil, errNoStream
}

func (*fakeStreams) AttachURL(context.Context, *corev1.Pod, *corev1.PodAttachOptions) (*url.URL, error) {
	return nil, errNoStream
}

func (f *fakeStreams) PortForwardURL(_ context.Context, _ *corev1.Pod, o *corev1.PodPortForwardOptions) (*url.URL, error) {
	f.ports = o.Ports
	return nil, errNoStream
}

// What clients ask for arrives at the node, however they write it.
func TestStream_Parameters(t *testing.T) {
	f := &fakeStreams{}
	e := newEnv(t, func(_ *kubeapi.Config, srv *server.Config) { srv.Streams = f })
	e.setPods(staticPod("a", nil))
	webSocket := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Protocol", "v4.channel.k8s.io"}
	for query, want := range map[string]corev1.PodExecOptions{
		"stdout=true&stdin=false":                       {Stdout: true},
		"stdout=1&stdin=0&tty=1":                        {Stdout: true, TTY: true},
		"stdout=True&stderr=True&stdin=False&tty=False": {Stdout: true, Stderr: true}, // of Python's client
		"stdout&stdin=True":                             {Stdout: true, Stdin: true},
	} {
		want.Container, want.Command = "main", []string{"id", "-u"}
		res := e.get(pods+"/a/exec?command=id&command=-u&"+query, webSocket...)
		assert.Equal(t, http.StatusInternalServerError, res.code, query)
		assert.Contains(t, res.status(t).Message, "no stream", query)
		assert.Equal(t, want, *f.exec, query)
	}
	assert.Equal(t, metav1.StatusReasonBadRequest, e.get(pods+"/a/exec?command=id&stdout=False", webSocket...).status(t).Reason)

	res := e.get(pods+"/a/portforward?ports=80&ports=443,8080", webSocket...)
	assert.Contains(t, res.status(t).Message, "no stream", res.body)
	assert.Equal(t, []int32{80, 443, 8080}, f.ports)
	assert.Contains(t, e.get(pods+"/a/portforward", webSocket...).status(t).Message, "port")
}
