package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/fileversion"
	"github.com/sublet-dev/agent/podspec"
)

// Files finds PersistentVolumes, PersistentVolumeClaims and CSIDrivers in manifests, which
// may be those of pods: a node without an API server has no other.
//
// A PersistentVolume is enough: it is bound to the claim that its claimRef names, or, if it
// has none, to the claim of its own name. A claim in a manifest can name its volume in
// volumeName instead.
//
// Files are read when they are needed and have changed. One that has become invalid counts
// as it was.
type Files struct {
	path string

	mu    sync.Mutex // held while files are read
	files map[string]storageFile
}

// storageFile is one manifest.
type storageFile struct {
	version fileversion.Version
	objects podspec.StorageObjects
}

// NewFiles returns the Files of a directory, or of one manifest. It does no I/O.
func NewFiles(path string) *Files { return &Files{path: path} }

// Claim implements Claims.
func (f *Files) Claim(_ context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	all, err := f.read()
	if err != nil {
		return nil, err
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, c := range all.Claims {
		if c.Name == name && (c.Namespace == namespace || c.Namespace == "" && namespace == metav1.NamespaceDefault) {
			claim = c.DeepCopy()
			claim.Namespace = namespace
			claim.UID, claim.DeletionTimestamp = "", nil // set by an API server alone
		}
	}
	if claim.Spec.VolumeName == "" {
		claim.Spec.VolumeName = boundTo(all.Volumes, namespace, name)
	}
	if claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("no manifest in %s has a PersistentVolume with this claimRef: %w", f.path, podspec.ErrObjectNotFound)
	}
	claim.Status.Phase = corev1.ClaimBound
	return claim, nil
}

// boundTo returns the name of the volume that is for a claim.
func boundTo(volumes []*corev1.PersistentVolume, namespace, name string) (found string) {
	for _, v := range volumes {
		switch ref := v.Spec.ClaimRef; {
		case ref != nil && ref.Namespace == namespace && ref.Name == name:
			return v.Name
		case ref == nil && v.Name == name:
			found = v.Name
		}
	}
	return found
}

// PersistentVolume implements Claims.
func (f *Files) PersistentVolume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	all, err := f.read()
	if err != nil {
		return nil, err
	}
	for _, v := range all.Volumes {
		if v.Name == name {
			if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID != "" { // of a cluster that it was copied from
				v = v.DeepCopy()
				v.Spec.ClaimRef.UID = ""
			}
			return v, nil
		}
	}
	return nil, errNotFound("PersistentVolume", name)
}

// CSIDriver returns what a manifest says about a CSI driver.
func (f *Files) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	all, err := f.read()
	if err != nil {
		return nil, err
	}
	for _, d := range all.CSIDrivers {
		if d.Name == name {
			return d, nil
		}
	}
	return nil, errNotFound("CSIDriver", name)
}

// ResourceClaim returns a claim for devices from a manifest. Its status has the allocation,
// which nothing on a node alone makes. It implements dra.Claims.
func (f *Files) ResourceClaim(_ context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	all, err := f.read()
	if err != nil {
		return nil, err
	}
	for _, c := range all.ResourceClaims {
		if c.Name != name || c.Namespace != namespace && (c.Namespace != "" || namespace != metav1.NamespaceDefault) {
			continue
		}
		c = c.DeepCopy()
		c.Namespace = namespace
		if c.UID == "" { // drivers tell claims apart by it
			hash := sha256.Sum256([]byte("ResourceClaim " + namespace + "/" + name))
			c.UID = types.UID(hex.EncodeToString(hash[:16]))
		}
		return c, nil
	}
	return nil, errNotFound("ResourceClaim", namespace+"/"+name)
}

// read returns the objects of all manifests.
func (f *Files) read() (all podspec.StorageObjects, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	paths, err := manifestPaths(f.path)
	if err != nil {
		return all, fmt.Errorf("volumes in manifests: %w", err)
	}
	previous := f.files
	f.files = make(map[string]storageFile, len(paths))
	for _, path := range paths {
		file, ok := previous[path]
		info, err := os.Stat(path)
		switch {
		case err != nil && ok: // as a source keeps the pods of such a file
		case err != nil:
			continue
		case !file.version.IsCurrent(info):
			version := fileversion.Of(info, time.Now())
			objects, err := readStorage(path)
			if _, unread := errors.AsType[*fs.PathError](err); unread {
				version = fileversion.Version{} // to be read at the next time
			}
			file.version = version
			if err == nil || !ok {
				file.objects = objects
			}
		}
		f.files[path] = file
		all.Volumes = append(all.Volumes, file.objects.Volumes...)
		all.Claims = append(all.Claims, file.objects.Claims...)
		all.CSIDrivers = append(all.CSIDrivers, file.objects.CSIDrivers...)
		all.ResourceClaims = append(all.ResourceClaims, file.objects.ResourceClaims...)
	}
	return all, nil
}

func readStorage(path string) (out podspec.StorageObjects, err error) {
	file, err := os.Open(path) //nolint:gosec // the path comes from the configuration
	if err != nil {
		return out, err
	}
	defer func() { _ = file.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(file, podspec.DefaultMaxBytes+1))
	if err != nil {
		return out, err
	}
	return podspec.DecodeStorage(data, podspec.DecodeOptions{Lenient: true})
}

// manifestPaths returns the manifests at path, sorted by name: itself, or those in it.
func manifestPaths(path string) ([]string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		switch name := e.Name(); {
		case e.IsDir(), strings.HasPrefix(name, "."):
		case strings.HasSuffix(name, ".yaml"), strings.HasSuffix(name, ".yml"), strings.HasSuffix(name, ".json"):
			if at, err := os.Stat(filepath.Join(path, name)); err == nil && !at.Mode().IsRegular() {
				continue // a pipe would block
			}
			paths = append(paths, filepath.Join(path, name))
		}
	}
	return paths, nil
}
