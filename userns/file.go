package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

const (
	fileName = "userns"
	maxFile  = 4 << 10
)

// file is the content of the file of a pod, in the format of the kubelet.
type file struct {
	Users  []mapping `json:"uidMappings"`
	Groups []mapping `json:"gidMappings"`
}

type mapping struct {
	Host      uint32 `json:"hostId"`
	Container uint32 `json:"containerId"`
	Length    uint32 `json:"length"`
}

// parse returns the index of the range in a file.
func parse(b []byte) (index uint32, err error) {
	var f file
	if err := json.Unmarshal(b, &f); err != nil {
		return 0, err
	}
	if len(f.Users) != 1 || !slices.Equal(f.Users, f.Groups) {
		return 0, errors.New("uidMappings and gidMappings differ or are not one range")
	}
	switch m := f.Users[0]; {
	case m.Length != IDsPerPod || m.Container != 0:
		return 0, fmt.Errorf("range must have %d ids and container id 0", IDsPerPod)
	default:
		return m.Host / IDsPerPod, fits(m.Host, 1)
	}
}

// write creates the file of a pod atomically.
func write(podsDir string, uid types.UID, index uint32) error {
	ids := []mapping{{Host: index * IDsPerPod, Length: IDsPerPod}}
	b, err := json.Marshal(file{Users: ids, Groups: ids})
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(podsDir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // only read
	name := path.Join(string(uid), fileName)
	f, err := dir.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	// After a power failure the name must not refer to an empty file.
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return dir.Rename(name+".new", name)
}

// readAll calls register with the range of each pod that has one. It continues after
// an error and joins the errors.
func readAll(podsDir string, register func(uid types.UID, index uint32) error) error {
	dir, err := os.OpenRoot(podsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // only read
	pods, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range pods {
		if !p.IsDir() {
			continue
		}
		index, err := read(dir, path.Join(p.Name(), fileName))
		if err == nil {
			err = register(types.UID(p.Name()), index)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("ids of pod %s: %w", p.Name(), err))
		}
	}
	return errors.Join(errs...)
}

func read(dir *os.Root, name string) (index uint32, err error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // only read
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return 0, err
	}
	return parse(b)
}
