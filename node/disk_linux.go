package node

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
)

// DiskCapacity returns the size of the file system that dir is on, or will be once it is
// made. It is zero for file systems without a size.
func DiskCapacity(dir string) (resource.Quantity, error) {
	for {
		_, err := os.Stat(dir)
		if err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return resource.Quantity{}, fmt.Errorf("size of the file system of %s: %w", dir, err)
	}
	unit := int64(st.Frsize) //nolint:unconvert // 32 bits on some architectures
	if unit == 0 {
		unit = int64(st.Bsize) //nolint:unconvert // as above
	}
	return *resource.NewQuantity(int64(st.Blocks)*unit, resource.BinarySI), nil
}
