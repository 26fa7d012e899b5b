package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri/internal/images"
	"github.com/sublet-dev/agent/runtime/cri/internal/translate"
)

// neededImage is an image that a plan needs.
type neededImage struct {
	ref    string
	policy corev1.PullPolicy
}

// fetch is the fetch of a needed image.
type fetch struct {
	done  chan struct{}
	image *v1.Image // set before done is closed
	err   error
}

// prefetch begins to fetch the images of all containers that the plan starts, while the
// sandbox is created. RT-16
func (t *applyRun) prefetch(ctx context.Context, plan []runtime.Action) {
	ring, err := images.NewKeyring(t.m.PullSecrets)
	if err != nil {
		t.event("", corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret", err.Error())
	}
	t.ring = ring
	for _, a := range plan {
		if spec := t.spec(a.Container); a.Type == runtime.StartContainer && spec != nil {
			t.fetch(ctx, spec.Name, neededImage{spec.Image, spec.ImagePullPolicy})
			for _, vm := range spec.VolumeMounts {
				if volume := t.m.Volumes[vm.Name]; volume.Image != "" && t.translator().CheckImageVolumes(vm.Name) == nil {
					t.fetch(ctx, spec.Name, neededImage{volume.Image, t.volumePolicy(vm.Name)})
				}
			}
		}
	}
}

// fetch begins to fetch an image, unless that has begun. Its events are about the first
// container that needs the image.
func (t *applyRun) fetch(ctx context.Context, container string, w neededImage) *fetch {
	if f := t.images[w]; f != nil {
		return f
	}
	f := &fetch{done: make(chan struct{})}
	t.images[w] = f
	t.wg.Go(func() {
		defer close(f.done)
		if f.image, f.err = t.ensure(ctx, container, w); f.err == nil {
			f.err = t.verify(ctx, container, w, f.image)
		}
	})
	return f
}

// longPull is after how long a wait for an image is reported.
const longPull = time.Second

// image waits for a needed image. It releases the slot while it waits. A longer wait is reported.
func (t *applyRun) image(ctx context.Context, container string, w neededImage) (*v1.Image, error) {
	f := t.fetch(ctx, container, w)
	select {
	case <-f.done:
		return f.image, f.err
	default:
	}
	had := t.slot.isAcquired()
	t.releaseSlot(false)
	long := time.NewTimer(longPull)
	defer long.Stop()
	for waits := true; waits; {
		select {
		case <-f.done:
			waits = false
		case <-long.C:
			t.reportSandbox()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if had {
		if err := t.acquireSlot(ctx); err != nil {
			return nil, err
		}
	}
	return f.image, f.err
}

// reportSandbox reports the sandbox that this Apply has made.
func (t *applyRun) reportSandbox() {
	if t.made && !t.reported && t.m.SandboxReady != nil {
		t.reported = true
		t.m.SandboxReady(t.sandbox)
	}
}

// ensure pulls an image according to its pull policy, or returns the present one if the
// pod may use it.
func (t *applyRun) ensure(ctx context.Context, container string, w neededImage) (*v1.Image, error) {
	req, err := t.ring.Request(w.ref, translate.RuntimeHandler(t.pod))
	if err != nil {
		t.event(container, corev1.EventTypeWarning, "InspectFailed", err.Error())
		return nil, &reasonError{"InvalidImageName", err}
	}
	arrivals := uint64(images.IgnoreArrivals)
	if w.policy != corev1.PullAlways {
		arrivals = t.c.puller.Arrivals()
		im, err := t.imageStatus(ctx, req.Ref)
		if err != nil {
			return nil, t.inspectFailed(ctx, container, w, err)
		}
		if im != nil {
			may, err := t.mayUse(ctx, im, req)
			if err != nil {
				return nil, t.inspectFailed(ctx, container, w, err)
			}
			if may {
				t.event(container, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", w.ref))
				return im, nil
			}
			arrivals = images.IgnoreArrivals // the registry has to say that the pod may have it
		}
		if w.policy == corev1.PullNever {
			// The error does not reveal an image that is not for this pod.
			err := fmt.Errorf("image %q is not present and its pull policy is Never: %w", w.ref, runtime.ErrNotFound)
			t.event(container, corev1.EventTypeWarning, "ErrImageNeverPull", err.Error())
			return nil, &reasonError{"ErrImageNeverPull", err}
		}
	}
	return t.pull(ctx, container, w, t.withNodeLogins(ctx, req), arrivals)
}

// inspectFailed emits that the runtime could not say whether it has an image, and returns the failure of the container.
func (t *applyRun) inspectFailed(ctx context.Context, container string, w neededImage, err error) error {
	if ctx.Err() == nil {
		t.event(container, corev1.EventTypeWarning, "InspectFailed", fmt.Sprintf("Failed to inspect image %q: %v", w.ref, err))
	}
	return &reasonError{"ImageInspectError", err}
}

// mayUse reports whether the pod may use an image that is present: by its own logins, or by
// those that its service account has.
func (t *applyRun) mayUse(ctx context.Context, im *v1.Image, req images.Request) (bool, error) {
	may, err := t.c.puller.MayUse(ctx, im.GetId(), req)
	if _, ok := t.c.cfg.Credentials.(PodCredentialProvider); may || err != nil || !ok {
		return may, err
	}
	return t.c.puller.MayUse(ctx, im.GetId(), t.withNodeLogins(ctx, req))
}

func (t *applyRun) pull(ctx context.Context, container string, w neededImage, req images.Request, arrivals uint64) (*v1.Image, error) {
	sandbox, err := t.translator().Sandbox(0)
	if err != nil {
		sandbox = nil // the failure of the sandbox is reported elsewhere
	}
	req.Pod = t.pod.UID
	req.Annotations = t.pod.Annotations // not those of the status calls: they come with each start, and runtimes find images by their names
	startTime, pulled := time.Now(), false
	var im *v1.Image
	op := runtime.Operation{Type: runtime.OperationPullImage, Pod: t.pod, Image: w.ref}
	id, took, err := t.c.puller.Pull(req, arrivals, sandbox, func(wait func(context.Context) error) error {
		pulled = true
		t.event(container, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", w.ref))
		return t.c.observe(ctx, &op, func(ctx context.Context) error {
			if err := wait(ctx); err != nil {
				return err
			}
			im, _ = t.imageStatus(ctx, req.Ref) // its error is that of the second try
			op.ImageBytes = im.GetSize()
			return nil
		})
	})
	if err != nil {
		if ctx.Err() == nil {
			t.pullFailed(container, w, failure("", err), startTime)
		}
		return nil, err
	}
	duration := time.Since(startTime)
	message := fmt.Sprintf("Container image %q already present on machine", w.ref)
	if pulled {
		t.markChanged()
		message = pulledMessage(w.ref, min(took, duration), duration, im)
	}
	t.event(container, corev1.EventTypeNormal, "Pulled", message)
	// The response to a pull has only the id; the user of the image is needed too. Another id
	// than that of the reference means that another pull has moved the tag since.
	if im == nil || id != "" && im.GetId() != id {
		if im, err = t.imageStatus(ctx, cmp.Or(id, req.Ref)); err != nil {
			return nil, t.inspectFailed(ctx, container, w, err)
		}
	}
	if im == nil {
		return nil, &reasonError{images.ReasonPullFailed, fmt.Errorf("image %q not found right after its pull: %w", w.ref, runtime.ErrNotFound)}
	}
	if pulled {
		t.log("image pulled", slog.String("image", w.ref), slog.Uint64("bytes", im.GetSize()), slog.Duration("duration", duration))
	}
	return im, nil
}

// pulledMessage is the message of the event of a pull, in the words of the kubelet: tools read the times and
// the size. im is nil if its size is not known.
func pulledMessage(ref string, took, waited time.Duration, im *v1.Image) string {
	const unit = time.Millisecond
	message := fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting).", ref, took.Round(unit), waited.Round(unit))
	if im != nil {
		message += fmt.Sprintf(" Image size: %d bytes.", im.GetSize())
	}
	return message
}

// withNodeLogins adds the logins of the node. Without them the pull may still succeed.
func (t *applyRun) withNodeLogins(ctx context.Context, req images.Request) images.Request {
	if t.c.cfg.Credentials == nil {
		return req
	}
	var ring images.Keyring
	err := safe.Call(t.c.cfg.Logger, "find credentials", func() error {
		logins, err := t.nodeLogins(ctx, req.Ref)
		auths := make(map[string]images.NodeLogin, len(logins))
		for where, l := range logins {
			auths[where] = images.NodeLogin{
				Auth:    &v1.AuthConfig{Username: l.Username, Password: l.Password, IdentityToken: l.IdentityToken, RegistryToken: l.RegistryToken},
				Account: l.ServiceAccount,
			}
		}
		var errPlaces error
		ring, errPlaces = images.NodeKeyring(auths)
		return errors.Join(err, errPlaces)
	})
	if err != nil && ctx.Err() == nil {
		t.c.logPod(slog.LevelWarn, t.pod, "credentials of the node unavailable", slog.String("image", req.Ref), logattr.Err(err))
	}
	return req.WithNode(ring)
}

func (t *applyRun) nodeLogins(ctx context.Context, image string) (map[string]RegistryLogin, error) {
	if p, ok := t.c.cfg.Credentials.(PodCredentialProvider); ok {
		return p.PodCredentials(ctx, t.pod, image)
	}
	return t.c.cfg.Credentials.Credentials(ctx, image)
}

// imageStatus returns the image that ref names, or nil when it is not there.
func (t *applyRun) imageStatus(ctx context.Context, ref string) (*v1.Image, error) {
	return t.c.imageStatus(ctx, ref, translate.RuntimeHandler(t.pod))
}

// pullFailed reports a pull that failed, or a back-off. The log has no record of
// the back-off: it would repeat the failure at each sync.
func (t *applyRun) pullFailed(container string, w neededImage, f runtime.Failure, startTime time.Time) {
	switch {
	case f.Err != nil:
		t.c.logPod(slog.LevelWarn, t.pod, "image pull failed", slog.String("image", w.ref),
			slog.String("reason", f.Reason), since(startTime), logattr.Err(f.Err))
		t.event(container, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", w.ref, f.Message))
	case f.Reason == images.ReasonPullBackOff:
		t.event(container, corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", w.ref))
	}
}
