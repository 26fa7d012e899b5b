package runtimetest

import (
	"maps"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// knownRuntime is the known failures of a released runtime.
type knownRuntime struct {
	runtime string // name in Version
	version string // prefix of the version in Version, without v; "" is any
	always  map[string]string
	flaky   map[string]string
	absent  need // what it does not have
}

// knownRuntimes are the runtimes that we have tested. Each reason says what the
// runtime does.
func knownRuntimes() []knownRuntime {
	const containerd = "containerd"
	return []knownRuntime{
		{runtime: "sublet-embedded", absent: confinement}, // containers are processes of the machine, or simulated
		{
			runtime: containerd,
			always: map[string]string{
				"a list can be asked for one image":                      "ListImages ignores its filter",
				"the status of a pod has the statuses of its containers": "PodSandboxStatus has neither containers_statuses nor timestamp",
				"a stream of images heeds its filter":                    "StreamImages ignores its filter, as ListImages does",
				"list and status agree":                                  "image_ref is the image's id in lists and its digest in the status",
				"a mount of what is not there is refused":                "CreateContainer makes a host path that is not there, as a directory",
				"the output of a command is bounded":                     "ExecSync fails: with 16 MiB of output, the response is larger than containerd's messages may be",
			},
			flaky: map[string]string{
				"a pod can be stopped while its container starts":           "a start that has begun goes on in the stopped pod",
				"a container that exits at once is reported like any other": "the exit may be reported before the start",
			},
		},
		{
			runtime: containerd, version: "1.6.",
			always: map[string]string{
				"stopping a pod that is not there is no error":       "StopPodSandbox of an unknown id is NotFound",
				"stopping a container that is not there is no error": "StopContainer of an unknown id is NotFound",
				"a container reports its user":                       "user came with CRI 1.31",
				"a container reports the user that it was given":     "user came with CRI 1.31",
				"an image can be mounted":                            "mounts of images came with containerd 2.1",
				"a container reports its stop signal":                "stop_signal came with CRI 1.33",
				"a container carries its image's id":                 "image_id came with CRI 1.29",
				"the stop signal of the container is used":           "stop_signal came with CRI 1.33",
			},
			flaky: map[string]string{
				"measuring while pods come and go is no error":               "ListPodSandboxStats fails as a whole when one pod ends meanwhile",
				"a container over its memory limit is reported as OOMKilled": "a kill right after the start is missed, as its shim watches for it only then",
			},
		},
		{
			runtime: containerd, version: "2.",
			flaky: map[string]string{
				"a reader that does not read blocks no client":               "one unread event stream can block every call that emits an event",
				"answers have the extra information only if it is requested": "PodSandboxStatus has the resources of the pod in info in every answer, in 2.4",
			},
		},
	}
}

// KnownRuntimes adds the known failures of runtimes that we have tested, by the
// name and version that the runtime reports. It may be combined with
// KnownFailures and KnownFlakes, which win.
func KnownRuntimes() Option { return func(s *suite) { s.knownRuntimes = true } }

// addKnownRuntime adds the known failures of the runtime that is tested.
func (s *suite) addKnownRuntime(v *v1.VersionResponse) {
	if !s.knownRuntimes {
		return
	}
	always, flaky := map[string]string{}, map[string]string{}
	for _, k := range knownRuntimes() {
		if k.runtime == v.GetRuntimeName() && strings.HasPrefix(strings.TrimPrefix(v.GetRuntimeVersion(), "v"), k.version) {
			maps.Copy(always, k.always)
			maps.Copy(flaky, k.flaky)
			s.absent |= k.absent
		}
	}
	maps.Copy(always, s.knownFailures)
	maps.Copy(flaky, s.knownFlakes)
	s.knownFailures, s.knownFlakes = always, flaky
}
