package images

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
)

// fakeService is a node with images and a registry.
type fakeService struct {
	mu      sync.Mutex // guards the rest
	images  map[string]*v1.Image
	pulls   []string // "reference user", in the order in which they began
	running int
	most    int  // pulls that ran at a time
	named   bool // pulls are answered with a reference instead of an id

	// registry decides on a pull, and may block. Nil lets everybody pull at once.
	registry func(ctx context.Context, ref, user string) error
	err      error // of ImageStatus and ListImages
}

func (f *fakeService) ImageStatus(_ context.Context, ref, _ string) (*v1.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.images[ref], f.err
}

func (f *fakeService) ListImages(context.Context) ([]*v1.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*v1.Image
	for _, im := range f.images {
		all = append(all, im)
	}
	return all, f.err
}

func (f *fakeService) PullImage(ctx context.Context, req *v1.PullImageRequest) (string, error) {
	ref, user := req.GetImage().GetImage(), req.GetAuth().GetUsername()
	f.mu.Lock()
	f.pulls = append(f.pulls, strings.TrimSpace(ref+" "+user))
	f.running++
	f.most = max(f.most, f.running)
	registry := f.registry
	f.mu.Unlock()
	var err error
	if registry != nil {
		err = registry(ctx, ref, user)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
	if err != nil {
		return "", err
	}
	if f.named {
		f.add(ref)
		return ref, nil
	}
	return f.add(ref), nil
}

// add puts an image on the node and returns its id. f.mu is held.
func (f *fakeService) add(ref string) string {
	if f.images == nil {
		f.images = make(map[string]*v1.Image)
	}
	name := strings.Repeat("0", idLength) + strings.ToLower(strings.NewReplacer("/", "", ".", "", ":", "").Replace(ref))
	f.images[ref] = &v1.Image{Id: "sha256:" + name[len(name)-idLength:]}
	return f.images[ref].GetId()
}

func (f *fakeService) preload(ref string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.add(ref)
}

func (f *fakeService) pulled() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.pulls)
}

// puller returns a Puller with the limits that a client has by default.
func (f *fakeService) puller(change ...func(*Config)) *Puller {
	cfg := Config{
		Service: f, Limits: Limits{MaxParallel: 2, QPS: -1, Burst: 10, BackOff: 10 * time.Second, MaxBackOff: 5 * time.Minute},
		ArrivalPeriod: 2 * time.Minute, Exempt: func(_ string, preloaded bool) bool { return preloaded },
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, by := range change {
		by(&cfg)
	}
	return New(cfg)
}

// request is one with the login of a user, or without any.
func request(t *testing.T, name, user string) Request {
	t.Helper()
	var secrets []podspec.Object
	if user != "" {
		ref, err := ParseReference(name)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, dockerSecret("s", `{"auths":{"`+ref.Registry+`":{"username":"`+user+`","password":"hunter2"}}}`))
	}
	ring, err := NewKeyring(secrets)
	if err != nil {
		t.Fatal(err)
	}
	req, err := ring.Request(name, "")
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// pullNow pulls whatever arrived before.
func pullNow(ctx context.Context, p *Puller, req Request) (string, error) {
	image, _, err := p.Pull(req, IgnoreArrivals, nil, func(wait func(context.Context) error) error { return wait(ctx) })
	return image, err
}
