//go:build linux

package vmtest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// process is a running qemu. It is killed with the process that has started it.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
	result error // once ended is closed
}

func startProcess(args []string) (*process, error) {
	p := &process{cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the signal is sent when the thread ends that has started the process
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.result = p.cmd.Wait()
		close(p.ended)
	}()
	return p, <-started
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it fails if it has ended
	<-p.ended
}

// err says why a process has ended.
func (p *process) err() error {
	return fmt.Errorf("ended: %v: %s", p.result, strings.TrimSpace(p.stderr.String())) //nolint:errorlint // nobody unwraps it
}

// diskOf makes file a file system with a copy of a directory.
func diskOf(dir, file string) error {
	size, files := int64(8<<20), int64(256)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		size += (info.Size()+4095)/4096*4096 + 2048 // its blocks and its inode
		return nil
	})
	if err != nil {
		return err
	}
	if err := os.RemoveAll(file); err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Truncate(file, size+size/8); err != nil {
		return err
	}
	return command("mke2fs", "-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-N", fmt.Sprint(files), "-d", dir, file)
}

// command runs a program of this machine.
func command(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin") // of mke2fs
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}
