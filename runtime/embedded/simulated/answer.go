package simulated

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/sleep"
)

// DialPod implements embedded.Dialer: a container of the pod that runs and listens at the port
// answers as its script says, HTTP, HTTPS and the health protocol of gRPC alike.
func (s *Executor) DialPod(ctx context.Context, pod *v1.PodSandboxConfig, port int32) (net.Conn, error) {
	s.mu.Lock()
	running := slices.Clone(s.pods[pod])
	s.mu.Unlock()
	for _, p := range running {
		if !p.listens(port) {
			continue
		}
		if err := sleep.For(ctx, p.script.AnswerDelay); err != nil {
			return nil, err
		}
		ours, theirs := net.Pipe()
		if p.accept(ours) {
			return theirs, nil
		}
	}
	return nil, fmt.Errorf("dial pod %s:%d: %w", pod.GetMetadata().GetName(), port, syscall.ECONNREFUSED)
}

// runs records that a process of a pod runs, or has exited.
func (s *Executor) runs(p *process, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := slices.DeleteFunc(s.pods[p.c.Pod], func(other *process) bool { return other == p })
	if yes {
		of = append(of, p)
	}
	if len(of) == 0 {
		delete(s.pods, p.c.Pod)
		return
	}
	if s.pods == nil {
		s.pods = map[*v1.PodSandboxConfig][]*process{}
	}
	s.pods[p.c.Pod] = of
}

// listens reports whether the container listens on a port.
func (p *process) listens(port int32) bool {
	if time.Since(p.start) < p.script.ListenAfter {
		return false
	}
	return p.script.Ports == nil || slices.Contains(p.script.Ports, port)
}

// accept serves a connection in a goroutine that ends with the connection, which ends
// with the container. It reports whether the container still runs.
func (p *process) accept(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.endsWith(conn) {
		return false
	}
	go func() {
		defer p.hangUp(conn)
		p.answer(conn)
	}()
	return true
}

// endsWith has c closed at the end of the container, and reports false if that has come. p.mu is held.
func (p *process) endsWith(c io.Closer) bool {
	if p.ended {
		return false
	}
	if p.closers == nil {
		p.closers = map[io.Closer]struct{}{}
	}
	p.closers[c] = struct{}{}
	return true
}

func (p *process) hangUp(conn net.Conn) {
	p.mu.Lock()
	delete(p.closers, conn)
	p.mu.Unlock()
	_ = conn.Close()
}

// answer detects the protocol and serves it.
func (p *process) answer(conn net.Conn) {
	const handshake = 0x16 // the first byte of TLS
	r := bufio.NewReader(conn)
	first, err := r.Peek(1)
	if err != nil {
		return // a TCP probe: it only connects
	}
	if first[0] == handshake {
		cfg, err := certificate()
		if err != nil {
			return
		}
		p.answer(tls.Server(peeked{conn, r}, cfg))
		return
	}
	if preface, err := r.Peek(3); err == nil && string(preface) == "PRI" { // HTTP/2: gRPC
		p.health(peeked{conn, r})
		return
	}
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		resp := &http.Response{
			StatusCode: int(p.status(p.script.HTTPStatus, p.script.HTTPStatusAt, http.StatusOK)), ProtoMajor: 1, ProtoMinor: 1, Request: req,
			Body: io.NopCloser(bytes.NewReader(nil)), Close: req.Close,
		}
		if resp.Write(conn) != nil || req.Close {
			return
		}
	}
}

// request counts a request and returns the number of those before it.
func (p *process) request() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	return p.requests - 1
}

// status returns the answer to the next request: by time, in order, or def.
func (p *process) status(inOrder []int32, byTime []AnswerPoint, def int32) int32 {
	n, since := p.request(), time.Since(p.start)
	if len(byTime) == 0 {
		return nthOr(inOrder, n, def)
	}
	for _, a := range byTime {
		if a.At > since {
			break
		}
		def = a.Code
	}
	return def
}

// nthOr returns the n-th of codes, the last one for larger n, or def if there are none.
func nthOr(codes []int32, n int, def int32) int32 {
	if len(codes) == 0 {
		return def
	}
	return byAttempt(codes, n)
}

// peeked is a connection with bytes that were read ahead.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

// health serves the health protocol of gRPC on one connection.
func (p *process) health(conn net.Conn) {
	one := &oneConn{conn: conn, done: make(chan struct{})}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, healthServer{p: p})
	_ = server.Serve(one) // ends with the connection
	server.Stop()
}

type healthServer struct {
	grpc_health_v1.UnimplementedHealthServer
	p *process
}

// Check implements the health protocol; all services have one status.
func (h healthServer) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	serving := h.p.status(h.p.script.GRPCStatus, h.p.script.GRPCStatusAt, int32(grpc_health_v1.HealthCheckResponse_SERVING))
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_ServingStatus(serving)}, nil
}

// oneConn is a listener with one connection, which is closed with it.
type oneConn struct {
	conn     net.Conn
	accepted sync.Once
	closed   sync.Once
	done     chan struct{}
}

// Accept returns the connection, and then waits until it is closed.
func (l *oneConn) Accept() (conn net.Conn, err error) {
	l.accepted.Do(func() { conn = closing{l.conn, l} })
	if conn != nil {
		return conn, nil
	}
	<-l.done
	return nil, io.EOF
}

func (l *oneConn) Close() error {
	l.closed.Do(func() { close(l.done) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

// closing closes its listener with the connection.
type closing struct {
	net.Conn
	lis *oneConn
}

func (c closing) Close() error {
	_ = c.lis.Close()
	return c.Conn.Close()
}

// certificate returns the configuration of a simulated HTTPS server, with a new
// self-signed certificate. Probes do not verify it.
func certificate() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"http/1.1"}}, nil
}
