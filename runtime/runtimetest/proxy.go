package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/sublet-dev/agent/internal/sleep"
)

// Proxy forwards CRI calls to a runtime and injects faults by rules. Its methods may
// be called from any goroutine. It reads time from package time only, so that it
// works in a testing/synctest bubble.
type Proxy struct {
	to        grpc.ClientConnInterface
	seed      uint64
	startTime time.Time
	pods      *podIndex

	mu    sync.Mutex // guards the rest
	rules []*rule
	calls map[string]int
	lis   *bufconn.Listener
	srv   *grpc.Server
	wg    sync.WaitGroup
}

// rule is a Rule and its state.
type rule struct {
	Rule
	rnd     *rand.Rand // of Corrupt
	seed    uint64
	drawn   map[string]uint64 // random numbers drawn, by RPC and pod
	matched int               // calls that matched, with those that passed
	hit     int               // calls with a fault
}

// draw returns the next random number within 0..1 for a call. Each pod has a sequence
// of its own, so that concurrent calls get theirs in any order.
func (r *rule) draw(rpc, pod string) float64 {
	key := rpc + " " + pod
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	r.drawn[key]++
	return rand.New(rand.NewPCG(r.seed^h.Sum64(), r.drawn[key])).Float64()
}

// NewProxy returns a proxy in front of to. The same seed, rules and calls give the
// same faults.
func NewProxy(to grpc.ClientConnInterface, seed uint64, rules ...Rule) (*Proxy, error) {
	p := &Proxy{to: to, seed: seed, startTime: time.Now(), calls: map[string]int{}, pods: newPodIndex()}
	return p, p.SetRules(rules...)
}

// SetRules replaces the rules. Calls in progress keep theirs. Without rules the proxy
// only forwards.
func (p *Proxy) SetRules(rules ...Rule) error {
	var errs []error
	next := make([]*rule, len(rules))
	for i, r := range rules {
		errs = append(errs, r.check())
		seed := p.seed + uint64(i)<<32
		next[i] = &rule{Rule: r, rnd: rand.New(rand.NewPCG(seed, 0)), seed: seed, drawn: map[string]uint64{}}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = next
	return nil
}

// CallCounts returns how often each RPC was called so far, successfully or not.
func (p *Proxy) CallCounts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.calls)
}

// FaultCounts returns the number of faults that each of the current rules injected.
func (p *Proxy) FaultCounts() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	hits := make([]int, len(p.rules))
	for i, r := range p.rules {
		hits[i] = r.hit
	}
	return hits
}

// server returns a gRPC server that forwards every method.
func (p *Proxy) server() *grpc.Server {
	return grpc.NewServer(grpc.UnknownServiceHandler(p.handle), grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))
}

// Serve serves on lis, which it closes, until ctx ends, and returns nil then.
func (p *Proxy) Serve(ctx context.Context, lis net.Listener) error {
	s := p.server()
	defer context.AfterFunc(ctx, s.Stop)()
	if err := s.Serve(lis); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// Conn is a connection through a Proxy. Its Unwrap keeps the capabilities of the
// connection behind the proxy, such as dialing the pods of an embedded runtime: no rule
// applies to them.
type Conn struct {
	*grpc.ClientConn
	to grpc.ClientConnInterface
}

// Unwrap returns the connection behind the proxy.
func (c *Conn) Unwrap() any { return c.to }

// Dial returns a connection through the proxy, in memory. The caller closes it, and
// the proxy after it.
func (p *Proxy) Dial() (*Conn, error) {
	p.mu.Lock()
	if p.lis == nil {
		lis, srv := bufconn.Listen(256<<10), p.server()
		p.lis, p.srv = lis, srv
		p.wg.Go(func() { _ = srv.Serve(lis) }) // ends with Close
	}
	lis := p.lis
	p.mu.Unlock()
	cc, err := grpc.NewClient("passthrough:///proxy",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	return &Conn{ClientConn: cc, to: p.to}, nil
}

// Close stops the server behind Dial and all calls in progress.
func (p *Proxy) Close() {
	p.mu.Lock()
	srv := p.srv
	p.srv, p.lis = nil, nil
	p.mu.Unlock()
	if srv != nil {
		srv.Stop()
		p.wg.Wait()
	}
}

// choose counts the call and returns the rules that apply to it, in order.
func (p *Proxy) choose(rpc string, req proto.Message) []*rule {
	since := time.Since(p.startTime)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[rpc]++
	var chosen []*rule
	for _, r := range p.rules {
		if ok, _ := path.Match(r.RPC, rpc); r.RPC != "" && !ok {
			continue
		}
		if since < r.From || r.Until > 0 && since >= r.Until || r.Pod != "" && !p.pods.matches(req, r.Pod) {
			continue
		}
		r.matched++
		if r.matched <= r.Skip || r.Count > 0 && r.hit >= r.Count || r.Probability > 0 && r.draw(rpc, p.pods.pod(req).GetName()) >= r.Probability {
			continue
		}
		r.hit++
		chosen = append(chosen, r)
	}
	return chosen
}

// method returns the descriptor of a gRPC method of the CRI.
func method(full string) (protoreflect.MethodDescriptor, error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, status.Errorf(codes.Unimplemented, "proxy: service %s not found", service)
	}
	s, ok := d.(protoreflect.ServiceDescriptor)
	if !ok || s.Methods().ByName(protoreflect.Name(name)) == nil {
		return nil, status.Errorf(codes.Unimplemented, "proxy: method %s not found", full)
	}
	return s.Methods().ByName(protoreflect.Name(name)), nil
}

func newMessage(d protoreflect.MessageDescriptor) (proto.Message, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, status.Errorf(codes.Internal, "proxy: %v", err)
	}
	return t.New().Interface(), nil
}

// handle serves one call.
func (p *Proxy) handle(_ any, client grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(client)
	d, err := method(full)
	if err != nil {
		return err
	}
	req, err := newMessage(d.Input())
	if err != nil {
		return err
	}
	if err := client.RecvMsg(req); err != nil {
		return err
	}
	c := &call{Proxy: p, rpc: string(d.Name()), full: full, d: d, req: req, client: client}
	c.rules = p.choose(c.rpc, req)
	err = c.serve(client.Context())
	if err != nil && !errors.Is(err, io.EOF) {
		if _, ok := status.FromError(err); !ok {
			return status.FromContextError(err).Err()
		}
		return err
	}
	return nil
}

// call is one call in progress.
type call struct {
	*Proxy
	rpc, full string
	d         protoreflect.MethodDescriptor
	req       proto.Message
	client    grpc.ServerStream
	rules     []*rule
}

// fault returns the first rule of a kind.
func (c *call) fault(k FaultKind) *rule {
	for _, r := range c.rules {
		if r.Fault == k {
			return r
		}
	}
	return nil
}

func (c *call) serve(ctx context.Context) error {
	if r := c.fault(Delay); r != nil {
		if err := sleep.For(ctx, r.Delay); err != nil {
			return err
		}
	}
	if c.fault(Hang) != nil {
		<-ctx.Done()
		return ctx.Err()
	}
	if r := c.fault(Fail); r != nil {
		return status.Errorf(r.code(), "proxy: injected failure of %s", c.rpc)
	}
	if c.d.IsStreamingServer() {
		return c.stream(ctx)
	}
	return c.unary(ctx)
}

func (c *call) unary(ctx context.Context) error {
	resp, err := newMessage(c.d.Output())
	if err != nil {
		return err
	}
	drop := c.fault(Drop)
	work := ctx
	if drop != nil { // the call goes on when the client has given up
		work = context.WithoutCancel(ctx)
	}
	err = c.to.Invoke(work, c.full, c.req, resp)
	if err == nil {
		c.pods.learn(c.req, resp)
	}
	if drop != nil {
		if drop.Code != codes.OK {
			return status.Errorf(drop.Code, "proxy: injected loss of the response of %s", c.rpc)
		}
		<-ctx.Done()
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	c.corrupt(resp)
	return c.client.SendMsg(resp)
}

// corrupt changes a response if a rule demands it.
func (c *call) corrupt(resp proto.Message) {
	r := c.fault(Corrupt)
	switch {
	case r == nil:
	case r.Mutate != nil:
		r.Mutate(c.rpc, resp)
	default:
		c.mu.Lock()
		defer c.mu.Unlock()
		corrupt(r.rnd, resp)
	}
}

func (c *call) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up, err := c.to.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.full)
	if err != nil {
		return err
	}
	if err := errors.Join(up.SendMsg(c.req), up.CloseSend()); err != nil {
		return err
	}
	if md, err := up.Header(); err == nil {
		_ = c.client.SendHeader(md)
	}
	return c.relay(ctx, c.read(ctx, up))
}

// received is a message of the runtime, or the error that ended its stream.
type received struct {
	msg proto.Message
	err error
}

// read reads a stream until it or ctx ends.
func (c *call) read(ctx context.Context, up grpc.ClientStream) <-chan received {
	in := make(chan received)
	go func() {
		for {
			msg, err := newMessage(c.d.Output())
			if err == nil {
				err = up.RecvMsg(msg)
			}
			select {
			case in <- received{msg, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return in
}

// reorderTimeout bounds how long Reorder waits for a message to send before another.
const reorderTimeout = 200 * time.Millisecond

// relay forwards a stream with its faults.
func (c *call) relay(ctx context.Context, in <-chan received) error {
	var delayed proto.Message
	var expired <-chan time.Time
	for n := 0; ; n++ {
		if r := c.fault(BreakStream); r != nil && n >= r.After {
			return status.Errorf(r.code(), "proxy: injected break of the stream %s", c.rpc)
		}
		var out []proto.Message
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-expired:
			out, delayed, expired = []proto.Message{delayed}, nil, nil
		case got := <-in:
			switch {
			case got.err != nil && delayed != nil:
				return errors.Join(c.client.SendMsg(delayed), got.err)
			case got.err != nil:
				return got.err
			}
			c.pods.learn(c.req, got.msg)
			c.corrupt(got.msg)
			switch {
			case c.fault(Duplicate) != nil:
				out = []proto.Message{got.msg, got.msg}
			case c.fault(Reorder) != nil && delayed == nil:
				delayed, expired = got.msg, time.NewTimer(reorderTimeout).C
			case delayed != nil:
				out, delayed, expired = []proto.Message{got.msg, delayed}, nil, nil
			default:
				out = []proto.Message{got.msg}
			}
		}
		for _, m := range out {
			if err := c.client.SendMsg(m); err != nil {
				return fmt.Errorf("proxy: %w", err)
			}
		}
	}
}
