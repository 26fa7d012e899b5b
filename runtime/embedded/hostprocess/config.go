package hostprocess

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/runtime/embedded"
)

// Environment variables that host processes get besides their own.
const (
	// EnvTerminationLog is the file whose content becomes the termination
	// message. It is set where the file cannot be mounted at its path.
	EnvTerminationLog = "SUBLET_TERMINATION_LOG"
	// EnvContainerID is the id of the container of a process. It identifies the
	// processes of a container where tags are unavailable: see Executor.
	EnvContainerID = "SUBLET_CONTAINER_ID"
)

// defaultPath is PATH where neither the pod nor Config has one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Config is the configuration of an Executor.
type Config struct {
	// Root has one scratch directory for each container: its working directory and
	// HOME unless it has another, or "/" if a mount of the container hides it.
	// Default: a temporary directory, created with the first container and removed by
	// embedded.Runtime.Close. Directories that a killed process has left in Root are removed
	// by the next process that uses it, if no other does, and so are processes that outlived
	// the first one of their container. Users that containers run as must be able to enter
	// the directories above Root: the root directory that an agent makes is not for others.
	Root string
	// Path is the PATH of containers that set none. Default: the usual one of containers.
	Path string
	// Env is added to every container's environment: NAME=value. A variable that the pod or
	// the image has keeps its value. The environment of this process is not inherited.
	Env []string
	// Unprivileged disables mount namespaces, also for root.
	Unprivileged bool
	// Logger logs, once per pod, the settings that need mount namespaces and are ignored
	// without them, and directories that cannot be removed. Default: discard.
	Logger *slog.Logger
}

// Check implements embedded.Checker.
func (h *Executor) Check() error {
	var errs []error
	if h.cfg.Root != "" && !filepath.IsAbs(h.cfg.Root) {
		errs = append(errs, fmt.Errorf("hostprocess: Config.Root: %q must be an absolute path", h.cfg.Root))
	}
	for _, pair := range h.cfg.Env {
		if name, _, ok := strings.Cut(pair, "="); !ok || name == "" {
			errs = append(errs, fmt.Errorf("hostprocess: Config.Env: invalid variable %q; write NAME=value", name))
		}
	}
	return errors.Join(errs...)
}

// PodIPs implements embedded.PodIPAllocator: host processes are on the loopback.
func (h *Executor) PodIPs(*v1.PodSandboxConfig) []string { return []string{"127.0.0.1"} }

// agentFile reports whether m is a file that agents mount into every container. These
// mounts are ignored without a mount namespace: the process has the host's files.
func agentFile(c *embedded.Container, m *v1.Mount) bool {
	switch path := filepath.Clean(m.GetContainerPath()); path {
	case "/etc/hosts", "/etc/resolv.conf", "/etc/hostname":
		return true
	default:
		return c.IsTerminationMessage(m)
	}
}

// checkMounts rejects mounts that are impossible here, each by its path. isolated is
// whether the container gets a mount namespace. The error for images, which are never
// mounted, has code Unimplemented.
func checkMounts(c *embedded.Container, isolated bool) error {
	var errs []error
	code := codes.FailedPrecondition
	for _, m := range c.Config.GetMounts() {
		at := m.GetContainerPath()
		switch {
		case !filepath.IsAbs(at):
			errs = append(errs, fmt.Errorf("mount %q: container path must be absolute", at))
		case m.GetImage().GetImage() != "":
			code = codes.Unimplemented
			errs = append(errs, fmt.Errorf("mount %q: image volumes are not supported", at))
		case m.GetRecursiveReadOnly() && (!m.GetReadonly() || m.GetPropagation() != v1.MountPropagation_PROPAGATION_PRIVATE):
			errs = append(errs, fmt.Errorf("mount %q: recursive_read_only requires readonly and private propagation", at))
		case !isolated && m.GetRecursiveReadOnly():
			errs = append(errs, fmt.Errorf("mount %q: recursive_read_only requires root", at))
		case !isolated && m.GetPropagation() == v1.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			errs = append(errs, fmt.Errorf("mount %q: bidirectional propagation requires root", at))
		case !isolated && agentFile(c, m):
		case !isolated && filepath.Clean(at) != filepath.Clean(m.GetHostPath()):
			errs = append(errs, fmt.Errorf("mount %q: without root a mount must have the host path as its container path, not %q"+
				"; run as root to mount elsewhere", at, m.GetHostPath()))
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

// checkSecurity rejects security settings that are impossible here.
func checkSecurity(c *embedded.Container, isolated bool) error {
	sc := c.Config.GetLinux().GetSecurityContext()
	var errs []error
	if sc.GetReadonlyRootfs() && !isolated {
		errs = append(errs, errors.New("readOnlyRootFilesystem: requires root and Linux 5.12 or later"+
			" for host processes"))
	}
	if sc.GetNoNewPrivs() && !canDropPrivileges {
		errs = append(errs, errors.New("allowPrivilegeEscalation false: requires Linux"))
	}
	if err := errors.Join(errs...); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}

// environ returns the complete environment of c.
func (h *Executor) environ(c *embedded.Container, isolated bool, dir string) []string {
	env := c.Environ()
	def := func(name, value string) { env = withDefault(env, name, value) }
	for _, pair := range h.cfg.Env {
		name, value, _ := strings.Cut(pair, "=")
		def(name, value)
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
	for _, m := range c.Config.GetMounts() {
		if !isolated && c.IsTerminationMessage(m) {
			def(EnvTerminationLog, m.GetHostPath())
		}
	}
	env = slices.DeleteFunc(env, func(pair string) bool { return strings.HasPrefix(pair, EnvContainerID+"=") })
	return append(env, EnvContainerID+"="+c.ID)
}

// withDefault adds a variable that env does not have.
func withDefault(env []string, name, value string) []string {
	for _, pair := range env {
		if strings.HasPrefix(pair, name+"=") {
			return env
		}
	}
	return append(env, name+"="+value)
}

// lookPath finds the program of argv in the container's PATH.
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
		for _, entry := range filepath.SplitList(list) {
			if !filepath.IsAbs(entry) {
				entry = filepath.Join(dir, entry)
			}
			if p := filepath.Join(entry, name); executable(p) == nil {
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
