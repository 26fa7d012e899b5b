package cri

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// verifierFunc is an ImageVerifier.
type verifierFunc func(pod *corev1.Pod, image PresentImage) error

func (f verifierFunc) VerifyImage(_ context.Context, pod *corev1.Pod, image PresentImage) error {
	return f(pod, image)
}

// A container whose image is not verified is not created; the others are, whether their
// image was pulled or present.
func TestImageVerifier(t *testing.T) {
	for name, verify := range map[string]func() error{
		"rejected": func() error { return errors.New("no signature") },
		"panicked": func() error { panic("no signature") },
	} {
		t.Run(name, func(t *testing.T) {
			f, rec := newFake(), &fakeRecorder{}
			f.addImage(busybox)
			var asked []PresentImage
			c := f.client(t, Config{Recorder: rec, ImageVerifier: verifierFunc(func(pod *corev1.Pod, image PresentImage) error {
				assert.Equal(t, onePod("x").UID, pod.UID)
				if image.Reference == "lab/unsigned:1" {
					return verify()
				}
				asked = append(asked, image)
				return nil
			})})
			pod := onePod("a", "b")
			pod.Spec.Containers[0].Image = "lab/unsigned:1"
			applied := c.Apply(t.Context(), pod, startAll(pod), runtime.RunOptions{})
			require.Len(t, applied.Failures, 1)
			require.Equal(t, "SignatureValidationFailed", applied.Failures["a"].Reason)
			require.ErrorContains(t, applied.Failures["a"].Err, `verify image "lab/unsigned:1": `)
			require.Contains(t, rec.text(), "no signature")
			require.Len(t, asked, 1)
			require.Equal(t, pod.Spec.Containers[1].Image, asked[0].Reference)
			require.NotEmpty(t, asked[0].ID)
			require.Equal(t, 1, f.count("CreateContainer"))
		})
	}
}
