// Package owner stores the id with which an agent labels its pods, and marks directories
// with it.
package owner

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/atomicfile"
)

const (
	fileName = "owner-id"
	maxFile  = 1 << 10
)

// ErrNoID is wrapped by the error for a directory without a usable id.
var ErrNoID = errors.New("no usable owner id")

// remedy describes how to repair an unusable file. With a new id the agent would not
// recognize its running pods.
const remedy = "write the id to it, which is the label sublet.dev/owner of the pods that this agent runs, " +
	"or, if none of them runs, have a new one made: remove the file"

var valid = regexp.MustCompile(`^[a-z2-7]{26}$`)

// Load returns the id stored in dir. The error wraps fs.ErrNotExist if there is none, and
// ErrNoID if the file is damaged.
func Load(dir string) (string, error) {
	path := filepath.Join(dir, fileName)
	text, err := readFile(path)
	if err != nil {
		return "", fmt.Errorf("owner id: %w", err)
	}
	id := strings.TrimSpace(text)
	if !valid.MatchString(id) {
		return "", fmt.Errorf("%w: %s is damaged (%d bytes instead of 26 characters); %s", ErrNoID, path, len(text), remedy)
	}
	return id, nil
}

// LoadOrCreate returns the id stored in dir, and creates one if there is none. podsDir is
// the directory of the pods: if it has any, and adopt is false, a missing id is an error
// that wraps ErrNoID, because the pods carry the id that was lost. dir must exist and
// must not be used by another process.
func LoadOrCreate(dir, podsDir string, adopt bool) (string, error) {
	id, err := Load(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	kept, err := os.ReadDir(podsDir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("list pods of an earlier agent: %w", err)
	case len(kept) > 0 && !adopt:
		return "", fmt.Errorf("%w: %s is missing, but %s has pods; %s and all in %s",
			ErrNoID, filepath.Join(dir, fileName), podsDir, remedy, podsDir)
	}
	return Create(dir)
}

// ID is the id of a directory that is loaded later. Its zero value is "".
type ID struct{ id atomic.Pointer[string] }

// String returns the id, or "" before it was loaded. It can be called from any goroutine.
func (i *ID) String() string {
	if id := i.id.Load(); id != nil {
		return *id
	}
	return ""
}

// LoadOrCreate sets the id to the result of the function LoadOrCreate.
func (i *ID) LoadOrCreate(dir, podsDir string, adopt bool) error {
	id, err := LoadOrCreate(dir, podsDir, adopt)
	if err == nil {
		i.id.Store(&id)
	}
	return err
}

// Create creates an id and stores it in dir atomically. dir must exist and must not be
// used by another process.
func Create(dir string) (string, error) {
	id := strings.ToLower(rand.Text())
	path := filepath.Join(dir, fileName)
	if err := errors.Join(atomicfile.RemovePartial(path), atomicfile.Write(path, []byte(id+"\n"))); err != nil {
		return "", fmt.Errorf("save owner id: %w", err)
	}
	return id, nil
}

func readFile(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	return string(text), err
}

// MarkName is the name of the file that marks a directory. It begins with a dot, so that
// log shippers ignore it. It must be removed last, so that the next process continues
// an interrupted removal.
const MarkName = ".sublet-owner"

// Mark marks dir, below root, with id. An existing mark is not changed. An empty one is none: its id was
// not written, because the process was killed or the machine lost power.
func Mark(root *os.Root, dir, id string) error {
	name, flags := filepath.Join(dir, MarkName), os.O_WRONLY|os.O_CREATE|os.O_EXCL
	if info, err := root.Lstat(name); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		flags = os.O_WRONLY
	}
	f, err := root.OpenFile(name, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, root.Remove(name)) // part of an id is the mark of another
	}
	return nil
}

// unfinishedPrefix begins the names of directories that are not complete yet. They have the id in the
// name, and so an owner from the beginning.
const unfinishedPrefix = MarkName + "_"

// MakeMarked makes dir, below root, with a mark from the beginning: it gets its name when it has the mark.
// A kill of the process leaves a directory of another name, which the next call for uid completes, and
// which IsOf recognizes. dir must not exist. The mode is 0755.
func MakeMarked(root *os.Root, dir, id, uid string) error {
	unfinished := unfinishedPrefix + id + "_" + uid
	if err := root.Mkdir(unfinished, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err := root.Chmod(unfinished, 0o755) // whatever the umask
	if err == nil {
		err = Mark(root, unfinished, id)
	}
	if err == nil {
		err = root.Rename(unfinished, dir)
	}
	if err != nil {
		return errors.Join(err, root.RemoveAll(unfinished))
	}
	return nil
}

// IsOf reports whether dir, below root, belongs to id: it has its mark, or will get it.
func IsOf(root *os.Root, dir, id string) bool {
	return strings.HasPrefix(dir, unfinishedPrefix+id+"_") || MarkOf(root, dir) == id
}

// MarkOf returns the id with which dir is marked, or "" if there is no readable mark.
func MarkOf(root *os.Root, dir string) string {
	f, err := root.OpenFile(filepath.Join(dir, MarkName), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
