//go:build linux || darwin

package hostprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// credential returns the user and groups of the container; nil if they are those of this
// process. An ordinary user cannot set others: that is an error.
func credential(c *embedded.Container) (*syscall.Credential, error) {
	sc := c.Config.GetLinux().GetSecurityContext()
	name := c.Image.User
	switch {
	case sc.GetRunAsUser() != nil:
		name = strconv.FormatInt(sc.GetRunAsUser().GetValue(), 10)
	case sc.GetRunAsUsername() != "":
		name = sc.GetRunAsUsername()
	}
	root := os.Geteuid() == 0
	if name == "" && (len(sc.GetSupplementalGroups()) == 0 || !root) {
		return nil, ourGroups(sc.GetSupplementalGroups())
	}
	if name == "" {
		name = "0"
	}
	uid, gid, err := resolveUser(name)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	groups := sc.GetSupplementalGroups()
	if sc.GetRunAsGroup() != nil {
		gid = uint32(sc.GetRunAsGroup().GetValue())
		groups = append(slices.Clone(groups), int64(gid))
	}
	if !root {
		if int(uid) == os.Geteuid() {
			return nil, ourGroups(groups)
		}
		return nil, status.Errorf(codes.FailedPrecondition,
			"run as user %s: host processes of an ordinary user run as that user (%d); run as root to use another", name, os.Geteuid())
	}
	cred := &syscall.Credential{Uid: uid, Gid: gid}
	for _, g := range sc.GetSupplementalGroups() {
		cred.Groups = append(cred.Groups, uint32(g))
	}
	return cred, nil
}

// ourGroups returns an error for groups that this process does not have.
func ourGroups(want []int64) error {
	have, err := os.Getgroups()
	if err != nil {
		return fmt.Errorf("look up groups: %w", err)
	}
	for _, g := range want {
		if int(g) != os.Getegid() && !slices.Contains(have, int(g)) {
			return status.Errorf(codes.FailedPrecondition,
				"run with group %d: host processes of an ordinary user have its groups %v; run as root to use others", g, have)
		}
	}
	return nil
}

// explainDenied names the directory that keeps the user of a process from its working directory: the kernel reports that as if the
// program could not be run.
func explainDenied(err error, dir string, cred *syscall.Credential) error {
	if cred == nil || cred.Uid == 0 || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if real, linkErr := filepath.EvalSymlinks(dir); linkErr == nil {
		dir = real
	}
	var above []string
	for at := dir; ; at = filepath.Dir(at) {
		above = append(above, at)
		if at == filepath.Dir(at) {
			break
		}
	}
	for _, at := range slices.Backward(above) {
		if st, statErr := os.Stat(at); statErr == nil && !mayEnter(st, cred) {
			return fmt.Errorf("user %d may not enter the directory %s, of mode %s: %w", cred.Uid, at, st.Mode(), err)
		}
	}
	return err
}

// mayEnter reports whether the mode of a directory lets a user pass.
func mayEnter(dir fs.FileInfo, cred *syscall.Credential) bool {
	st, ok := dir.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	switch mode := dir.Mode().Perm(); {
	case st.Uid == cred.Uid:
		return mode&0o100 != 0
	case st.Gid == cred.Gid || slices.Contains(cred.Groups, st.Gid):
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// resolveUser parses user[:group], each a number or a name of this machine. Without a
// group it is the user's on this machine, 0 for the number of no user, as in
// containerd.
func resolveUser(spec string) (uid, gid uint32, err error) {
	name, group, hasGroup := strings.Cut(spec, ":")
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		uid = uint32(n)
		if u, err := user.LookupId(name); err == nil {
			gid = number(u.Gid)
		}
	} else {
		u, err := user.Lookup(name)
		if err != nil {
			return 0, 0, fmt.Errorf("run as user %q: %w", name, err)
		}
		uid, gid = number(u.Uid), number(u.Gid)
	}
	if hasGroup {
		if n, err := strconv.ParseUint(group, 10, 32); err == nil {
			return uid, uint32(n), nil
		}
		g, err := user.LookupGroup(group)
		if err != nil {
			return 0, 0, fmt.Errorf("run as group %q: %w", group, err)
		}
		gid = number(g.Gid)
	}
	return uid, gid, nil
}

func number(s string) uint32 {
	n, _ := strconv.ParseUint(s, 10, 32)
	return uint32(n)
}
