package runtimetest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/websocket"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const channelResize = 4

// untilSized ends when its terminal has 40 lines of 100 characters.
const untilSized = `while [ "$(stty size)" != "40 100" ]; do sleep 0.1; done; echo sized`

// execURL returns the URL of a command, or ends the case.
func (c *CaseT) execURL(req *v1.ExecRequest) string {
	r, err := c.rs.Exec(c.ctx, req)
	c.implemented(err, "Exec")
	return r.GetUrl()
}

// attachURL returns the URL of a container's streams, or ends the case.
func (c *CaseT) attachURL(req *v1.AttachRequest) string {
	r, err := c.rs.Attach(c.ctx, req)
	c.implemented(err, "Attach")
	return r.GetUrl()
}

func sessionCases() []testCase {
	return []testCase{
		{"a command reads its input to the end", "kubectl exec -i and kubectl cp would hang", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			s := c.openSession(c.execURL(&v1.ExecRequest{ContainerId: id, Cmd: []string{"cat"}, Stdin: true, Stdout: true, Stderr: true}),
				streamSet{in: true, errOut: true}, "exec over SPDY")
			s.send("one\ntwo")
			c.ok(s.in.Close(), "exec over SPDY: end the input")
			same(c, "one\ntwo", s.read(s.out, "stdout"), "exec over SPDY: output of cat, whose input has ended,")
			result := s.readResult("cat, whose input has ended")
			c.check(strings.Contains(result, `"Success"`), "exec over SPDY: result of a command that succeeds: %s", result)
		}},
		{"output, errors and exit code of a streamed command are kept apart", "kubectl exec would mix errors into files, and hide failures", 0, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			s := c.openSession(c.execURL(&v1.ExecRequest{ContainerId: id, Cmd: sh("echo out; echo err >&2; exit 3"), Stdout: true, Stderr: true}),
				streamSet{errOut: true}, "exec over SPDY")
			same(c, "out\n", s.read(s.out, "stdout"), "exec over SPDY: stdout")
			same(c, "err\n", s.read(s.errOut, "stderr"), "exec over SPDY: stderr")
			result := s.readResult("a command")
			c.check(strings.Contains(result, `"Failure"`) && strings.Contains(result, `"3"`), "exec over SPDY: result of a command that exits with 3: %s", result)
		}},
		{"a command has a terminal that can be resized", "kubectl exec -it would have no terminal, or one of the wrong size", processes, func(c *CaseT) {
			id := c.pod("p").start("c", longRunTime)
			req := &v1.ExecRequest{ContainerId: id, Cmd: sh("[ -t 0 ] && [ -t 1 ] || exit 8; " + untilSized), Tty: true, Stdin: true, Stdout: true}
			what := "exec with a terminal of 40 lines of 100 characters"
			s := c.openSession(c.execURL(req), streamSet{in: true, tty: true}, what+" over SPDY")
			s.size(100, 40)
			result := s.readResult("a command that waits for this size")
			c.check(strings.Contains(result, `"Success"`), "%s over SPDY: result of a command that exits with 8 without a terminal: %s", what, result)

			conn := c.openStream(c.execURL(req), commandProtocol, what)
			size, err := json.Marshal(map[string]uint16{"Width": 100, "Height": 40})
			c.ok(err, what)
			c.ok(websocket.Message.Send(conn, append([]byte{channelResize}, size...)), what)
			result = c.readStatus(conn, what)
			c.check(strings.Contains(result, `"Success"`), "%s: result of a command that exits with 8 without a terminal: %s", what, result)
		}},
		{"a client attaches to a terminal and resizes it", "kubectl attach -it would have no terminal, or one of the wrong size", processes, func(c *CaseT) {
			id := c.pod("p").start("c", "echo up; "+untilSized+"; sleep 1000", func(cfg *v1.ContainerConfig) { cfg.Stdin, cfg.Tty = true, true })
			what := "attach with a terminal of 40 lines of 100 characters"
			s := c.openSession(c.attachURL(&v1.AttachRequest{ContainerId: id, Tty: true, Stdin: true, Stdout: true}), streamSet{in: true, tty: true}, what)
			s.size(100, 40)
			var out strings.Builder
			for b := make([]byte, 512); !strings.Contains(out.String(), "sized"); {
				n, err := s.out.Read(b)
				out.Write(b[:n])
				if err != nil {
					c.fatal("%s: the container does not see its size; output %q: %v", what, out.String(), err)
				}
			}
		}},
		{"a client attaches over SPDY", "kubectl attach -i would not work with older clients", processes, func(c *CaseT) {
			p := c.pod("p")
			id := p.start("c", "read line; echo read $line; echo error >&2; sleep 1000", func(cfg *v1.ContainerConfig) { cfg.Stdin = true })
			s := c.openSession(c.attachURL(&v1.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true}), streamSet{in: true, errOut: true}, "attach over SPDY")
			s.send("input\n")
			for _, stream := range []struct {
				st   interface{ Read([]byte) (int, error) }
				want string
			}{{s.out, "read input\n"}, {s.errOut, "error\n"}} {
				b := make([]byte, 512)
				n, err := stream.st.Read(b)
				c.check(err == nil && string(b[:n]) == stream.want, "attach over SPDY: output %q, want %q: %v", b[:n], stream.want, err)
			}
			p.logged("c/0.log", "stdout F read input")
		}},
		{"the input of a container ends with its first client", "stdinOnce would be ignored; kubectl run -i with piped input would never end", 0, func(c *CaseT) {
			p := c.pod("p")
			id := p.create("c", []string{"cat"}, func(cfg *v1.ContainerConfig) { cfg.Stdin, cfg.StdinOnce = true, true })
			c.ok(c.start(id), "start container")
			s := c.openSession(c.attachURL(&v1.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true}), streamSet{in: true, errOut: true}, "attach over SPDY")
			s.send("a line\n")
			c.ok(s.in.Close(), "attach over SPDY: end the input")
			var st *v1.ContainerStatus
			c.until(20*time.Second, "stdin_once: the exit of a container that reads its input, after the end of its first client's", func() bool {
				st = c.status(id)
				return st.GetState() == exited
			})
			same(c, 0, st.GetExitCode(), "exit code")
			p.logged("c/0.log", "stdout F a line")
		}},
		{"data passes a forwarded port", "kubectl port-forward would connect, and transfer nothing", 0, func(c *CaseT) {
			p, port := c.server()
			ask := func() (string, error) {
				r, err := c.rs.PortForward(c.ctx, &v1.PortForwardRequest{PodSandboxId: p.id, Port: []int32{port}})
				c.implemented(err, "PortForward")
				conn := c.openSPDY(r.GetUrl(), spdyPortForwardProtocol, "port-forward over SPDY")
				defer func() { _ = conn.Close() }()
				return exchange(conn, port, "GET / HTTP/1.0\r\n\r\n")
			}
			c.answered(p, "port-forward over SPDY", ask)
			c.answered(p, "port-forward", func() (string, error) { return c.askWebSocket(p, port) })
		}},
	}
}

// server starts a container that answers at a port, with HTTP or a word.
func (c *CaseT) server(edits ...func(*v1.PortMapping)) (*pod, int32) {
	port := int32(20000 + rand.IntN(12000))
	p := c.pod("p", func(cfg *v1.PodSandboxConfig) {
		cfg.PortMappings = []*v1.PortMapping{{Protocol: v1.Protocol_TCP, ContainerPort: port}}
		for _, edit := range edits {
			edit(cfg.PortMappings[0])
		}
	})
	p.start("c", fmt.Sprintf(`N=nc; nc --help 2>&1 | grep -q BusyBox || N="busybox nc"; $N --help 2>&1 | grep -q -e -e || exit 9
while true; do $N -l -p %d -e echo HTTP || sleep 1; done`, port),
		annotate(map[string]string{"sim.sublet.dev/ports": strconv.Itoa(int(port))}))
	return p, port
}

// answered expects an answer of the server. It asks again while the server starts; an
// image without nc has none.
func (c *CaseT) answered(p *pod, what string, ask func() (string, error)) {
	var answer string
	var err error
	for deadline := c.streamDeadline(); time.Now().Before(deadline); c.wait(200 * time.Millisecond) {
		if answer, err = ask(); strings.Contains(answer, "HTTP") {
			return
		}
		for _, it := range c.containers(&v1.ContainerFilter{PodSandboxId: p.id}) {
			if st := c.status(it.GetId()); st.GetState() == exited && st.GetExitCode() == 9 {
				c.skipped("the image has no nc that serves a port")
			}
		}
	}
	c.fatal("%s: the pod does not answer at its port: %q, %v", what, answer, err)
}

// askWebSocket sends a request to a forwarded port by the kubelet's other protocol.
func (c *CaseT) askWebSocket(p *pod, port int32) (string, error) {
	const what = "port-forward"
	r, err := c.rs.PortForward(c.ctx, &v1.PortForwardRequest{PodSandboxId: p.id, Port: []int32{port}})
	c.implemented(err, "PortForward")
	u := r.GetUrl()
	if !strings.Contains(u, "port=") { // the kubelet's WebSocket clients name the port
		u += "?port=" + strconv.Itoa(int(port))
	}
	conn := c.openStream(u, portForwardProtocol, what)
	defer func() { _ = conn.Close() }()
	if err := websocket.Message.Send(conn, append([]byte{0}, "GET / HTTP/1.0\r\n\r\n"...)); err != nil {
		return "", err
	}
	for greeted := 0; ; {
		var msg []byte
		if err := websocket.Message.Receive(conn, &msg); err != nil {
			return "", err
		}
		switch {
		case len(msg) == 3 && greeted < 2: // each channel begins with the port
			greeted++
			c.check(int32(binary.LittleEndian.Uint16(msg[1:])) == port, "%s: channel %d begins with port %d, want %d", what, msg[0], binary.LittleEndian.Uint16(msg[1:]), port)
		case len(msg) > 1 && msg[0] == 0:
			return string(msg[1:]), nil
		case len(msg) > 1:
			return "", errors.New(string(msg[1:]))
		}
	}
}
