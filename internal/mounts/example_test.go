package mounts_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sublet-dev/agent/internal/mounts"
)

func ExampleRemove() {
	pods, err := os.MkdirTemp("", "pods")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(pods)
	if err := os.MkdirAll(filepath.Join(pods, "uid-1", "containers", "app"), 0o700); err != nil {
		panic(err)
	}
	fmt.Println(mounts.Remove(context.Background(), pods, "uid-1"))
	left, err := os.ReadDir(pods)
	fmt.Println(len(left), err)
	// Output:
	// <nil>
	// 0 <nil>
}
