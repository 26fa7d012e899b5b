package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// defaultFSType is what an empty device is formatted with, as by the kubelet.
	defaultFSType = "ext4"
	// blankBytes at the beginning and the end of a device are zero if it is empty. What blkid(8) does not know may be there, too.
	blankBytes = 1 << 20
	// blkidNothing is the exit code of blkid(8) when it has found nothing, also because it could not read.
	blkidNothing = 2
	// Bits of the exit code of fsck(8).
	fsckCorrected, fsckUncorrected = 1, 4
)

// disk is a block device with a file system, or an empty one that gets one.
type disk struct {
	device   string
	fsType   string   // "": that which the device has
	options  []string // of mount(8)
	readOnly bool
	log      *slog.Logger
}

// newDisk returns the disk of a local PersistentVolume.
func newDisk(v *DriverVolume, device string) *disk {
	d := &disk{device: device, options: slices.Clone(v.PersistentVolume.Spec.MountOptions)}
	if t := v.PersistentVolume.Spec.Local.FSType; t != nil {
		d.fsType = *t
	}
	if v.ReadOnly {
		d.options = append(d.options, "ro")
	}
	d.readOnly = slices.Contains(strings.Split(strings.Join(d.options, ","), ","), "ro")
	return d
}

// mount mounts the device on a directory. An empty one is formatted first, and any other one checked.
func (d *disk) mount(ctx context.Context, path string) error {
	if d.fsType != "" && (checkElement("fsType", d.fsType) != nil || strings.HasPrefix(d.fsType, "-")) {
		return fmt.Errorf("invalid fsType %q", d.fsType)
	}
	found, err := d.find(ctx)
	switch {
	case err != nil:
	case found == "" && d.readOnly:
		err = fmt.Errorf("%s is empty, and is not formatted for a volume that is read-only", d.device)
	case found == "":
		found = cmp.Or(d.fsType, defaultFSType)
		err = d.format(ctx, found)
	case !d.readOnly:
		err = d.check(ctx)
	}
	if err != nil {
		return err
	}
	fsType := cmp.Or(d.fsType, found)
	args := []string{"-t", fsType}
	if len(d.options) > 0 {
		args = append(args, "-o", strings.Join(d.options, ","))
	}
	if _, err := run(ctx, "mount", append(args, "--", d.device, path)...); err != nil {
		if found != fsType {
			err = fmt.Errorf("it has a file system of type %s, not %s: %w", found, fsType, err)
		}
		return fmt.Errorf("mount %s: %w", d.device, err)
	}
	return nil
}

// find returns the type of what is on the device, "" if it is empty.
func (d *disk) find(ctx context.Context) (string, error) {
	out, err := run(ctx, "blkid", "-p", "-s", "TYPE", "-s", "USAGE", "-s", "PTTYPE", "-o", "export", d.device)
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != blkidNothing) {
		return "", fmt.Errorf("find out what is on %s: %w", d.device, err)
	}
	found := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		found[name] = value
	}
	switch usage := found["USAGE"]; {
	case usage != "" && usage != "filesystem": // of a volume group, a RAID, an encrypted device, or swap
		return "", fmt.Errorf("%s has %s, which is no file system, and is left as it is", d.device, found["TYPE"])
	case found["TYPE"] != "":
		return found["TYPE"], nil
	case found["PTTYPE"] != "":
		return "", fmt.Errorf("%s has a partition table (%s), and is left as it is", d.device, found["PTTYPE"])
	}
	isBlank, err := isBlank(d.device)
	if err != nil {
		return "", fmt.Errorf("find out what is on %s: %w", d.device, err)
	}
	if !isBlank {
		return "", fmt.Errorf("%s has data that is no known file system, and is left as it is: an empty device has only zeros in its first and last MiB", d.device)
	}
	return "", nil
}

// isBlank reports whether there are only zeros where something would be, on a device that nothing else uses.
func isBlank(device string) (bool, error) {
	f, err := os.OpenFile(device, os.O_RDONLY|os.O_EXCL, 0) //nolint:gosec // the path of an administrator
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // only read
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	if size == 0 {
		return false, errors.New("it has a size of 0")
	}
	buf := make([]byte, min(size, blankBytes))
	for _, offset := range []int64{0, size - int64(len(buf))} {
		if _, err := f.ReadAt(buf, offset); err != nil {
			return false, err
		}
		if slices.ContainsFunc(buf, func(b byte) bool { return b != 0 }) {
			return false, nil
		}
	}
	return true, nil
}

// format makes a file system. It is not interrupted: half a file system is data that is left as it is.
func (d *disk) format(ctx context.Context, fsType string) error {
	args := []string{d.device}
	switch fsType {
	case "ext3", "ext4":
		args = []string{"-F", "-m0", d.device} // without a question, and without blocks for root alone
	case "xfs":
		args = []string{"-f", d.device}
	}
	if _, err := run(context.WithoutCancel(ctx), "mkfs."+fsType, args...); err != nil {
		return fmt.Errorf("format %s: %w", d.device, err)
	}
	d.log.Info("empty device formatted", slog.String("fsType", fsType))
	return nil
}

// check repairs the file system of a device that is not mounted elsewhere. One that is not damaged is mounted also where that
// cannot be found out.
func (d *disk) check(ctx context.Context) error {
	f, err := os.OpenFile(d.device, os.O_RDONLY|os.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	if err != nil {
		return err
	}
	_ = f.Close() // only read
	_, err = run(ctx, "fsck", "-a", d.device)
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case ok && exit.ExitCode()&fsckUncorrected != 0:
		return fmt.Errorf("the file system of %s is damaged, and fsck does not repair it by itself: %w", d.device, err)
	case ok && exit.ExitCode() == fsckCorrected:
		d.log.Warn("file system repaired")
	default:
		d.log.Warn("file system not checked", slog.String("err", err.Error()))
	}
	return nil
}

// run runs a program of the node and returns its output. The error has what it has said. A program whose ctx is done is asked to
// end, so that it leaves no file system half repaired.
func run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	var out, warnings strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &warnings
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("the node has no program %s: %w", name, err)
	case err != nil:
		return out.String(), fmt.Errorf("%s: %w: %.512s", name, err, strings.TrimSpace(warnings.String()+out.String()))
	}
	return out.String(), nil
}
