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

// storedCache is the content of the file: a Set and its checksum.
type storedCache struct {
	Version int             `json:"version"`
	SHA256  string          `json:"sha256"` // of the bytes of Set
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

// load returns the saved Set and its checksum, or nil if there is no file. A damaged
// file is renamed.
func (c cacheFile) load() (*Set, string, error) {
	dir := filepath.Dir(string(c))
	if err := atomicfile.RemovePartial(string(c)); err != nil {
		return nil, "", withoutPath(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, "", withoutPath(err)
	}
	defer root.Close() //nolint:errcheck // nothing was written through it
	info, err := root.Lstat(cacheFileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", withoutPath(err)
	}
	if info.Size() > maxCacheBytes {
		return nil, "", c.setAside(fmt.Errorf("file exceeds %d bytes", maxCacheBytes))
	}
	data, _, err := read(root.FS(), cacheFileName, info, maxCacheBytes)
	if err != nil {
		return nil, "", withoutPath(err)
	}
	set, sum, err := decodeSet(data)
	if err != nil {
		return nil, "", c.setAside(err)
	}
	return set, sum, nil
}

// setAside renames a damaged file and returns the error to report.
func (c cacheFile) setAside(cause error) error {
	if err := atomicfile.SetAside(string(c)); err != nil {
		return fmt.Errorf("%w; rename damaged file: %w", cause, err)
	}
	return fmt.Errorf("%w; file was renamed to %s", cause, string(c)+atomicfile.DamagedSuffix)
}

// save writes a Set unless the file already contains it, which has the checksum
// current. It returns the checksum of the file.
func (c cacheFile) save(s *Set, current string) (sum string, err error) {
	data, sum, err := encodeSet(s)
	if err != nil || sum == current {
		return current, err
	}
	if len(data) > maxCacheBytes {
		return current, fmt.Errorf("%d bytes exceed the limit of %d", len(data), maxCacheBytes)
	}
	if err := os.MkdirAll(filepath.Dir(string(c)), 0o700); err != nil {
		return current, withoutPath(err)
	}
	if err := atomicfile.Write(string(c), data); err != nil {
		return "", withoutPath(err)
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

// decodeSet is the inverse of encodeSet. Its errors contain nothing of the file, which
// may be secret.
func decodeSet(data []byte) (*Set, string, error) {
	var c storedCache
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, "", errors.New("file is truncated or not JSON")
	}
	if c.Version != cacheVersion {
		return nil, "", fmt.Errorf("file has version %d, not %d", c.Version, cacheVersion)
	}
	if checksum(c.Set) != c.SHA256 {
		return nil, "", errors.New("file has a wrong checksum")
	}
	var stored storedSet
	if err := json.NewDecoder(bytes.NewReader(c.Set)).Decode(&stored); err != nil {
		return nil, "", errors.New("file contains no set of pods")
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
