package userns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
)

// owner is the user whose subordinate ids are allocated to pods, as with the kubelet.
const owner = "kubelet"

// maxSubIDs bounds what is read of a file: the lines of 65,536 users have some megabytes.
const maxSubIDs = 32 << 20

// granted returns the ids that may be allocated: those granted in /etc/subuid and
// /etc/subgid, or those of the configuration if there is no grant.
func granted(cfg Config) (first, pods uint32, err error) {
	if cfg.SubIDFS == nil {
		return cfg.FirstID, uint32(cfg.MaxPods), nil
	}
	users, err := subIDs(cfg.SubIDFS, "subuid")
	if err != nil {
		return 0, 0, err
	}
	groups, err := subIDs(cfg.SubIDFS, "subgid")
	switch {
	case err != nil:
		return 0, 0, err
	case users != groups:
		return 0, 0, fmt.Errorf("/etc/subuid and /etc/subgid grant %s different ids", owner)
	case users == subRange{}:
		return cfg.FirstID, uint32(cfg.MaxPods), nil
	}
	pods = users.count / IDsPerPod
	if pods > 0 && uint64(users.first)+uint64(users.count) == 1<<32 {
		pods-- // the last range contains an invalid id
	}
	if err := fits(users.first, int64(pods)); err != nil {
		return 0, 0, fmt.Errorf("/etc/subuid: range of %s: %w", owner, err)
	}
	return users.first, pods, nil
}

type subRange struct{ first, count uint32 }

// subIDs returns the range that a file with lines user:first:count grants to owner. It
// is empty without a file or line.
func subIDs(etc fs.FS, name string) (got subRange, err error) {
	f, err := etc.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return got, nil
	}
	if err != nil {
		return got, fmt.Errorf("read subordinate ids: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	rest := &io.LimitedReader{R: f, N: maxSubIDs}
	lines := bufio.NewScanner(rest)
	for lines.Scan() {
		fields := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if fields[0] != owner {
			continue
		}
		if got != (subRange{}) {
			return got, fmt.Errorf("/etc/%s grants %s more than one range", name, owner)
		}
		if len(fields) != 3 {
			return got, fmt.Errorf("/etc/%s: line of %s must have the form user:first:count", name, owner)
		}
		first, err1 := strconv.ParseUint(fields[1], 10, 32)
		count, err2 := strconv.ParseUint(fields[2], 10, 32)
		if err := errors.Join(err1, err2); err != nil || count == 0 {
			return got, fmt.Errorf("/etc/%s: line of %s must have the form user:first:count", name, owner)
		}
		got = subRange{uint32(first), uint32(count)}
	}
	if rest.N == 0 { // the rest may have a grant, and the last line may have more digits
		return subRange{}, fmt.Errorf("/etc/%s: larger than %d bytes", name, maxSubIDs-1)
	}
	return got, lines.Err()
}
