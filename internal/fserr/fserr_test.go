package fserr_test

import (
	"fmt"
	"io/fs"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/fserr"
)

func ExampleIgnoreNotExist() {
	fmt.Println(fserr.IgnoreNotExist(os.Remove("/no/such/file")))
	// Output: <nil>
}

func TestIgnoreNotExist(t *testing.T) {
	require.NoError(t, fserr.IgnoreNotExist(nil))
	require.NoError(t, fserr.IgnoreNotExist(fmt.Errorf("remove: %w", fs.ErrNotExist)))
	require.ErrorIs(t, fserr.IgnoreNotExist(fs.ErrPermission), fs.ErrPermission)
}
