package cri

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/internal/safe"
	"github.com/sublet-dev/agent/podspec"
)

// reasonSignature is the kubelet's reason of containers whose image was not verified.
const reasonSignature = "SignatureValidationFailed"

// ImageVerifier decides whether a pod may use an image that is present on the node, for
// example by its signature.
type ImageVerifier interface {
	// VerifyImage is called before each start of a container, after its image was pulled
	// if necessary. It may block: only the pod waits. The container is not started after
	// an error, and is tried again with back-off. A panic is an error.
	VerifyImage(ctx context.Context, pod *corev1.Pod, image PresentImage) error
}

// PresentImage is an image on the node.
type PresentImage struct {
	Reference   string   // as in the spec of the pod
	ID          string   // in the runtime, from which the container is created
	RepoDigests []string // under which it was pulled: repository@digest
}

// verify asks the verifier about an image.
func (t *applyRun) verify(ctx context.Context, container string, w neededImage, im *v1.Image) error {
	verifier := t.c.cfg.ImageVerifier
	if verifier == nil {
		return nil
	}
	err := safe.Call(t.c.cfg.Logger, "verify image for pod "+podspec.FullName(t.pod), func() error {
		return verifier.VerifyImage(ctx, t.pod, PresentImage{w.ref, im.GetId(), slices.Clone(im.GetRepoDigests())})
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	err = fmt.Errorf("verify image %q: %w", w.ref, err)
	t.event(container, corev1.EventTypeWarning, "Failed", err.Error())
	return &reasonError{reasonSignature, err}
}
