package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/podspec"
)

// objectDir is a directory of objects, tokens and certificates; "" keeps none. Names of objects contain
// no underscore, so that no two have one file.
type objectDir string

const (
	tokenPrefix       = "token_"
	certificatePrefix = "certificate_"
	servicesFile      = "services.json"
)

// prepare creates the directory and removes what an interrupted write has left.
func (d objectDir) prepare() error {
	if d == "" {
		return nil
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	if err := os.Chmod(string(d), 0o700); err != nil {
		return err
	}
	partial, err := filepath.Glob(filepath.Join(string(d), ".*"))
	for _, file := range partial {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// path returns the path of a file; "" if it cannot be kept.
func (d objectDir) path(name string) string {
	if d == "" || !pathname.IsElement(name) {
		return ""
	}
	return filepath.Join(string(d), name)
}

// maxObjectFile is the length of the name of a file that is kept as it is: one that is written for a moment has a longer one,
// of 255 bytes at most.
const maxObjectFile = 224

// objectFile returns the name of the file of an object. The names of an object and its namespace may together be too long for
// one: a hash takes the place of the end then.
func objectFile(ref podspec.Ref) string {
	const suffix = ".json"
	name := strings.ToLower(ref.Kind) + "_" + ref.Namespace + "_" + ref.Name
	if len(name)+len(suffix) <= maxObjectFile {
		return name + suffix
	}
	hash := sha256.Sum256([]byte(name))
	end := "_" + hex.EncodeToString(hash[:16]) + suffix
	return name[:maxObjectFile-len(end)] + end
}

// read reads a file into v. A file that cannot be read or is damaged is none.
func (d objectDir) read(name string, v any) bool {
	file := d.path(name)
	if file == "" {
		return false
	}
	data, err := os.ReadFile(file) //nolint:gosec // a path of ours
	return err == nil && json.Unmarshal(data, v) == nil
}

func (d objectDir) write(name string, v any) error {
	file := d.path(name)
	if file == "" {
		return nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, data)
}

// podFile is the file of a token or a certificate of a pod. What could not be written is
// written later. One goroutine may use it at a time.
type podFile struct {
	dir      objectDir
	name     string
	warn     func(error) // of a failed write
	content  any         // what was to be written last
	failedAt time.Time   // when that failed; zero: it did not
}

func (f *podFile) write(content any, now time.Time) {
	f.content, f.failedAt = content, time.Time{}
	if err := f.dir.write(f.name, content); err != nil {
		f.failedAt = now
		f.warn(err)
	}
}

// retry writes what could not be written retryPeriod ago.
func (f *podFile) retry(now time.Time) {
	if !f.failedAt.IsZero() && now.Sub(f.failedAt) >= retryPeriod {
		f.write(f.content, now)
	}
}

func (d objectDir) object(ref podspec.Ref) (o podspec.Object, ok bool) {
	ok = d.read(objectFile(ref), &o)
	return o, ok && o.Ref == ref
}

func (d objectDir) writeObject(o podspec.Object) error { return d.write(objectFile(o.Ref), o) }

func (d objectDir) removeObject(ref podspec.Ref) error { return d.remove(objectFile(ref)) }

func (d objectDir) remove(name string) error {
	file := d.path(name)
	if file == "" {
		return nil
	}
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// keep removes the objects that are not in refs, and the tokens and certificates of pods not
// in uids.
func (d objectDir) keep(refs map[podspec.Ref]bool, uids map[types.UID]bool) error {
	if d == "" {
		return nil
	}
	names := map[string]bool{servicesFile: true}
	for ref := range refs {
		names[objectFile(ref)] = true
	}
	entries, err := os.ReadDir(string(d))
	for _, e := range entries {
		name := e.Name()
		if names[name] || strings.HasPrefix(name, ".") || uids[ownerOf(name)] {
			continue
		}
		err = errors.Join(err, d.remove(name))
	}
	return err
}

// ownerOf returns the pod to which a file with a token or certificate belongs, or "".
func ownerOf(name string) types.UID {
	for _, prefix := range []string{tokenPrefix, certificatePrefix} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			uid, _, _ := strings.Cut(rest, "_")
			return types.UID(uid)
		}
	}
	return ""
}
