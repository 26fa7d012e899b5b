package cri

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fake is a small CRI runtime in memory. It reserves names, filters lists and
// keeps the order of calls, and works in a synctest bubble.
type fake struct {
	v1.UnimplementedRuntimeServiceServer
	v1.UnimplementedImageServiceServer

	// before is asked before each call; an error is the answer, and it may
	// block until ctx ends.
	before func(ctx context.Context, rpc string, req any) error
	// after is asked when a call has taken effect; an error hides the answer.
	after      func(rpc string, req any) error
	ip         string // of sandboxes
	streams    bool   // has streamed lists
	repeats    bool   // has each item twice in them
	endless    bool   // does not end the one of containers
	configInfo string // of a verbose status
	noConfig   bool   // has no RuntimeConfig
	mostListed int    // containers that fit into an answer; 0: any number
	execute    func(*v1.ExecSyncRequest) (*v1.ExecSyncResponse, error)
	memory     func() *v1.MemoryUsage // of each container; nil: it has no stats
	perCall    time.Duration          // each call that changes something takes this long

	mu         sync.Mutex // guards the rest
	calls      []string   // "RPC" or "RPC subject"
	empty      string     // a call that is answered without what was asked for
	next       int
	sandboxes  map[string]*v1.PodSandboxStatus
	sbConfigs  map[string]*v1.PodSandboxConfig
	containers map[string]*v1.ContainerStatus
	configs    map[string]*v1.ContainerConfig
	inSandbox  map[string]string
	images     map[string]*v1.Image
	pulls      []*v1.PullImageRequest
	stops      map[string]int64 // timeout by container id
	updates    []*v1.UpdateContainerResourcesRequest
	events     chan *v1.ContainerEventResponse
}

func newFake() *fake {
	return &fake{
		ip: "10.0.0.7", sandboxes: map[string]*v1.PodSandboxStatus{}, sbConfigs: map[string]*v1.PodSandboxConfig{},
		containers: map[string]*v1.ContainerStatus{}, configs: map[string]*v1.ContainerConfig{},
		inSandbox: map[string]string{}, images: map[string]*v1.Image{}, stops: map[string]int64{},
	}
}

// client returns a Client that talks to the fake over gRPC in memory.
func (f *fake) client(t testing.TB, cfg Config) *Client {
	lis := bufconn.Listen(1 << 16)
	s := grpc.NewServer(grpc.MaxSendMsgSize(maxMessage), grpc.UnaryInterceptor(f.intercept), grpc.StreamInterceptor(f.interceptStream))
	v1.RegisterRuntimeServiceServer(s, f)
	v1.RegisterImageServiceServer(s, f)
	go func() { _ = s.Serve(lis) }()
	cc, err := Dial("passthrough:///fake", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return lis.DialContext(ctx)
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close(); s.Stop() })
	c, err := New(cc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// setEmpty has a call answered without what was asked for. Others may still be under way.
func (f *fake) setEmpty(rpc string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.empty = rpc
}

func (f *fake) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	rpc := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
	f.record(rpc)
	f.mu.Lock()
	before, empty := f.before, f.empty
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, rpc, req); err != nil {
			return nil, err
		}
	}
	resp, err := handle(ctx, req)
	if err == nil && f.after != nil {
		err = f.after(rpc, req)
	}
	if m, ok := resp.(proto.Message); ok && err == nil && rpc == empty {
		resp = m.ProtoReflect().New().Interface()
	}
	return resp, err
}

func (f *fake) interceptStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	f.record(info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:])
	return handle(srv, ss)
}

func (f *fake) record(rpc string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, rpc)
}

// setBefore changes what is asked before each call.
func (f *fake) setBefore(ask func(ctx context.Context, rpc string, req any) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = ask
}

// took returns the calls so far and forgets them.
func (f *fake) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fake) count(rpc string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c == rpc {
			n++
		}
	}
	return n
}

// imageBytes is the size of each image.
const imageBytes = 4321

func (f *fake) addImage(ref string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.images[ref] = &v1.Image{Id: "sha256:" + ref, RepoTags: []string{ref}, Size: imageBytes, Uid: &v1.Int64Value{}}
}

func (f *fake) id(kind string) string { f.next++; return fmt.Sprintf("%s-%d", kind, f.next) }

func (f *fake) work(ctx context.Context) error {
	if f.perCall == 0 {
		return nil
	}
	select {
	case <-time.After(f.perCall):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (f *fake) Version(context.Context, *v1.VersionRequest) (*v1.VersionResponse, error) {
	return &v1.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1"}, nil
}

func (f *fake) Status(_ context.Context, r *v1.StatusRequest) (*v1.StatusResponse, error) {
	var info map[string]string
	if r.GetVerbose() && f.configInfo != "" {
		info = map[string]string{"config": f.configInfo}
	}
	return &v1.StatusResponse{Info: info, Status: &v1.RuntimeStatus{Conditions: []*v1.RuntimeCondition{
		{Type: v1.RuntimeReady, Status: true}, {Type: v1.NetworkReady, Status: true}, {Type: "NoWarnings", Status: false},
	}}}, nil
}

func (f *fake) RunPodSandbox(ctx context.Context, r *v1.RunPodSandboxRequest) (*v1.RunPodSandboxResponse, error) {
	if err := f.work(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m := r.GetConfig().GetMetadata()
	for id, s := range f.sandboxes {
		if s.Metadata.Uid == m.Uid && s.Metadata.Attempt == m.Attempt {
			return nil, status.Errorf(codes.Unknown, "failed to reserve sandbox name %q: name is reserved for %q", m.Name, id)
		}
	}
	id := f.id("sb")
	f.sbConfigs[id] = r.GetConfig()
	f.sandboxes[id] = &v1.PodSandboxStatus{
		Id: id, Metadata: m, CreatedAt: time.Now().UnixNano(), Labels: r.GetConfig().GetLabels(), Annotations: r.GetConfig().GetAnnotations(),
		Network: &v1.PodSandboxNetworkStatus{Ip: f.ip}, RuntimeHandler: r.GetRuntimeHandler(),
		Linux: &v1.LinuxPodSandboxStatus{Namespaces: &v1.Namespace{Options: r.GetConfig().GetLinux().GetSecurityContext().GetNamespaceOptions()}},
	}
	return &v1.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (f *fake) StopPodSandbox(_ context.Context, r *v1.StopPodSandboxRequest) (*v1.StopPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sandboxes[r.PodSandboxId]; s != nil {
		s.State = v1.PodSandboxState_SANDBOX_NOTREADY
		for id, sb := range f.inSandbox {
			if sb == r.PodSandboxId {
				f.exit(id, 137)
			}
		}
	}
	return &v1.StopPodSandboxResponse{}, nil
}

func (f *fake) RemovePodSandbox(_ context.Context, r *v1.RemovePodSandboxRequest) (*v1.RemovePodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sandboxes, r.PodSandboxId)
	for id, sb := range f.inSandbox {
		if sb == r.PodSandboxId {
			delete(f.containers, id)
			delete(f.inSandbox, id)
		}
	}
	return &v1.RemovePodSandboxResponse{}, nil
}

func (f *fake) PodSandboxStatus(_ context.Context, r *v1.PodSandboxStatusRequest) (*v1.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[r.PodSandboxId]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %s not found", r.PodSandboxId)
	}
	return &v1.PodSandboxStatusResponse{Status: s}, nil
}

func matches(labels, selector map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (f *fake) listSB(selector map[string]string) []*v1.PodSandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*v1.PodSandbox
	for _, id := range slices.Sorted(maps.Keys(f.sandboxes)) {
		if s := f.sandboxes[id]; matches(s.Labels, selector) {
			out = append(out, &v1.PodSandbox{
				Id: id, Metadata: s.Metadata, State: s.State, CreatedAt: s.CreatedAt, Labels: s.Labels,
				Annotations: s.Annotations, RuntimeHandler: s.RuntimeHandler,
			})
		}
	}
	return out
}

func (f *fake) listCT(selector map[string]string) []*v1.Container {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*v1.Container
	for _, id := range slices.Sorted(maps.Keys(f.containers)) {
		if s := f.containers[id]; matches(s.Labels, selector) {
			out = append(out, &v1.Container{
				Id: id, PodSandboxId: f.inSandbox[id], Metadata: s.Metadata, Image: s.Image, ImageRef: s.ImageRef, State: s.State,
				CreatedAt: s.CreatedAt, Labels: s.Labels, Annotations: s.Annotations,
			})
		}
	}
	return out
}

func (f *fake) ListPodSandbox(_ context.Context, r *v1.ListPodSandboxRequest) (*v1.ListPodSandboxResponse, error) {
	all := f.listSB(r.GetFilter().GetLabelSelector())
	return &v1.ListPodSandboxResponse{Items: slices.DeleteFunc(all, func(s *v1.PodSandbox) bool {
		return !strings.HasPrefix(s.Id, r.GetFilter().GetId())
	})}, nil
}

func (f *fake) ListContainers(_ context.Context, r *v1.ListContainersRequest) (*v1.ListContainersResponse, error) {
	all := f.listCT(r.GetFilter().GetLabelSelector())
	all = slices.DeleteFunc(all, func(c *v1.Container) bool {
		want := r.GetFilter()
		return !strings.HasPrefix(c.Id, want.GetId()) || want.GetState() != nil && want.GetState().GetState() != c.State ||
			want.GetPodSandboxId() != "" && want.GetPodSandboxId() != c.PodSandboxId
	})
	if f.mostListed > 0 && len(all) > f.mostListed {
		return nil, status.Error(codes.ResourceExhausted, "grpc: trying to send message larger than max")
	}
	return &v1.ListContainersResponse{Containers: all}, nil
}

func (f *fake) StreamPodSandboxes(r *v1.StreamPodSandboxesRequest, s grpc.ServerStreamingServer[v1.StreamPodSandboxesResponse]) error {
	if !f.streams {
		return status.Error(codes.Unimplemented, "no streams")
	}
	all := f.listSB(r.GetFilter().GetLabelSelector())
	if f.repeats {
		all = append(all, all...)
	}
	for part := range slices.Chunk(all, 100) {
		if err := s.Send(&v1.StreamPodSandboxesResponse{PodSandboxes: part}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) StreamContainers(r *v1.StreamContainersRequest, s grpc.ServerStreamingServer[v1.StreamContainersResponse]) error {
	if !f.streams {
		return status.Error(codes.Unimplemented, "no streams")
	}
	all := f.listCT(r.GetFilter().GetLabelSelector())
	if f.repeats {
		all = append(all, all...)
	}
	for part := range slices.Chunk(all, 100) {
		if err := s.Send(&v1.StreamContainersResponse{Containers: part}); err != nil {
			return err
		}
	}
	for f.endless {
		if err := s.Send(&v1.StreamContainersResponse{Containers: []*v1.Container{{Id: "endless"}}}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) GetContainerEvents(_ *v1.GetEventsRequest, s grpc.ServerStreamingServer[v1.ContainerEventResponse]) error {
	if f.events == nil {
		return status.Error(codes.Unimplemented, "no events")
	}
	for {
		select {
		case e, ok := <-f.events:
			if !ok {
				return nil
			}
			if err := s.Send(e); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}
