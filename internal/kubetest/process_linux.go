package kubetest

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel kill the command when this process is killed.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
