//go:build !linux

package cgroup

import (
	"errors"
	"fmt"
)

func openV1(string, string) (tree, []string, error) {
	return nil, nil, fmt.Errorf("cgroups: %w", errors.ErrUnsupported)
}

func openV2(string, string) (tree, []string, error) {
	return nil, nil, fmt.Errorf("cgroups: %w", errors.ErrUnsupported)
}

func withUnits(t tree, _ units) (tree, bool) { return t, false }

func findUnits() units { return nil }
