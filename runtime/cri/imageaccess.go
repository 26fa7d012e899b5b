package cri

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	// a former process pulled counts as preloaded.
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
	if star && (name == dockerHub || name == "index."+dockerHub) {
		return dockerHub + "/", nil
	}
	if star {
		name += "/x" // of which there is anything
	}
	r, err := parseImage(name)
	if err != nil || r.tag != "" || r.digest != "" {
		return "", fmt.Errorf("ImageAccess.Allowlist: %q must be a repository without tag, or the beginning of one with /* after it", pattern)
	}
	if star {
		return strings.TrimSuffix(r.repository(), "x"), nil
	}
	return r.repository(), nil
}

// lists reports whether the allow list, which fill has put into its plain form,
// has a repository.
func (a *ImageAccess) lists(repository string) bool {
	return slices.ContainsFunc(a.Allowlist, func(entry string) bool {
		return entry == repository || strings.HasSuffix(entry, "/") && strings.HasPrefix(repository, entry)
	})
}

// repository is the full name without tag and digest.
func (r imageRef) repository() string { return r.registry + "/" + r.path }

// maxLogins bounds how many logins of one image are remembered, the newest.
const maxLogins = 64

// pullRecord is how an image was pulled from one repository.
type pullRecord struct {
	Public bool     `json:"public,omitempty"` // without a login
	Logins []string `json:"logins,omitempty"` // keyed hashes
}

// accessState is what is known of all images. Nothing of it is secret but to those
// who guess passwords, so it is kept from them.
type accessState struct {
	Key    []byte                           `json:"key"`    // of the hashes
	Images map[string]map[string]pullRecord `json:"images"` // by id and repository
	// Begun are the references of pulls with a login that may have ended without
	// being noted, and how many there are under way.
	Begun map[string]int `json:"begun,omitempty"`
	// Lost: what was noted before could not be read, so that no image counts as
	// preloaded.
	Lost bool `json:"lost,omitempty"`
}

// hash makes of a login what may be kept of it.
func (s *accessState) hash(auth *v1.AuthConfig) string {
	mac := hmac.New(sha256.New, s.Key)
	_, _ = mac.Write([]byte(fingerprint([]*v1.AuthConfig{auth})))
	return hex.EncodeToString(mac.Sum(nil))
}

// mayUse decides whether a pod with these logins may use an image that is present.
func (s *accessState) mayUse(cfg *ImageAccess, id string, key pullKey, logins []*v1.AuthConfig) bool {
	records, known := s.Images[id]
	switch cfg.Policy {
	case NeverVerify:
		return true
	case NeverVerifyPreloadedImages:
		if !known && s.Begun[key.ref] == 0 && !s.Lost {
			return true
		}
	case NeverVerifyAllowlistedImages:
		if cfg.lists(key.repository) {
			return true
		}
	case AlwaysVerify:
	}
	record := records[key.repository]
	return record.Public || slices.ContainsFunc(logins, func(auth *v1.AuthConfig) bool {
		return slices.Contains(record.Logins, s.hash(auth))
	})
}

// note adds a pull that worked. Nil is a pull without a login, after which no pod
// needs one.
func (s *accessState) note(id, repository string, auth *v1.AuthConfig) (changed bool) {
	record := s.Images[id][repository]
	switch {
	case record.Public:
		return false
	case auth == nil:
		record = pullRecord{Public: true}
	default:
		hash := s.hash(auth)
		if slices.Contains(record.Logins, hash) {
			return false
		}
		logins := append(slices.Clone(record.Logins), hash)
		record.Logins = logins[max(len(logins)-maxLogins, 0):]
	}
	if s.Images[id] == nil {
		s.Images[id] = make(map[string]pullRecord, 1)
	}
	s.Images[id][repository] = record
	return true
}
