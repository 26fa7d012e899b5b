//go:build !linux

package containergc_test

import "testing"

func mountOver(t *testing.T, _ string) {
	t.Helper()
	t.Skip("mounts need Linux")
}

func bindReadOnly(t *testing.T, _ string) {
	t.Helper()
	t.Skip("mounts need Linux")
}
