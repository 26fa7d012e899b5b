package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// critestImages are the images of which critest checks more than that they run: their
// users, their tags, and web servers.
func critestImages(self string) []embedded.Image {
	const (
		staging = "gcr.io/k8s-staging-cri-tools/"
		e2e     = "registry.k8s.io/e2e-test-images/"
	)
	idle := pause(self)
	return []embedded.Image{
		{Ref: staging + "test-image-user-uid", User: "1002", Entrypoint: idle},
		{Ref: staging + "test-image-user-username", User: "www-data", Entrypoint: idle},
		{Ref: staging + "test-image-user-uid-group", User: "1003:users", Entrypoint: idle},
		{Ref: staging + "test-image-user-username-group", User: "www-data:100", Entrypoint: idle},
		{Ref: staging + "test-image-tags:1", Aliases: []string{staging + "test-image-tags:2", staging + "test-image-tags:3"}, Entrypoint: idle},
		// One of the cases wants a pull that does not end within a millisecond.
		{Ref: staging + "test-image-tag:test", PullTime: 100 * time.Millisecond, Entrypoint: idle},
		{Ref: e2e + "nginx:1.14-2", Entrypoint: []string{self, "-serve", ":80"}},
		{Ref: e2e + "httpd:2.4.39-4", Entrypoint: []string{self, "-serve", ":80", "-as", "httpd"}},
		{Ref: staging + "hostnet-nginx-amd64", Entrypoint: []string{self, "-serve", ":12003"}},
		{Ref: staging + "hostnet-nginx-arm64", Entrypoint: []string{self, "-serve", ":12003"}},
	}
}

// pause is the command that does nothing. It is not named sleep: one case of critest
// searches for programs of that name.
func pause(self string) []string { return []string{self, "-pause"} }

// shims creates the directory of programs that differ between images and this machine:
// top, which must work without a terminal, and this program, which containers of all
// users must be able to run. It returns the directory, and the path of the program.
func shims(root, self string) (bin, program string, err error) {
	bin = filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", "", fmt.Errorf("make shims: %w", err)
	}
	if err := os.Chmod(bin, 0o755); err != nil { // whatever the umask
		return "", "", fmt.Errorf("make shims: %w", err)
	}
	program = filepath.Join(bin, "embeddedcri")
	if err := place(program, self); err != nil {
		return "", "", fmt.Errorf("make shims: %w", err)
	}
	top := fmt.Appendf(nil, "#!/bin/sh\nexec '%s' -pause\n", strings.ReplaceAll(program, "'", `'\''`))
	script := filepath.Join(bin, "top")
	return bin, program, errors.Join(os.WriteFile(script, top, 0o755), os.Chmod(script, 0o755))
}

// place puts the program self at path: the same file, or a copy where it is on
// another file system.
func place(path, self string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if st, err := os.Stat(self); err == nil && st.Mode()&0o111 == 0o111 && os.Link(self, path) == nil {
		return nil
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // only read
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Chmod(0o755), to.Close())
}
