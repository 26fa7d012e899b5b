package translate

import (
	"fmt"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Features is what a runtime says it can do beyond what every runtime can.
type Features struct {
	RecursiveReadOnly map[string]bool // by runtime handler
	UserNamespaces    map[string]bool // by runtime handler
	GroupsPolicy      bool
	Runtime           string // name and version, for people
	NoImageVolumes    bool   // it is known to have none
	MapsImageVolumes  bool   // it is known to map the ids of image volumes
}

// FeaturesOf reads what a runtime says of itself in its answers to Version and Status.
func FeaturesOf(version *v1.VersionResponse, resp *v1.StatusResponse) *Features {
	f := Features{
		RecursiveReadOnly: make(map[string]bool), UserNamespaces: make(map[string]bool),
		GroupsPolicy:     resp.GetFeatures().GetSupplementalGroupsPolicy(),
		Runtime:          strings.TrimSpace(version.GetRuntimeName() + " " + version.GetRuntimeVersion()),
		NoImageVolumes:   olderThanImageVolumes(version.GetRuntimeName(), version.GetRuntimeVersion()),
		MapsImageVolumes: mapsImageVolumes(version.GetRuntimeName(), version.GetRuntimeVersion()),
	}
	for _, h := range resp.GetRuntimeHandlers() {
		f.RecursiveReadOnly[h.GetName()] = h.GetFeatures().GetRecursiveReadOnlyMounts()
		f.UserNamespaces[h.GetName()] = h.GetFeatures().GetUserNamespaces()
	}
	return &f
}

// name is what the runtime calls itself.
func (f *Features) name() string {
	if f == nil || f.Runtime == "" {
		return "the runtime"
	}
	return f.Runtime
}

// olderThanImageVolumes: no feature tells of image volumes, and a runtime that
// does not know them makes of one what it makes of an empty path. Those that are
// known by name had them from some version on; of others nothing is known.
func olderThanImageVolumes(name, version string) bool {
	major, minor, ok := versionOf(version)
	switch {
	case !ok:
		return false
	case name == "containerd":
		return major < 2 || major == 2 && minor < 1
	case name == "cri-o":
		return major == 1 && minor < 31
	}
	return false
}

// mapsImageVolumes: no feature tells of this either. Other runtimes map the mount instead of the
// layers below it, which no kernel does for an overlay, and the container is not created.
func mapsImageVolumes(name, version string) bool {
	var major, minor, patch int
	n, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.%d", &major, &minor, &patch)
	if name != "containerd" || n != 3 || err != nil || major < 2 {
		return false
	}
	return major > 2 || minor > 2 || minor == 2 && patch >= 2 || minor == 1 && patch >= 7
}

// versionOf reads the first two numbers of v2.4.2, 1.6.20~ds1 and the like.
func versionOf(s string) (major, minor int, ok bool) {
	n, err := fmt.Sscanf(strings.TrimPrefix(s, "v"), "%d.%d", &major, &minor)
	return major, minor, n == 2 && err == nil
}
