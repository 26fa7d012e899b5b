package podsource

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/podspec"
)

const (
	cacheFileName = "set.json"
	cacheVersion  = 1
	maxCacheBytes = 64 << 20
)

// cacheFile is the path of the file of a cached source.
type cacheFile string

// storedCache is what the file holds: a Set, and how to tell that it is whole.
type storedCache struct {
	Version int             `json:"version"`
	SHA256  string          `json:"sha256"` // of Set as it is written
	Set     json.RawMessage `json:"set"`
}

type storedSet struct {
	Pods    []storedManifest `json:"pods"`
	Objects []podspec.Object `json:"objects,omitempty"`
}

type storedManifest struct {
	Origin string      `json:"origin,omitempty"`
	Pod    *corev1.Pod `json:"pod"`
}

// load returns what the file holds and its checksum, or nil if there is no file.
// One that cannot be understood is set aside.
func (c cacheFile) load() (*Set, string, error) {
	dir := filepath.Dir(string(c))
	if err := atomicfile.RemovePartial(string(c)); err != nil {
		return nil, "", bare(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, "", bare(err)
	}
	defer root.Close() //nolint:errcheck // nothing was written through it
	info, err := root.Lstat(cacheFileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", bare(err)
	}
	if info.Size() > maxCacheBytes {
		return nil, "", c.setAside(fmt.Errorf("the file has more than the %d bytes that are kept", maxCacheBytes))
	}
	data, _, err := read(root.FS(), cacheFileName, info, maxCacheBytes)
	if err != nil {
		return nil, "", bare(err)
	}
	set, sum, err := decodeSet(data)
	if err != nil {
		return nil, "", c.setAside(err)
	}
	return set, sum, nil
}

// setAside puts the file where nobody reads it, and says why.
func (c cacheFile) setAside(why error) error {
	if err := atomicfile.SetAside(string(c)); err != nil {
		return fmt.Errorf("%w; it cannot be set aside: %w", why, err)
	}
	return fmt.Errorf("%w; it was set aside as %s", why, string(c)+atomicfile.DamagedSuffix)
}

// save writes what a source said, unless it has the checksum of what is there. It
// returns the checksum of what the file holds then.
func (c cacheFile) save(s *Set, there string) (sum string, err error) {
	data, sum, err := encodeSet(s)
	if err != nil || sum == there {
		return there, err
	}
	if len(data) > maxCacheBytes {
		return there, fmt.Errorf("%d bytes are more than the %d that are kept", len(data), maxCacheBytes)
	}
	if err := os.MkdirAll(filepath.Dir(string(c)), 0o700); err != nil {
		return there, bare(err)
	}
	if err := atomicfile.Write(string(c), data); err != nil {
		return "", bare(err)
	}
	return sum, nil
}

func encodeSet(s *Set) (data []byte, sum string, err error) {
	stored := storedSet{Pods: make([]storedManifest, 0, len(s.Pods)), Objects: s.Objects}
	for _, m := range s.Pods {
		if m.Pod != nil {
			stored.Pods = append(stored.Pods, storedManifest{m.Origin, m.Pod})
		}
	}
	set, err := json.Marshal(stored)
	if err != nil {
		return nil, "", err
	}
	sum = checksum(set)
	data, err = json.Marshal(storedCache{cacheVersion, sum, set})
	return data, sum, err
}

// decodeSet reads what encodeSet wrote. Its errors quote nothing: it may be secret.
func decodeSet(data []byte) (*Set, string, error) {
	var c storedCache
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, "", errors.New("the file is cut short or no JSON")
	}
	if c.Version != cacheVersion {
		return nil, "", fmt.Errorf("the file is of version %d, not %d", c.Version, cacheVersion)
	}
	if checksum(c.Set) != c.SHA256 {
		return nil, "", errors.New("the file was changed: its checksum is wrong")
	}
	var stored storedSet
	if err := json.NewDecoder(bytes.NewReader(c.Set)).Decode(&stored); err != nil {
		return nil, "", errors.New("the file holds no set of pods")
	}
	s := &Set{Objects: stored.Objects}
	for _, m := range stored.Pods {
		if m.Pod != nil {
			s.Pods = append(s.Pods, Manifest{Pod: m.Pod, Origin: m.Origin})
		}
	}
	return s, c.SHA256, nil
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
