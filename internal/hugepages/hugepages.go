// Package hugepages knows the sizes of huge pages of a machine.
package hugepages

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const dir = "sys/kernel/mm/hugepages"

// Sizes returns the sizes that the kernel has, in bytes, in the order of its directories. root is the root directory
// of the machine.
func Sizes(root fs.FS) []int64 {
	found, err := fs.Glob(root, dir+"/hugepages-*kB")
	if err != nil {
		return nil
	}
	var sizes []int64
	for _, f := range found {
		text := strings.TrimSuffix(strings.TrimPrefix(path.Base(f), "hugepages-"), "kB")
		if kib, err := strconv.ParseInt(text, 10, 64); err == nil && kib > 0 && kib < 1<<40 {
			sizes = append(sizes, kib<<10)
		}
	}
	return sizes
}

// Dir returns the directory of a size, below the root directory of the machine.
func Dir(size int64) string { return fmt.Sprintf("%s/hugepages-%dkB", dir, size>>10) }

// ResourceName returns the resource of a size as pods request it: hugepages-2Mi, hugepages-1Gi.
func ResourceName(size int64) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
}

// Name returns a size as cgroups have it in the names of files, and the CRI in limits: 2MB, 1GB.
func Name(size int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB"}
	i := 0
	for size >= 1024 && size%1024 == 0 && i < len(units)-1 {
		size, i = size/1024, i+1
	}
	return strconv.FormatInt(size, 10) + units[i]
}
