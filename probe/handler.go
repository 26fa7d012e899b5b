package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// What is read of an answer or of a command's output, and how much of that is
// passed on to people: an event takes no more.
const (
	limit      = 10 << 10
	limitWords = 1 << 10
)

// probeOutcome is what one run of a probe came to.
type probeOutcome struct {
	result  runtime.ProbeResult // Unproven: it could not be run, which says nothing
	message string              // of a success: a warning
}

func succeeded() probeOutcome { return probeOutcome{result: runtime.ProbeSuccess} }

func failed(format string, args ...any) probeOutcome {
	return probeOutcome{runtime.ProbeFailure, fmt.Sprintf(format, args...)}
}

func unknown(err error) probeOutcome { return probeOutcome{runtime.ProbeUnknown, err.Error()} }

// target is what a run needs to know. It is a copy: nothing in it changes.
type target struct {
	kind      ProbeType
	pod       *corev1.Pod
	container *corev1.Container
	spec      *corev1.Probe
	id        string // of the container
	ip        string // of the pod; "" where it has none
}

func (m *Manager) target(b *probe, view *runtime.Pod, c *runtime.Container) target {
	t := target{kind: b.kind, pod: b.pod.spec, container: b.container, spec: b.spec, id: c.ID}
	for i := range view.Sandboxes {
		s := &view.Sandboxes[i]
		if s.ID != c.SandboxID {
			continue
		}
		if len(s.IPs) > 0 {
			t.ip = s.IPs[0]
		}
	}
	if t.ip == "" && podspec.IsHostNetwork(t.pod) {
		t.ip = m.cfg.HostIP
	}
	return t
}

// handle runs a probe. It ends when ctx does.
func (m *Manager) handle(ctx context.Context, t target) probeOutcome {
	h := &t.spec.ProbeHandler
	switch {
	case h.Exec != nil:
		return m.exec(ctx, t, h.Exec.Command)
	case h.HTTPGet != nil:
		return m.get(ctx, t, h.HTTPGet)
	case h.TCPSocket != nil:
		return m.connect(ctx, t, h.TCPSocket)
	case h.GRPC != nil:
		return m.ask(ctx, t, h.GRPC)
	default:
		return unknown(errors.New("it has no handler"))
	}
}

func (m *Manager) exec(ctx context.Context, t target, command []string) probeOutcome {
	if m.cfg.Execer == nil {
		return unknown(fmt.Errorf("exec: %w", runtime.ErrUnsupported))
	}
	limitOf := timeout(t.spec)
	out, code, err := m.cfg.Execer.Exec(ctx, t.id, expand(command, t.container.Env), limitOf, limit)
	switch {
	case errors.Is(err, runtime.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return failed("the command did not end within %s", limitOf)
	case err != nil:
		return unknown(err)
	case code != 0:
		out = out[:min(len(out), limitWords)]
		return failed("exit code %d: %s", code, strings.TrimSpace(strings.ToValidUTF8(string(out), "")))
	default:
		return succeeded()
	}
}

// expand fills in the variables of a container's environment whose values stand
// in its spec. Others are known in the container alone.
func expand(command []string, env []corev1.EnvVar) []string {
	values := map[string]string{}
	lookup := func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
	for i := range env {
		if env[i].ValueFrom == nil {
			values[env[i].Name] = podspec.Expand(env[i].Value, lookup)
		}
	}
	expanded := make([]string, len(command))
	for i, word := range command {
		expanded[i] = podspec.Expand(word, lookup)
	}
	return expanded
}

func (m *Manager) connect(ctx context.Context, t target, a *corev1.TCPSocketAction) probeOutcome {
	address, err := t.address(a.Host, a.Port)
	if err != nil {
		return unknown(err)
	}
	conn, err := m.cfg.Dial(ctx, "tcp", address)
	if err != nil {
		return failed("%s", unreached(ctx, err, t))
	}
	_ = conn.Close() // it was opened: that is all there is to know
	return succeeded()
}

func (m *Manager) ask(ctx context.Context, t target, a *corev1.GRPCAction) probeOutcome {
	if m.cfg.GRPC == nil {
		return unknown(fmt.Errorf("grpc: %w", runtime.ErrUnsupported))
	}
	address, err := t.address("", intstr.FromInt32(a.Port))
	if err != nil {
		return unknown(err)
	}
	service := ""
	if a.Service != nil {
		service = *a.Service
	}
	if err := m.cfg.GRPC(ctx, address, service); err != nil {
		return failed("%s", unreached(ctx, err, t))
	}
	return succeeded()
}

// unreached returns err in words, by the timeout where that was the cause.
func unreached(ctx context.Context, err error, t target) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %s", timeout(t.spec))
	}
	return err.Error()
}

// address returns where to connect to: the pod, unless a host is given, at a port
// given by number or by its name in the container.
func (t *target) address(host string, port intstr.IntOrString) (string, error) {
	number, err := t.port(port)
	if err != nil {
		return "", err
	}
	if host == "" {
		host = t.ip
	}
	if host == "" {
		return "", errors.New("the pod has no address")
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(number)), nil
}

func (t *target) port(port intstr.IntOrString) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		for i := range t.container.Ports {
			if p := &t.container.Ports[i]; p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("container %s has no port %s", t.container.Name, port.String())
	}
	return number, nil
}
