//go:build !linux

package node

import (
	"errors"

	"k8s.io/apimachinery/pkg/api/resource"
)

// DiskCapacity is not known on this system.
func DiskCapacity(string) (resource.Quantity, error) {
	return resource.Quantity{}, errors.ErrUnsupported
}
