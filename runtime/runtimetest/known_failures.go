package runtimetest

import (
	"context"
	"maps"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// deviation is what a released runtime is known to do otherwise.
type deviation struct {
	runtime string // name in Version
	version string // prefix of the version in Version, without v; "" is any
	always  map[string]string
	flaky   map[string]string
}

// deviations are those that we have met. Each reason says what the runtime does.
func deviations() []deviation {
	const containerd = "containerd"
	return []deviation{
		{
			runtime: containerd,
			always: map[string]string{
				"a list can be asked for one image": "ListImages ignores its filter",
				"list and status tell the same":     "image_ref is the image's id in lists and its digest in the status",
			},
			flaky: map[string]string{
				"a pod can be stopped while its container starts":      "a start that has begun goes on in the stopped pod",
				"a container that ends at once is told like any other": "the end may be told as before the start",
			},
		},
		{
			runtime: containerd, version: "1.6.",
			always: map[string]string{
				"stopping a pod that is not there is no error":       "StopPodSandbox of an unknown id is NotFound",
				"stopping a container that is not there is no error": "StopContainer of an unknown id is NotFound",
				"a container carries its image's id":                 "image_id came with CRI 1.29",
				"the stop signal of the container is used":           "stop_signal came with CRI 1.33",
			},
			flaky: map[string]string{
				"measuring while pods come and go is no error": "ListPodSandboxStats fails as a whole when one pod ends meanwhile",
			},
		},
		{
			runtime: containerd, version: "2.",
			flaky: map[string]string{
				"a reader that does not read holds up nobody": "one unread event stream can block every call that tells an event",
			},
		},
	}
}

// KnownRuntimes takes the deviations of runtimes that we have met, by the name and
// version that the runtime tells. It may be used beside Deviations.
func KnownRuntimes() Option { return func(s *suite) { s.known = true } }

// recognise adds the known deviations of the runtime at hand.
func (s *suite) recognise(ctx context.Context) error {
	if !s.known {
		return nil
	}
	v, err := v1.NewRuntimeServiceClient(s.cc).Version(ctx, &v1.VersionRequest{})
	if err != nil {
		return err
	}
	always, flaky := map[string]string{}, map[string]string{}
	for _, d := range deviations() {
		if d.runtime == v.GetRuntimeName() && strings.HasPrefix(strings.TrimPrefix(v.GetRuntimeVersion(), "v"), d.version) {
			maps.Copy(always, d.always)
			maps.Copy(flaky, d.flaky)
		}
	}
	maps.Copy(always, s.deviations)
	maps.Copy(flaky, s.flaky)
	s.deviations, s.flaky = always, flaky
	return nil
}
