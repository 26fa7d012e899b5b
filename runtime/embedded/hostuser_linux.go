package embedded

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// credential is who the container runs as; nil when that is who we are.
func credential(c *Container) (*syscall.Credential, error) {
	sc := c.Config.GetLinux().GetSecurityContext()
	who := c.Image.User
	switch {
	case sc.GetRunAsUser() != nil:
		who = strconv.FormatInt(sc.GetRunAsUser().GetValue(), 10)
	case sc.GetRunAsUsername() != "":
		who = sc.GetRunAsUsername()
	}
	if who == "" && (len(sc.GetSupplementalGroups()) == 0 || os.Geteuid() != 0) {
		return nil, nil
	}
	if who == "" {
		who = "0"
	}
	uid, gid, err := resolveUser(who)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if sc.GetRunAsGroup() != nil {
		gid = uint32(sc.GetRunAsGroup().GetValue())
	}
	if os.Geteuid() != 0 {
		if int(uid) == os.Geteuid() {
			return nil, nil
		}
		return nil, status.Errorf(codes.FailedPrecondition,
			"run as user %s: host processes of an ordinary user run as that user (%d); root is needed for another", who, os.Geteuid())
	}
	cred := &syscall.Credential{Uid: uid, Gid: gid}
	for _, g := range sc.GetSupplementalGroups() {
		cred.Groups = append(cred.Groups, uint32(g))
	}
	return cred, nil
}

// resolveUser reads user[:group], each a number or a name of this machine.
func resolveUser(who string) (uid, gid uint32, err error) {
	name, group, hasGroup := strings.Cut(who, ":")
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		uid = uint32(n)
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

// openTerminal makes a pseudo terminal.
func openTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	fail := func(err error) (*os.File, *os.File, error) {
		_ = master.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	conn, err := master.SyscallConn()
	if err != nil {
		return fail(err)
	}
	var n int
	var ierr error
	if err := conn.Control(func(fd uintptr) {
		if ierr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ierr == nil {
			n, ierr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil {
		return fail(err)
	}
	if ierr != nil {
		return fail(ierr)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return fail(err)
	}
	return master, slave, nil
}

func resizeTerminal(f *os.File, s Size) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	if err := conn.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Height, Col: s.Width})
	}); err != nil {
		return err
	}
	return ierr
}
