package runtimetest

import (
	"context"
	"net"
	"strconv"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const loopback = "127.0.0.1"

// freePort returns a TCP port of this machine that is free.
func (c *CaseT) freePort() int32 {
	lis, err := new(net.ListenConfig).Listen(c.ctx, "tcp", net.JoinHostPort(loopback, "0"))
	c.ok(err, "find a free port")
	defer func() { _ = lis.Close() }() // it only was to find the port
	if a, ok := lis.Addr().(*net.TCPAddr); ok {
		return int32(a.Port) //nolint:gosec // a port
	}
	c.fatal("find a free port: %v", lis.Addr())
	return 0
}

func hostPortCases() []testCase {
	return []testCase{
		{"a host port reaches its pod", "hostPort would be ignored", hostPorts, func(c *CaseT) {
			host := c.freePort()
			p, _ := c.server(func(m *v1.PortMapping) { m.HostPort, m.HostIp = host, loopback })
			c.answered(p, "host_port "+strconv.Itoa(int(host)), func() (string, error) { return askPort(c.ctx, host) })
			c.ok(p.stop(), "stop pod")
			conn, err := dialPort(c.ctx, host)
			if err == nil {
				_ = conn.Close()
			}
			c.check(err != nil, "host_port %d is served after its pod was stopped; the next pod cannot have it", host)
		}},
	}
}

func dialPort(ctx context.Context, port int32) (net.Conn, error) {
	return (&net.Dialer{Timeout: streamTimeout}).DialContext(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(int(port))))
}

// askPort sends a request to a port of this machine and returns what answers.
func askPort(ctx context.Context, port int32) (string, error) {
	conn, err := dialPort(ctx, port)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // the answer is all
	if err := conn.SetDeadline(time.Now().Add(streamTimeout)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return "", err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	return string(answer[:n]), err
}
