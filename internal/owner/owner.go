// Package owner keeps the id by which an agent knows what it made, and marks
// directories with it.
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

	"golang.org/x/sys/unix"

	"github.com/sublet-dev/agent/internal/atomicfile"
)

const (
	fileName = "owner-id"
	maxFile  = 1 << 10
)

// ErrNoID is wrapped by the error for a directory in which there is no id that can
// be used, though there should be one.
var ErrNoID = errors.New("no usable owner id")

// What to do about a file that cannot be used. A new id would make strangers of
// all pods that run.
const remedy = "write the id to it, which is the label sublet.dev/owner of the pods that this agent runs, " +
	"or, if none of them runs, have a new one made: remove the file"

var valid = regexp.MustCompile(`^[a-z2-7]{26}$`)

// Load returns the id that is kept in dir. If there is none the error wraps
// fs.ErrNotExist, and ErrNoID if the file holds anything else.
func Load(dir string) (string, error) {
	path := filepath.Join(dir, fileName)
	text, err := readFile(path)
	if err != nil {
		return "", fmt.Errorf("owner id: %w", err)
	}
	id := strings.TrimSpace(text)
	if !valid.MatchString(id) {
		return "", fmt.Errorf("%w: %s is damaged (%d bytes, want 26 characters); %s", ErrNoID, path, len(text), remedy)
	}
	return id, nil
}

// Missing returns the error for a directory that has pods, of which keeps tells,
// but no id.
func Missing(dir, keeps string) error {
	return fmt.Errorf("%w: %s is missing, but %s has pods; %s and all in %s",
		ErrNoID, filepath.Join(dir, fileName), keeps, remedy, keeps)
}

// Create makes an id and keeps it in dir, which must exist and be this process's
// alone. Either the whole file is there afterwards, or none.
func Create(dir string) (string, error) {
	id := strings.ToLower(rand.Text())
	path := filepath.Join(dir, fileName)
	if err := errors.Join(atomicfile.RemovePartial(path), atomicfile.Write(path, []byte(id+"\n"))); err != nil {
		return "", fmt.Errorf("keep the owner id: %w", err)
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

// MarkName is the file that marks a directory. It begins with a dot, so that no
// pattern of a log shipper takes it for a log. Who removes a directory removes it
// last, so that a removal cut short is taken up by the next process.
const MarkName = ".sublet-owner"

// Mark marks dir, below root, as id's. A mark that is there is left as it is.
func Mark(root *os.Root, dir, id string) error {
	f, err := root.OpenFile(filepath.Join(dir, MarkName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	return errors.Join(err, f.Close())
}

// MarkOf returns whose mark dir bears, or "" if it bears none that can be read.
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
