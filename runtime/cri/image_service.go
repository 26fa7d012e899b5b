package cri

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/cri/internal/images"
)

// PullLimits bounds image pulls. The zero value has the defaults.
type PullLimits struct {
	MaxParallel int           // how many at a time; 1 is serial [2]
	QPS         float64       // begun per second; negative: no limit [5]
	Burst       int           // begun at once above QPS [10]
	BackOff     time.Duration // after the first failure, then doubling [10 s]
	MaxBackOff  time.Duration // what the back-off grows to [5 min]
}

func (p *PullLimits) fill() error {
	if p.MaxParallel < 0 || p.Burst < 0 || p.BackOff < 0 || p.MaxBackOff < 0 {
		return fmt.Errorf("a value of Pulls is negative: %+v", *p)
	}
	if p.MaxParallel == 0 {
		p.MaxParallel = 2
	}
	if p.QPS == 0 {
		p.QPS = 5
	}
	if p.Burst == 0 {
		p.Burst = 10
	}
	if p.BackOff == 0 {
		p.BackOff = 10 * time.Second
	}
	if p.MaxBackOff == 0 {
		p.MaxBackOff = 5 * time.Minute
	}
	if p.MaxBackOff < p.BackOff {
		return fmt.Errorf("Pulls.MaxBackOff %v is less than Pulls.BackOff %v", p.MaxBackOff, p.BackOff)
	}
	return nil
}

func newPuller(c *Client) *images.Puller {
	return images.New(images.Config{
		Service: imageService{c}, Limits: images.Limits(c.cfg.Pulls), ArrivalPeriod: c.cfg.Timeout,
		RecordFile: c.cfg.ImageAccess.File, Exempt: c.cfg.ImageAccess.exempts, Logger: c.cfg.Logger,
	})
}

// imageService is the image service of a Client.
type imageService struct{ c *Client }

func (s imageService) ImageStatus(ctx context.Context, ref, handler string) (*v1.Image, error) {
	return s.c.imageStatus(ctx, ref, handler)
}

func (s imageService) ListImages(ctx context.Context) ([]*v1.Image, error) {
	return s.c.listImages(ctx)
}

// PullImage pulls an image with one login. Neither the error nor the hooks get the
// login.
func (s imageService) PullImage(ctx context.Context, req *v1.PullImageRequest) (string, error) {
	redacted := func(ctx context.Context, req *v1.PullImageRequest, opts ...grpc.CallOption) (*v1.PullImageResponse, error) {
		resp, err := s.c.is.PullImage(ctx, req, opts...)
		if err != nil {
			st := status.Convert(err)
			err = status.Error(st.Code(), images.Redact(st.Message(), req.GetAuth()))
		}
		return resp, err
	}
	resp, err := do(ctx, s.c, "PullImage", req.GetImage().GetImage(), s.c.cfg.PullTimeout, redacted, req)
	return resp.GetImageRef(), err
}
