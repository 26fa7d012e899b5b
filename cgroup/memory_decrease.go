package cgroup

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// memoryLimit returns the memory limit that an existing cgroup is to get for now: desired or,
// where that is lower and that much is in use, the one that it has, with an error. On v2 the
// kernel reclaims what exceeds a lower limit, and kills processes if it cannot. This is a best
// effort: more may be in use a moment later.
func memoryLimit(t tree, group string, desired int64) (int64, error) {
	if desired == 0 || t.rejectsLimitBelowUsage() {
		return desired, nil
	}
	limit, usage, err := t.memory(group)
	if err != nil || limit > 0 && limit <= desired || usage < desired {
		return desired, nil //nolint:nilerr // without the controller there is no limit to set
	}
	return limit, inUseError(desired)
}

// rejectedLimit returns why the kernel has rejected the limits of an existing cgroup for now, if
// it is its memory. Otherwise it is a quota below those of containers, which are changed next.
func rejectedLimit(t tree, desired int64, err error) error {
	if !errors.Is(err, unix.EBUSY) || !t.rejectsLimitBelowUsage() {
		return nil
	}
	return fmt.Errorf("%w: %w", inUseError(desired), err)
}

// inUseError has not how much is used: it becomes part of the status, which would change at each try.
func inUseError(limit int64) error {
	return fmt.Errorf("memory limit of %d bytes not set: as much or more is in use; it is tried again", limit)
}
