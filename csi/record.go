package csi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/atomicfile"
	"github.com/sublet-dev/agent/internal/pathname"
)

const (
	pluginDirName = "kubernetes.io~csi"
	blockDirName  = "volumeDevices"
	recordName    = "vol_data.json"
)

// stagingName matches the names of the directories of staged volumes, besides those of devices.
var stagingName = regexp.MustCompile("^[0-9a-f]{64}$")

// maxRecordBytes bounds a record that is read.
const maxRecordBytes = 64 << 10

// paths are the directories of the kubelet below the root.
type paths struct{ root string }

func (p paths) registry() string { return filepath.Join(p.root, "plugins_registry") }
func (p paths) pods() string     { return filepath.Join(p.root, "pods") }
func (p paths) plugins() string  { return filepath.Join(p.root, "plugins") }
func (p paths) plugin() string   { return filepath.Join(p.plugins(), "kubernetes.io", "csi") }

// files is the directory of a file system of a pod: its mount and its record.
func (p paths) files(uid types.UID, name string) string {
	return filepath.Join(p.pods(), string(uid), "volumes", pluginDirName, name)
}

// device is the symbolic link of a device of a pod.
func (p paths) device(uid types.UID, name string) string {
	return filepath.Join(p.pods(), string(uid), blockDirName, pluginDirName, name)
}

// staging is the directory of a staged volume: the record, and what path returns.
func (p paths) staging(v *volumeID) (dir, path string) {
	if v.block {
		return filepath.Join(p.plugin(), blockDirName, v.name, "data"), filepath.Join(p.plugin(), blockDirName, "staging", v.name)
	}
	sum := sha256.Sum256([]byte(v.handle))
	dir = filepath.Join(p.plugin(), v.driver, hex.EncodeToString(sum[:]))
	return dir, filepath.Join(dir, "globalmount")
}

// target is where a volume is published for a pod.
func (p paths) target(uid types.UID, v *volumeID) string {
	if v.block {
		return filepath.Join(p.plugin(), blockDirName, "publish", v.name, string(uid))
	}
	return filepath.Join(p.files(uid, v.name), "mount")
}

// record is the record of a volume of a pod.
func (p paths) record(uid types.UID, v *volumeID) string {
	if v.block {
		return filepath.Join(p.plugin(), blockDirName, v.name, "data", string(uid)+".json")
	}
	return filepath.Join(p.files(uid, v.name), recordName)
}

// volumeID identifies a volume on the node.
type volumeID struct {
	driver, handle string
	name           string // of the PersistentVolume, or in the pod
	block          bool
}

// sharesStaging reports whether two volumes are staged at one path: those of PersistentVolumes with one
// handle are, unless they are devices.
func (v *volumeID) sharesStaging(other *volumeID) bool {
	return v.driver == other.driver && v.handle == other.handle && v.block == other.block && (!v.block || v.name == other.name)
}

// damagedID identifies a volume of a pod whose record cannot be read.
type damagedID struct {
	uid   types.UID
	name  string
	block bool
}

// Lifecycle modes in a record.
const (
	persistent = "Persistent"
	ephemeral  = "Ephemeral"
)

// record is what is written about a volume before its driver is called. All values are
// text, as the kubelet reads them; its names have no prefix.
type record struct {
	Name      string `json:"specVolID"`
	Handle    string `json:"volumeHandle"`
	Driver    string `json:"driverName"`
	Node      string `json:"nodeName,omitempty"`
	Lifecycle string `json:"volumeLifecycleMode,omitempty"`
	// AttachmentID is the name of the VolumeAttachment.
	AttachmentID string `json:"attachmentID,omitempty"`

	// Boot is the boot in which the volume was mounted for the pod; "" while it may be incomplete. What is
	// staged has none.
	Boot string `json:"sublet.dev/boot,omitempty"`
	// Attachable is "true" for a volume that an attacher detaches.
	Attachable string `json:"sublet.dev/attachable,omitempty"`
	// Size is the size in bytes that the driver last got.
	Size string `json:"sublet.dev/size,omitempty"`
	// OnePod is "true" for a volume that no other pod may use meanwhile.
	OnePod string `json:"sublet.dev/onePod,omitempty"`
}

func (r *record) id(block bool) volumeID {
	return volumeID{driver: r.Driver, handle: r.Handle, name: r.Name, block: block}
}

// size is Size as a number, 0 if there is none.
func (r *record) size() int64 {
	n, err := strconv.ParseInt(r.Size, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func readRecord(path string) (record, error) {
	f, err := os.Open(path) //nolint:gosec // below the root
	if err != nil {
		return record{}, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxRecordBytes))
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("record %s is damaged: %w", path, err)
	}
	if !pathname.IsElement(r.Driver) || !pathname.IsElement(r.Name) || r.Handle == "" {
		return record{}, fmt.Errorf("record %s is damaged: it has no driver, name or handle", path)
	}
	return r, nil
}

// writeRecord writes a record durably, and makes its directory.
func writeRecord(path string, r record) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o750)
	}
	if err == nil {
		err = atomicfile.Write(path, data)
	}
	if err != nil {
		return fmt.Errorf("write the record of volume %s: %w", r.Name, err)
	}
	return nil
}

// removeRecordFile removes a record, and what calls of writeRecord that were interrupted have left of it.
func removeRecordFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.RemovePartial(path)
}

// inlineHandle is the handle of a volume in the spec of a pod, as the kubelet makes it.
func inlineHandle(uid types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(uid) + name))
	return "csi-" + hex.EncodeToString(sum[:])
}

// found is a record on disk.
type found struct {
	uid   types.UID
	id    volumeID
	entry record
	err   error // it is damaged; id has the name
}

// published returns the volumes of pods on disk, and why it could not be read which ones some pods have.
// The error means that there may be more pods.
func (p paths) published() (list []found, unread map[types.UID]error, err error) {
	pods, err := dirNames(p.pods())
	unread = map[types.UID]error{}
	for _, pod := range pods {
		volumes, podErr := p.publishedFor(types.UID(pod))
		list = append(list, volumes...)
		if podErr != nil {
			unread[types.UID(pod)] = podErr
		}
	}
	return list, unread, err
}

// publishedFor returns the volumes of one pod on disk.
func (p paths) publishedFor(uid types.UID) (list []found, err error) {
	for _, block := range []bool{false, true} {
		dir := p.files(uid, "x")
		if block {
			dir = p.device(uid, "x")
		}
		names, dirErr := dirNames(filepath.Dir(dir))
		err = errors.Join(err, dirErr)
		for _, name := range names {
			id := volumeID{name: name, block: block}
			r, readErr := readRecord(p.record(uid, &id))
			if readErr == nil {
				id = r.id(block)
			}
			list = append(list, found{uid, id, r, readErr})
		}
	}
	return list, err
}

// staged returns the staged volumes on disk, and the directories of volumes without a record, as an agent leaves them that is
// killed before it has written one or after it has removed it. The error means that there may be more.
func (p paths) staged() (list []found, unrecorded []string, err error) {
	drivers, err := dirNames(p.plugin())
	for _, driver := range drivers {
		names, dirErr := dirNames(filepath.Join(p.plugin(), driver))
		err = errors.Join(err, dirErr)
		for _, name := range names {
			path, block := filepath.Join(p.plugin(), driver, name, recordName), driver == blockDirName
			if block {
				path = filepath.Join(p.plugin(), driver, name, "data", recordName)
			}
			switch r, readErr := readRecord(path); {
			case readErr == nil:
				list = append(list, found{id: r.id(block), entry: r})
			case !errors.Is(readErr, fs.ErrNotExist):
				err = errors.Join(err, readErr)
			case block || stagingName.MatchString(name): // others are not ours
				unrecorded = append(unrecorded, filepath.Dir(path))
			}
		}
	}
	return list, unrecorded, err
}

// dirNames returns the names in a directory without those that begin with a dot. There are
// none if it does not exist.
func dirNames(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, err
}
