package cri

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime"
)

// backingOff is an error that is not tried again before until.
type backingOff struct {
	until   time.Time
	waiting bool // nothing was tried: the back-off runs
	error
}

func (b *backingOff) Unwrap() error { return b.error }

// fetch is an image on its way.
type fetch struct {
	done  chan struct{}
	image *v1.Image // set before done is closed
	err   error
}

func (t *turn) prefetch(ctx context.Context, plan []runtime.Action) {
	for _, a := range plan {
		spec := t.spec(a.Container)
		if a.Verb != runtime.StartContainer || spec == nil {
			continue
		}
		t.fetch(ctx, spec)
	}
}

func (t *turn) fetch(ctx context.Context, spec *corev1.Container) *fetch {
	key := spec.Image + " " + string(spec.ImagePullPolicy)
	if f := t.images[key]; f != nil {
		return f
	}
	f := &fetch{done: make(chan struct{})}
	t.images[key] = f
	t.wg.Go(func() {
		defer close(f.done)
		f.image, f.err = t.c.ensureImage(ctx, spec.Image, spec.ImagePullPolicy, runtimeHandler(t.pod))
	})
	return f
}

// image waits for a container's image.
func (t *turn) image(ctx context.Context, spec *corev1.Container) (*v1.Image, error) {
	f := t.fetch(ctx, spec)
	select {
	case <-f.done:
		return f.image, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Client) ensureImage(ctx context.Context, ref string, policy corev1.PullPolicy, handler string) (*v1.Image, error) {
	if policy != corev1.PullAlways {
		im, err := c.imageStatus(ctx, ref, handler)
		if err != nil || im != nil {
			return im, err
		}
		if policy == corev1.PullNever {
			return nil, &reasoned{"ErrImageNeverPull", fmt.Errorf("image %q is not present and its pull policy is Never: %w", ref, runtime.ErrNotFound)}
		}
	}
	resp, err := do(ctx, c, "PullImage", ref, c.cfg.PullTimeout, c.is.PullImage,
		&v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref, RuntimeHandler: handler}})
	if err != nil {
		return nil, &reasoned{"ErrImagePull", err}
	}
	return &v1.Image{Id: resp.GetImageRef()}, nil
}
