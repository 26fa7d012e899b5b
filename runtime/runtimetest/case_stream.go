package runtimetest

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The WebSocket protocols of the kubelet's clients, and the channels of the first.
const (
	commandProtocol     = "v4.channel.k8s.io"
	portForwardProtocol = "v4.channel.k8s.io"

	channelStdin, channelStdout, channelError = 0, 1, 3
)

// openStream connects to a URL of the streaming server as a kubelet does, or ends
// the case.
func (c *CaseT) openStream(address, protocol, what string) *websocket.Conn {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		c.fatal("%s: the runtime returned the URL %q, which names no server", what, address)
	}
	scheme := map[string]string{"http": "ws", "https": "wss"}[u.Scheme]
	if scheme == "" {
		c.fatal("%s: the runtime returned the URL %q, want http or https", what, address)
	}
	httpScheme := u.Scheme
	u.Scheme = scheme
	cfg, err := websocket.NewConfig(u.String(), "http://localhost")
	c.ok(err, what)
	cfg.Protocol = []string{protocol}
	raw, err := c.s.dialStream(c.ctx, &url.URL{Scheme: httpScheme, Host: u.Host})
	var conn *websocket.Conn
	if err == nil {
		conn, err = websocket.NewClient(cfg, raw)
	}
	if err != nil {
		c.fatal("%s: the streaming server of the runtime does not answer at the URL that it returned: %v", what, err)
	}
	context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	c.ok(conn.SetDeadline(c.streamDeadline()), what)
	return conn
}

// readUntil reads standard output until it contains text, or ends the case.
func (c *CaseT) readUntil(conn *websocket.Conn, text, what string) {
	var out strings.Builder
	for !strings.Contains(out.String(), text) {
		var msg []byte
		if err := websocket.Message.Receive(conn, &msg); err != nil {
			c.fatal("%s: the stream ended without %q, after %q: %v", what, text, out.String(), err)
		}
		if len(msg) > 0 && msg[0] == channelStdout {
			out.Write(msg[1:])
		}
	}
}

// readStatus reads until the error channel reports the result of the command.
func (c *CaseT) readStatus(conn *websocket.Conn, what string) string {
	for {
		var msg []byte
		if err := websocket.Message.Receive(conn, &msg); err != nil {
			c.fatal("%s: the stream ended without a result: %v", what, err)
		}
		if len(msg) > 1 && msg[0] == channelError {
			return string(msg[1:])
		}
	}
}

// rejectedStream expects that a call for a stream fails, or that the stream does.
func (c *CaseT) rejectedStream(address string, err error, what string) {
	if err != nil {
		if status.Code(err) == codes.Unimplemented {
			c.implemented(err, what)
		}
		return
	}
	result := c.readStatus(c.openStream(address, commandProtocol, what), what)
	c.check(strings.Contains(result, `"Failure"`), "%s: the result is %s", what, result)
}

func streamCases() []testCase {
	return []testCase{
		{"a command can be run with streams", "kubectl exec would not work", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			r, err := c.rs.Exec(c.ctx, &v1.ExecRequest{ContainerId: id, Cmd: []string{"echo", "hi"}, Stdout: true, Stderr: true})
			c.implemented(err, "Exec")
			conn := c.openStream(r.GetUrl(), commandProtocol, "exec")
			c.readUntil(conn, "hi\n", "exec")
			result := c.readStatus(conn, "exec")
			c.check(strings.Contains(result, `"Success"`), "exec: result of a command that succeeds: %s", result)
		}},
		{"a command that is run with streams returns its exit code", "kubectl exec would not know failure from success", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			r, err := c.rs.Exec(c.ctx, &v1.ExecRequest{ContainerId: id, Cmd: sh("exit 3"), Stdout: true, Stderr: true})
			c.implemented(err, "Exec")
			result := c.readStatus(c.openStream(r.GetUrl(), commandProtocol, "exec"), "exec")
			c.check(strings.Contains(result, `"Failure"`) && strings.Contains(result, `"3"`), "exec: result of a command that exits with 3: %s", result)
		}},
		{"a client can attach to a container", "kubectl attach would not work", processes, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "read line; echo read $line; sleep 1000", func(cfg *v1.ContainerConfig) { cfg.Stdin = true })
			r, err := c.rs.Attach(c.ctx, &v1.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
			c.implemented(err, "Attach")
			conn := c.openStream(r.GetUrl(), commandProtocol, "attach")
			c.ok(websocket.Message.Send(conn, append([]byte{channelStdin}, "input\n"...)), "attach: send input")
			c.readUntil(conn, "read input\n", "attach")
			p.logged("c/0.log", "stdout F read input")
		}},
		{"a port of a pod can be forwarded", "kubectl port-forward would not work", 0, func(c *CaseT) {
			p := c.pod("p")
			p.start("c", longRunTime)
			r, err := c.rs.PortForward(c.ctx, &v1.PortForwardRequest{PodSandboxId: p.id, Port: []int32{8080}})
			c.implemented(err, "PortForward")
			u := r.GetUrl()
			if !strings.Contains(u, "port=") { // the kubelet's WebSocket clients name the port
				u += "?port=8080"
			}
			conn := c.openStream(u, portForwardProtocol, "port-forward")
			c.check(conn.IsClientConn(), "port-forward: no connection")
		}},
		{"streams of unknown containers are refused", "kubectl exec would hang", 0, func(c *CaseT) {
			for what, call := range map[string]func() error{
				"exec": func() error {
					_, err := c.rs.Exec(c.ctx, &v1.ExecRequest{ContainerId: unknownID, Cmd: []string{"echo"}, Stdout: true})
					return err
				},
				"attach": func() error {
					_, err := c.rs.Attach(c.ctx, &v1.AttachRequest{ContainerId: unknownID, Stdout: true})
					return err
				},
				"port-forward": func() error {
					_, err := c.rs.PortForward(c.ctx, &v1.PortForwardRequest{PodSandboxId: unknownID})
					return err
				},
			} {
				c.rejected(call(), fmt.Sprintf("%s in what does not exist", what))
			}
		}},
		{"streams of an ended container are refused", "kubectl exec and attach would hang", 0, func(c *CaseT) {
			id := c.pod("p").start("c", "exit 0")
			c.exited(id)
			exec, err := c.rs.Exec(c.ctx, &v1.ExecRequest{ContainerId: id, Cmd: []string{"echo", "hi"}, Stdout: true, Stderr: true})
			c.rejectedStream(exec.GetUrl(), err, "exec in an ended container")
			attach, err := c.rs.Attach(c.ctx, &v1.AttachRequest{ContainerId: id, Stdout: true, Stderr: true})
			c.rejectedStream(attach.GetUrl(), err, "attach to an ended container")
		}},
	}
}
