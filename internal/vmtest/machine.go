//go:build linux

package vmtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Env is the environment variable that names the directory of the image.
const Env = "SUBLET_VM"

const (
	bootTimeout = 10 * time.Minute // of an emulated machine beside other work
	readyLine   = "vmtest ready"
	consoleTail = 2 << 10
	// The emulated time stamp counter is reliable, and far faster to read than other clocks.
	fastKernel = "mitigations=off tsc=reliable init_on_alloc=0 audit=0"
)

// Config is the configuration of a Machine. Every field is optional.
type Config struct {
	// Image is a directory that image.sh has filled. Default: the value of SUBLET_VM.
	Image string
	// Share is a directory, a copy of which the machine has read-only at /host. It is
	// copied at each boot. Default: none.
	Share string
	// Durable makes the disk keep what the machine has flushed, and only that, when it is
	// killed. Without it nothing is promised after Kill.
	Durable bool
	// Memory is the size of its memory in MiB. Default: 2048.
	Memory int
	// CPUs is the number of its processors. Default: those of the host, from 2 to 4.
	CPUs int
	// Kernel has further words of the kernel's command line.
	Kernel string
}

// Machine is a virtual machine and its disk. Its methods are not to be called concurrently,
// except Kill.
type Machine struct {
	cfg  Config
	dir  string // its files
	proc *process
	conn net.Conn
	in   *bufio.Reader
	runs int
	pace int // of the last MustBoot
}

// New returns a machine with a new disk, which is not running yet. The caller closes it.
func New(cfg Config) (*Machine, error) {
	if cfg.Image == "" {
		cfg.Image = os.Getenv(Env)
	}
	if cfg.Image == "" {
		return nil, fmt.Errorf("virtual machine: %s must name a directory filled by internal/vmtest/image.sh", Env)
	}
	image, err := filepath.Abs(cfg.Image)
	if err != nil {
		return nil, err
	}
	cfg.Image = image
	if cfg.Memory == 0 {
		cfg.Memory = 2048
	}
	if cfg.CPUs == 0 {
		cfg.CPUs = min(max(runtime.NumCPU(), 2), 4)
	}
	dir, err := os.MkdirTemp("", "vmtest-") // the path of a socket must be short
	if err != nil {
		return nil, err
	}
	m := &Machine{cfg: cfg, dir: dir}
	if err := command("qemu-img", "create", "-q", "-f", "qcow2", "-b", m.image("disk.img"), "-F", "raw", m.file("disk.qcow2")); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Machine) file(name string) string  { return filepath.Join(m.dir, name) }
func (m *Machine) image(name string) string { return filepath.Join(m.cfg.Image, name) }

// Boot starts the machine and waits until systemd has started its services.
func (m *Machine) Boot(ctx context.Context) error {
	if m.proc != nil {
		return errors.New("virtual machine: it is running already")
	}
	if m.cfg.Share != "" {
		if err := diskOf(m.cfg.Share, m.file("share.img")); err != nil {
			return fmt.Errorf("virtual machine: copy %s: %w", m.cfg.Share, err)
		}
	}
	proc, err := startProcess(m.args())
	if err != nil {
		return fmt.Errorf("virtual machine: %w", err)
	}
	m.proc = proc
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	if err := m.connect(ctx); err != nil {
		return errors.Join(m.failed("boot", err), m.Kill())
	}
	return nil
}

// args is the command that emulates the machine. A processor of few features takes half the
// time of one with all of them, whose vector instructions are slow to emulate.
func (m *Machine) args() []string {
	cache := "unsafe"
	if m.cfg.Durable {
		cache = "writeback"
	}
	args := []string{
		"qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "qemu64", "-m", strconv.Itoa(m.cfg.Memory), "-smp", strconv.Itoa(m.cfg.CPUs),
		"-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot", "-serial", "file:" + m.file("console"),
		"-chardev", "socket,id=vmtest,server=on,wait=off,path=" + m.file("port"), "-device", "virtio-serial", "-device", "virtserialport,chardev=vmtest,name=vmtest",
		"-device", "virtio-rng-pci",
		"-kernel", m.image("vmlinuz"), "-initrd", m.image("initrd"),
		"-append", strings.TrimSpace("root=/dev/vda rw console=ttyS0 quiet panic=-1 psi=1 " + fastKernel + " " + m.cfg.Kernel),
		"-drive", "if=virtio,format=qcow2,cache=" + cache + ",file=" + m.file("disk.qcow2"),
	}
	if m.cfg.Share != "" {
		args = append(args, "-drive", "if=virtio,format=raw,readonly=on,file="+m.file("share.img"))
	}
	return args
}

// connect waits for the guest's side of the port.
func (m *Machine) connect(ctx context.Context) error {
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", m.file("port"))
		if err == nil {
			m.conn, m.in = conn, bufio.NewReader(conn)
			break
		}
		select {
		case <-m.proc.ended:
			return fmt.Errorf("qemu: %w", m.proc.err())
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	defer m.limit(ctx)()
	for {
		line, err := m.in.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.TrimSpace(line) == readyLine {
			return nil
		}
	}
}

// limit ends reads and writes of the port when ctx ends, until the returned function is
// called.
func (m *Machine) limit(ctx context.Context) func() {
	conn := m.conn
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// Run runs a script of bash as root, writes what it prints to out, and returns its exit
// code. After an error the machine is of no use until it was killed and booted again.
func (m *Machine) Run(ctx context.Context, script string, out io.Writer) (code int, err error) {
	if m.conn == nil {
		return -1, errors.New("virtual machine: it is not running")
	}
	defer m.limit(ctx)()
	m.runs++
	id := fmt.Sprintf("vmtest-%d", m.runs)
	if _, err := fmt.Fprintf(m.conn, "%s %s\n", id, base64.StdEncoding.EncodeToString([]byte(script))); err != nil {
		return -1, m.failed("send script", err)
	}
	last := false // the line before the end of the output, which the guest adds, is held back
	for {
		line, err := m.in.ReadString('\n')
		if text, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), id+" exit "); ok && err == nil {
			return strconv.Atoi(text)
		}
		if last {
			line = "\n" + line
		}
		last = strings.HasSuffix(line, "\n")
		if _, err := io.WriteString(out, strings.TrimSuffix(line, "\n")); err != nil {
			return -1, err
		}
		if err != nil {
			return -1, m.failed("run script", errors.Join(ctx.Err(), err))
		}
	}
}

// Kill cuts the power. What the machine had not written to its disk is lost. It may be
// called while Run waits in another goroutine.
func (m *Machine) Kill() error {
	if m.proc == nil {
		return nil
	}
	m.proc.kill()
	return m.down()
}

// AwaitExit waits until the machine powers off or reboots by itself.
func (m *Machine) AwaitExit(ctx context.Context) error {
	if m.proc == nil {
		return nil
	}
	select {
	case <-m.proc.ended:
		return m.down()
	case <-ctx.Done():
		return m.failed("power off", ctx.Err())
	}
}

// down forgets a process that has ended.
func (m *Machine) down() error {
	<-m.proc.ended
	m.proc = nil
	if m.conn == nil {
		return nil
	}
	err := m.conn.Close()
	m.conn = nil
	return err
}

// Close kills the machine and removes its disk.
func (m *Machine) Close() error {
	return errors.Join(m.Kill(), os.RemoveAll(m.dir))
}

// Console returns the end of what the machine has printed on its console.
func (m *Machine) Console() string {
	b, err := os.ReadFile(m.file("console"))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-consoleTail):]))
}

func (m *Machine) failed(what string, err error) error {
	return fmt.Errorf("virtual machine: %s: %w; console:\n%s", what, err, m.Console())
}
