//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// upgraded turns a URL into a SPDY connection, as crictl's default transport does.
// Package stream has tests of both transports.
func (c critest) upgraded(url, protocol string) httpstream.Connection {
	rt, err := spdy.NewRoundTripper(nil)
	require.NoError(c, err)
	req, err := http.NewRequestWithContext(c.Context(), http.MethodPost, url, nil)
	require.NoError(c, err)
	req.Header.Set("X-Stream-Protocol-Version", protocol)
	resp, err := rt.RoundTrip(req)
	require.NoError(c, err)
	conn, err := rt.NewConnection(resp)
	require.NoError(c, err)
	c.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (c critest) open(conn httpstream.Connection, kind string, more ...string) httpstream.Stream {
	h := http.Header{"streamType": {kind}}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = []string{more[i+1]}
	}
	st, err := conn.CreateStream(h)
	require.NoError(c, err)
	return st
}

// streamCases are the commands that stream, and the cases of critest that do.
func streamCases() map[string]func(critest) {
	sleep := func(c critest) string { return c.inNewPod(&v1.ContainerConfig{Command: []string{"sleep", "1000"}}) }
	return map[string]func(critest){
		"exec -it": func(c critest) {
			resp, err := c.rs.Exec(c.Context(), &v1.ExecRequest{ContainerId: sleep(c)[:13], Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true})
			require.NoError(c, err)
			conn := c.upgraded(resp.GetUrl(), "v4.channel.k8s.io")
			failure, in, out := c.open(conn, "error"), c.open(conn, "stdin"), c.open(conn, "stdout")
			resize := c.open(conn, "resize")
			_, err = io.WriteString(resize, `{"Width":77,"Height":33}`+"\n")
			require.NoError(c, err)
			_, err = io.WriteString(in, "while [ \"$(stty size)\" != '33 77' ]; do sleep 0.01; done; echo the height is $((30+3)); exit 4\n")
			require.NoError(c, err)
			text, err := io.ReadAll(out)
			require.NoError(c, err)
			assert.Contains(c, string(text), "the height is 33\r\n", "the echo of what was typed has no 33")
			message, err := io.ReadAll(failure)
			require.NoError(c, err)
			assert.Contains(c, string(message), `"4"`, "crictl exits with the command's code")
		},
		"exec -i": func(c critest) {
			resp, err := c.rs.Exec(c.Context(), &v1.ExecRequest{ContainerId: sleep(c), Cmd: []string{"sh", "-c", "cat; echo end >&2"}, Stdin: true, Stdout: true, Stderr: true})
			require.NoError(c, err)
			conn := c.upgraded(resp.GetUrl(), "v4.channel.k8s.io")
			_, in, out, errOut := c.open(conn, "error"), c.open(conn, "stdin"), c.open(conn, "stdout"), c.open(conn, "stderr")
			_, err = io.WriteString(in, "to cat")
			require.NoError(c, err)
			require.NoError(c, in.Close())
			text, err := io.ReadAll(out)
			require.NoError(c, err)
			message, err := io.ReadAll(errOut)
			require.NoError(c, err)
			assert.Equal(c, "to cat end\n", string(text)+" "+string(message))
		},
		"attach -i": func(c critest) { // critest: "runtime should support attach"
			id := c.inNewPod(&v1.ContainerConfig{Command: []string{"/bin/sh"}, Stdin: true})
			resp, err := c.rs.Attach(c.Context(), &v1.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
			require.NoError(c, err)
			conn := c.upgraded(resp.GetUrl(), "v4.channel.k8s.io")
			_, in, out := c.open(conn, "error"), c.open(conn, "stdin"), c.open(conn, "stdout")
			c.open(conn, "stderr")
			_, err = io.WriteString(in, "echo -n hello\n")
			require.NoError(c, err)
			word := make([]byte, 5)
			_, err = io.ReadFull(out, word)
			require.NoError(c, err)
			assert.Equal(c, "hello", string(word))
			require.NoError(c, in.Close(), "the client goes")
			time.Sleep(50 * time.Millisecond)
			assert.Equal(c, v1.ContainerState_CONTAINER_RUNNING, c.container(id).GetState(), "without StdinOnce the container stays")
		},
		"attach -i, once": func(c critest) { // critest: the shell ends with its input, and attach with the shell
			id := c.inNewPod(&v1.ContainerConfig{Command: []string{"/bin/sh"}, Stdin: true, StdinOnce: true})
			resp, err := c.rs.Attach(c.Context(), &v1.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
			require.NoError(c, err)
			conn := c.upgraded(resp.GetUrl(), "v4.channel.k8s.io")
			_, in, out := c.open(conn, "error"), c.open(conn, "stdin"), c.open(conn, "stdout")
			c.open(conn, "stderr")
			_, err = io.WriteString(in, "echo -n hello\n")
			require.NoError(c, err)
			require.NoError(c, in.Close())
			text, err := io.ReadAll(out)
			require.NoError(c, err)
			assert.Equal(c, "hello", string(text))
			require.Eventually(c, func() bool { return c.container(id).GetState() == v1.ContainerState_CONTAINER_EXITED }, time.Minute, 5*time.Millisecond)
		},
		"port-forward": func(c critest) { c.forward(&v1.PodSandboxConfig{}) },
		"runtime should support portforward in host network": func(c critest) {
			c.forward(&v1.PodSandboxConfig{Linux: &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{
				NamespaceOptions: &v1.NamespaceOption{Network: v1.NamespaceMode_NODE},
			}}})
		},
	}
}

// forward fetches the page of a web server through the runtime.
func (c critest) forward(config *v1.PodSandboxConfig) {
	port := freePort(c)
	pod, config := c.pod(config)
	c.started(pod, config, c.web(port))
	c.page("127.0.0.1", port)
	resp, err := c.rs.PortForward(c.Context(), &v1.PortForwardRequest{PodSandboxId: pod[:13]})
	require.NoError(c, err)
	conn := c.upgraded(resp.GetUrl(), "portforward.k8s.io")
	for i := range 2 { // a connection after another
		with := []string{"port", fmt.Sprint(port), "requestID", fmt.Sprint(i)}
		failure, data := c.open(conn, "error", with...), c.open(conn, "data", with...)
		_, err = io.WriteString(data, "GET / HTTP/1.0\r\n\r\n")
		require.NoError(c, err)
		page, err := http.ReadResponse(bufio.NewReader(data), nil)
		require.NoError(c, err)
		text, err := io.ReadAll(page.Body)
		require.NoError(c, err)
		require.NoError(c, page.Body.Close())
		assert.True(c, strings.Contains(string(text), "Welcome"))
		message, err := io.ReadAll(failure)
		require.NoError(c, err)
		assert.Empty(c, string(message))
	}
}
