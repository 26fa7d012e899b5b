package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Environment variables that host processes get besides their own.
const (
	// EnvTerminationLog is the file whose content becomes the termination
	// message. It is set where the file cannot be mounted at its own path.
	EnvTerminationLog = "SUBLET_TERMINATION_LOG"
	// EnvContainerID tells a process what container it is of. Where nothing better
	// can be had, processes are told by it: see HostProcess.
	EnvContainerID = "SUBLET_CONTAINER_ID"
)

// defaultPath is PATH where neither the pod nor HostConfig has one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// HostConfig is the configuration of a HostProcess executor.
type HostConfig struct {
	// Root is the directory for scratch files, one directory a container: its working
	// directory and HOME unless it asks for another, or a mount of the container
	// hides it, which leaves "/". Default: a temporary directory, made at the first
	// container and removed by Runtime.Close. What a process that was killed has left
	// in Root is swept once nobody uses it any more.
	Root string
	// Path is the PATH of containers that set none [the standard one].
	Path string
	// Env is added to every container's environment: NAME=value. Nothing of the
	// agent's own environment is inherited.
	Env []string
	// Unprivileged does without mount namespaces even for root.
	Unprivileged bool
	// Logger logs once a pod what of it is not available to its containers on a machine
	// without mount namespaces, and directories that cannot be removed [none].
	Logger *slog.Logger
}

// Check finds faults in the configuration.
func (h *HostProcess) Check() error {
	var errs []error
	if h.cfg.Root != "" && !filepath.IsAbs(h.cfg.Root) {
		errs = append(errs, fmt.Errorf("HostProcess: Root %q is not an absolute path", h.cfg.Root))
	}
	for _, pair := range h.cfg.Env {
		if name, _, ok := strings.Cut(pair, "="); !ok || name == "" {
			errs = append(errs, fmt.Errorf("HostProcess: Env %q is not NAME=value", name))
		}
	}
	return errors.Join(errs...)
}

// PodIPs implements Addresser: host processes are on the loopback.
func (h *HostProcess) PodIPs(*v1.PodSandboxConfig) []string { return []string{"127.0.0.1"} }

// agentFile reports whether m is a file that agents mount into every container.
// Without a mount namespace these are left out: a host process has the host's.
func agentFile(c *Container, m *v1.Mount) bool {
	switch path := filepath.Clean(m.GetContainerPath()); path {
	case "/etc/hosts", "/etc/resolv.conf", "/etc/hostname":
		return true
	default:
		return isMessageFile(c, m)
	}
}

// isMessageFile reports whether m is where c leaves its termination message.
func isMessageFile(c *Container, m *v1.Mount) bool {
	path := c.Config.GetAnnotations()[messagePath]
	if path == "" {
		path = "/dev/termination-log"
	}
	return filepath.Clean(m.GetContainerPath()) == filepath.Clean(path)
}

// checkMounts refuses what cannot be mounted here, each mount by name.
// isolated says whether the container gets a mount namespace. What can never be
// mounted, an image, gives Unimplemented, by which clients know it.
func checkMounts(c *Container, isolated bool) error {
	var errs []error
	code := codes.FailedPrecondition
	for _, m := range c.Config.GetMounts() {
		at := m.GetContainerPath()
		switch {
		case !filepath.IsAbs(at):
			errs = append(errs, fmt.Errorf("mount %q: the container path is not absolute", at))
		case m.GetImage().GetImage() != "":
			code = codes.Unimplemented
			errs = append(errs, fmt.Errorf("mount %q: images are records here and have no files to mount", at))
		case m.GetRecursiveReadOnly() && (!m.GetReadonly() || m.GetPropagation() != v1.MountPropagation_PROPAGATION_PRIVATE):
			errs = append(errs, fmt.Errorf("mount %q: read-only with all below it must be read-only itself, and private", at))
		case !isolated && m.GetRecursiveReadOnly():
			errs = append(errs, fmt.Errorf("mount %q: read-only with all below it needs root", at))
		case !isolated && m.GetPropagation() == v1.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			errs = append(errs, fmt.Errorf("mount %q: bidirectional propagation needs root", at))
		case !isolated && agentFile(c, m):
		case !isolated && filepath.Clean(at) != filepath.Clean(m.GetHostPath()):
			errs = append(errs, fmt.Errorf("mount %q: host processes of an ordinary user see the host's files; "+
				"only a host path mounted at its own place works without root (this one is %q)", at, m.GetHostPath()))
		default:
			if _, err := os.Stat(m.GetHostPath()); err != nil {
				errs = append(errs, fmt.Errorf("mount %q: host path: %w", at, err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return status.Error(code, err.Error())
	}
	return nil
}

// checkSecurity refuses what a container asks for to be safer and cannot have here.
func checkSecurity(c *Container, isolated bool) error {
	sc := c.Config.GetLinux().GetSecurityContext()
	var errs []error
	if sc.GetReadonlyRootfs() && !isolated {
		errs = append(errs, errors.New("readOnlyRootFilesystem: host processes have the host's file systems; "+
			"only root on Linux 5.12 or later can make them read-only for a container"))
	}
	if sc.GetNoNewPrivs() && !canDropPrivileges {
		errs = append(errs, errors.New("allowPrivilegeEscalation false: this needs Linux"))
	}
	if err := errors.Join(errs...); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}

// environ is the whole environment of c.
func (h *HostProcess) environ(c *Container, isolated bool, dir string) []string {
	env := append(c.Environ(), h.cfg.Env...)
	def := func(name, value string) {
		for _, pair := range env {
			if strings.HasPrefix(pair, name+"=") {
				return
			}
		}
		env = append(env, name+"="+value)
	}
	path := h.cfg.Path
	if path == "" {
		path = defaultPath
	}
	def("PATH", path)
	def("HOME", dir)
	if host := c.Pod.GetHostname(); host != "" {
		def("HOSTNAME", host)
	}
	if c.Config.GetTty() {
		def("TERM", "xterm")
	}
	for _, m := range c.Config.GetMounts() {
		if !isolated && isMessageFile(c, m) {
			def(EnvTerminationLog, m.GetHostPath())
		}
	}
	return append(env, EnvContainerID+"="+c.ID)
}

// lookPath finds the program of argv in the container's own PATH.
func lookPath(argv, env []string, dir string) (string, error) {
	name := argv[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	for _, pair := range env {
		list, ok := strings.CutPrefix(pair, "PATH=")
		if !ok {
			continue
		}
		for _, folder := range filepath.SplitList(list) {
			if !filepath.IsAbs(folder) {
				folder = filepath.Join(dir, folder)
			}
			if p := filepath.Join(folder, name); executable(p) == nil {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", argv[0])
}

func executable(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("exec: %w", err)
	case st.IsDir() || st.Mode()&0o111 == 0:
		return fmt.Errorf("exec: %q: permission denied: not an executable file", path)
	}
	return nil
}
