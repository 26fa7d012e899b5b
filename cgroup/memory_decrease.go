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
	if err != nil || !isLower(desired, limit) || usage < desired {
		return desired, nil //nolint:nilerr // without the controller there is no limit to set
	}
	return limit, inUseError(desired)
}

// setTier sets the limits of a cgroup above pods. Where its pods use more memory than it may have, it keeps the limit that
// it has, and inUse says so: on v2 the kernel would kill processes of pods that did nothing wrong, and on v1 it rejects the limit,
// which must keep no pod from being set up. What the kernel can reclaim of files does not count: those of all pods together can
// fill any limit.
func setTier(t tree, group string, l limits) (set limits, inUse, err error) {
	desired := l.memory
	if desired > 0 && !t.rejectsLimitBelowUsage() {
		limit, usage, err := t.memory(group) // an error without the cgroup
		if err == nil && isLower(desired, limit) && usage-t.fileCache(group) >= desired {
			l.memory, inUse = limit, inUseError(desired)
		}
	}
	set, rejected, err := setPossible(t, group, l)
	if err == nil && rejected != nil {
		inUse = errors.Join(inUse, rejectedLimit(t, desired, rejected))
	}
	return set, inUse, err
}

// raised returns the limits that an existing cgroup is to get while its containers are resized: where
// the desired ones are lower, those that it has. kept reports whether there is one. inUse says that
// the desired memory limit could not be set, as by memoryLimit: on v1 the kernel says so when it is set.
func raised(t tree, group string, l, before limits) (now limits, kept bool, inUse error) {
	if limit, usage, err := t.memory(group); err == nil && isLower(l.memory, limit) {
		if usage >= l.memory && !t.rejectsLimitBelowUsage() {
			inUse = inUseError(l.memory)
		}
		l.memory, l.qos.high, kept = limit, before.qos.high, true
	}
	if quota, err := t.quota(group, l.quotaPeriod()); err == nil && isLower(l.quota, quota) {
		l.quota, kept = quota, true
	}
	return l, kept, inUse
}

// isLower reports whether a desired limit is lower than the actual one; 0 is none.
func isLower(desired, actual int64) bool { return desired > 0 && (actual == 0 || desired < actual) }

// setPossible sets limits. On v1 a cgroup cannot have a higher CPU quota than those above it or a lower one
// than those below it, so that a pod's quota is lowered after those of its containers, nor a memory limit
// below its usage: it keeps those that it has then, and gets all others. rejected says why.
func setPossible(t tree, group string, l limits) (set limits, rejected, err error) {
	for {
		err = t.set(group, l)
		possible := l
		switch {
		case err == nil || !t.rejectsLimitBelowUsage():
		case errors.Is(err, unix.EINVAL):
			possible.quota, _ = t.quota(group, l.quotaPeriod()) // 0 without the controller
		case errors.Is(err, unix.EBUSY):
			possible.memory, _, _ = t.memory(group) // the same
		}
		if possible.equal(l) {
			return l, rejected, err
		}
		l, rejected = possible, err
	}
}

// rejectedLimit returns why the kernel has rejected the limits of an existing cgroup for now, if
// it is its memory. Otherwise it is a quota below those of containers, which are changed next.
func rejectedLimit(t tree, desired int64, err error) error {
	if !errors.Is(err, unix.EBUSY) || !t.rejectsLimitBelowUsage() {
		return nil
	}
	return fmt.Errorf("%w: %w", inUseError(desired), err)
}

// inUseError has the kubelet's words, which programs read, but not how much is used: it becomes part of the status, which
// would change at each try.
func inUseError(limit int64) error {
	return fmt.Errorf("cannot set memory limit (%d) below current usage; it is tried again", limit)
}
