package images

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxLogins bounds how many logins of one image are remembered, the newest.
const maxLogins = 64

// pullRecord is how an image was pulled from one repository.
type pullRecord struct {
	Public bool     `json:"public,omitempty"` // without a login
	Logins []string `json:"logins,omitempty"` // keyed hashes, of service accounts too
}

// recordState is what is known of all images. Nothing of it is secret but to those
// who guess passwords, so it is kept from them.
type recordState struct {
	Key    []byte                           `json:"key"`    // of the hashes
	Images map[string]map[string]pullRecord `json:"images"` // by id and repository
	// Begun are the references of pulls with a login that may have ended without
	// being noted, and how many there may be under way.
	Begun map[string]int `json:"begun,omitempty"`
	// Lost: what was noted before could not be read, so that no image counts as
	// preloaded.
	Lost bool `json:"lost,omitempty"`
}

func (s *recordState) reset() {
	s.Key = make([]byte, 32)
	_, _ = rand.Read(s.Key) // never fails
	s.Images, s.Begun = make(map[string]map[string]pullRecord), make(map[string]int)
}

// hash makes of a grant what may be kept of it. No login has the hash of a service account.
func (s *recordState) hash(g grant) string {
	mac := hmac.New(sha256.New, s.Key)
	if g.account != "" {
		_, _ = mac.Write([]byte("service account " + g.account))
	} else {
		_, _ = mac.Write([]byte(fingerprint([]*v1.AuthConfig{g.auth})))
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// isPreloaded reports whether no pull brought the image.
func (s *recordState) isPreloaded(id, ref string) bool {
	_, known := s.Images[id]
	return !known && s.Begun[ref] == 0 && !s.Lost
}

// end takes one from the pulls of a reference that have begun.
func (s *recordState) end(ref string) {
	if s.Begun[ref]--; s.Begun[ref] <= 0 {
		delete(s.Begun, ref)
	}
}

// couldPull reports whether the image was pulled from that repository without a login, or
// by one of these.
func (s *recordState) couldPull(id, repository string, grants []grant) bool {
	record := s.Images[id][repository]
	return record.Public || slices.ContainsFunc(grants, func(g grant) bool {
		return slices.Contains(record.Logins, s.hash(g))
	})
}

// note adds a pull that worked. After one for all pods, no pod needs a login.
func (s *recordState) note(id, repository string, g grant) (changed bool) {
	record := s.Images[id][repository]
	switch {
	case record.Public:
		return false
	case g == (grant{}):
		record = pullRecord{Public: true}
	default:
		hash := s.hash(g)
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
