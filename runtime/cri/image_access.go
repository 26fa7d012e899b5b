package cri

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sublet-dev/agent/runtime/cri/internal/images"
)

// ImageVerification says for which images that are present on the node a pod has
// to have the credentials to pull them. The policies are the kubelet's.
type ImageVerification string

// The policies of image verification.
const (
	// NeverVerify lets every pod use every image that is present.
	NeverVerify ImageVerification = "NeverVerify"
	// NeverVerifyPreloadedImages lets every pod use the images that this client
	// has not pulled. It is the default.
	NeverVerifyPreloadedImages ImageVerification = "NeverVerifyPreloadedImages"
	// NeverVerifyAllowlistedImages lets every pod use the images that a list
	// names, and no others.
	NeverVerifyAllowlistedImages ImageVerification = "NeverVerifyAllowlistedImages"
	// AlwaysVerify lets a pod use an image if it could have pulled it.
	AlwaysVerify ImageVerification = "AlwaysVerify"
)

// ImageAccess says who may use images that are present on the node. A pod that may
// not use one has it pulled again, with its own credentials, which is quick if the
// registry lets it; under the pull policy Never the image is as good as missing.
// The zero value verifies what this client has pulled and forgets it at its end.
type ImageAccess struct {
	Policy ImageVerification // [NeverVerifyPreloadedImages]
	// Allowlist is for NeverVerifyAllowlistedImages: repositories without tag, or
	// the beginnings of their names with /* after them.
	Allowlist []string
	// File keeps which image was pulled with which credentials, of which it holds
	// keyed hashes only. Its directory must exist when images are pulled. "": what
	// an earlier process pulled counts as preloaded.
	File string
}

// Check returns what is wrong with a, as New does.
func (a ImageAccess) Check() error { return a.fill() }

func (a *ImageAccess) fill() error {
	switch a.Policy {
	case "":
		a.Policy = NeverVerifyPreloadedImages
	case NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify:
	default:
		return fmt.Errorf("unknown ImageAccess.Policy %q", a.Policy)
	}
	if len(a.Allowlist) > 0 && a.Policy != NeverVerifyAllowlistedImages {
		return fmt.Errorf("ImageAccess.Allowlist is for the policy %s only", NeverVerifyAllowlistedImages)
	}
	var errs []error
	list := make([]string, 0, len(a.Allowlist))
	for _, pattern := range a.Allowlist {
		entry, err := allowlistEntry(pattern)
		errs, list = append(errs, err), append(list, entry)
	}
	a.Allowlist = list
	return errors.Join(errs...)
}

// allowlistEntry puts a pattern into the form that full names are compared with: a
// beginning ends in a slash.
func allowlistEntry(pattern string) (string, error) {
	name, star := strings.CutSuffix(pattern, "/*")
	if star && (name == images.DockerHub || name == "index."+images.DockerHub) {
		return images.DockerHub + "/", nil
	}
	if star {
		name += "/x" // of which there is anything
	}
	r, err := images.ParseReference(name)
	if err != nil || r.Tag != "" || r.Digest != "" {
		return "", fmt.Errorf("ImageAccess.Allowlist: %q must be a repository without tag, or the beginning of one with /* after it", pattern)
	}
	if star {
		return strings.TrimSuffix(r.Repository(), "x"), nil
	}
	return r.Repository(), nil
}

// exempts reports whether every pod may use the images of a repository that are present.
// preloaded says that no pull of this client brought the image.
func (a *ImageAccess) exempts(repository string, preloaded bool) bool {
	switch a.Policy {
	case NeverVerify:
		return true
	case NeverVerifyPreloadedImages:
		return preloaded
	case NeverVerifyAllowlistedImages:
		return a.lists(repository)
	case AlwaysVerify:
	}
	return false
}

// lists reports whether the allow list, which fill has put into its plain form,
// has a repository.
func (a *ImageAccess) lists(repository string) bool {
	return slices.ContainsFunc(a.Allowlist, func(entry string) bool {
		return entry == repository || strings.HasSuffix(entry, "/") && strings.HasPrefix(repository, entry)
	})
}
