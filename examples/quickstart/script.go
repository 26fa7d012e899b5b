package main

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed manifests/*.yaml
var samples embed.FS

const samplePort = "18080"

// copySamples writes the sample manifests to dir, where they can be edited. It sets
// a free port and a directory for notes in them.
func copySamples(dir, notes string) error {
	port, err := freePort()
	if err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	files, err := fs.Glob(samples, "manifests/*.yaml")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := samples.ReadFile(f)
		if err != nil {
			return err
		}
		text := strings.NewReplacer(samplePort, port, "NOTES", notes).Replace(string(b))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }() // only its number is needed
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", err
	}
	if _, err := strconv.Atoi(port); err != nil {
		return "", err
	}
	return port, nil
}

// step is a change that a user makes to the manifests of a running node.
type step struct {
	at   float64 // as a share of the whole time
	what string
	do   func(dir string) error
}

var steps = []step{
	{0.25, "edit edited.yaml: VERSION 1 becomes 2", func(dir string) error {
		return rewrite(dir, "edited.yaml", func(s string) string { return strings.Replace(s, `value: "1"`, `value: "2"`, 1) })
	}},
	{0.35, "delete deleted.yaml", func(dir string) error { return os.Remove(filepath.Join(dir, "deleted.yaml")) }},
	{0.40, "delete slow-end.yaml: its container takes 3 s to exit", func(dir string) error {
		return os.Remove(filepath.Join(dir, "slow-end.yaml"))
	}},
	{0.45, "overwrite becomes-invalid.yaml with garbage", func(dir string) error {
		return rewrite(dir, "becomes-invalid.yaml", func(string) string { return "\x00 this is: not [a manifest" })
	}},
}

func rewrite(dir, name string, change func(string) string) error {
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	next := path + ".new" // not a manifest by its name, until it is complete
	if err := os.WriteFile(next, []byte(change(string(b))), 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// play carries out the steps within span. It returns when all are done, or ctx is.
func play(ctx context.Context, dir string, span time.Duration, b *board) {
	start := time.Now()
	for _, s := range steps {
		t := time.NewTimer(time.Until(start.Add(time.Duration(s.at * float64(span)))))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		b.note("now: " + s.what)
		if err := s.do(dir); err != nil {
			b.note("could not " + s.what + ": " + err.Error())
		}
	}
}
