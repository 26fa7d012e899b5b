package imagegc

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

// ImageRefs returns the references of all images that a pod needs: those of its
// containers and of its image volumes.
func ImageRefs(pod *corev1.Pod) []string {
	var refs []string
	for c := range runtime.ContainerSpecs(pod) {
		refs = append(refs, c.Image)
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			refs = append(refs, image.Reference)
		}
	}
	return refs
}

// nameSet is a set of image names, in the normalized forms.
type nameSet map[string]struct{}

func (n nameSet) add(ref string) {
	for _, form := range forms(ref) {
		n[form] = struct{}{}
	}
}

// has reports whether any name of the image is in the set.
func (n nameSet) has(image runtime.Image) bool {
	return matchesAnyName(image, func(form string) bool { _, ok := n[form]; return ok })
}

// matchesAnyName reports whether f is true for any form of any name of the image.
// Digests match regardless of the repository: in doubt, two names are equal.
func matchesAnyName(image runtime.Image, f func(string) bool) bool {
	named := func(name string) bool { return slices.ContainsFunc(forms(name), f) }
	return named(image.ID) || slices.ContainsFunc(image.Tags, named) || slices.ContainsFunc(image.Digests, named)
}

// forms returns the normalized forms of a name: the digest or id, if it has one, and
// the fully qualified tag.
func forms(name string) []string {
	if name == "" {
		return nil
	}
	repo, digest, ok := strings.Cut(name, "@")
	if ok {
		return appendTag([]string{digest}, repo, false)
	}
	if isID(name) {
		if !strings.Contains(name, ":") {
			name = "sha256:" + name
		}
		return []string{name}
	}
	return appendTag([]string{name}, name, true)
}

// dockerHub is the registry of names without one. Its names of one part are in library/.
const dockerHub = "docker.io"

// appendTag appends the fully qualified form of a tag. If latest is true, a name without
// a tag gets :latest; otherwise it is left out.
func appendTag(list []string, name string, latest bool) []string {
	if last := name[strings.LastIndexByte(name, '/')+1:]; !strings.Contains(last, ":") {
		if !latest {
			return list
		}
		name += ":latest"
	}
	host, path, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		host, path = dockerHub, name
	case !strings.ContainsAny(host, ".:[") && host != "localhost":
		host, path = dockerHub, name
	case host == "index."+dockerHub:
		host = dockerHub
	}
	if host == dockerHub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	return append(list, host+"/"+path)
}

// isID reports whether a name is an image id: a digest or its hexadecimal part.
func isID(name string) bool {
	hex, prefixed := strings.CutPrefix(name, "sha256:")
	if !prefixed && len(hex) != 64 {
		return false
	}
	for _, c := range hex {
		if !strings.ContainsRune("0123456789abcdef", c) {
			return false
		}
	}
	return hex != ""
}
