package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/internal/podnet"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

const (
	maxOutput  = 10 << 10 // bytes read of a response or of the output of a command
	maxMessage = 1 << 10  // bytes of it in a message, the limit of an event
)

// probeOutcome is the outcome of one run of a probe.
type probeOutcome struct {
	result  runtime.ProbeResult // ProbeUnknown: it could not be run
	message string              // of a success: a warning
}

func succeeded() probeOutcome { return probeOutcome{result: runtime.ProbeSuccess} }

func failed(format string, args ...any) probeOutcome {
	return probeOutcome{runtime.ProbeFailure, fmt.Sprintf(format, args...)}
}

func unknown(err error) probeOutcome {
	return probeOutcome{runtime.ProbeUnknown, text([]byte(err.Error()))}
}

// target is the input of a run. It is a copy that does not change.
type target struct {
	kind      ProbeType
	pod       *corev1.Pod
	container *corev1.Container
	spec      *corev1.Probe
	id        string // of the container
	ip        string // of the pod; "" if it has none
}

func (m *Manager) target(b *probe, c *runtime.Container) target {
	t := target{kind: b.kind, pod: b.pod.spec, container: b.container, spec: b.spec, id: c.ID}
	for i := range b.pod.observed.Sandboxes {
		s := &b.pod.observed.Sandboxes[i]
		if s.ID != c.SandboxID && c.SandboxID != "" { // a runtime without sandbox ids has only one
			continue
		}
		t.ip = m.primaryIP(s.IPs)
		break
	}
	if t.ip == "" && podspec.IsHostNetwork(t.pod) {
		t.ip = cmp.Or(m.cfg.HostIP(), "127.0.0.1")
	}
	return t
}

// primaryIP returns the address of a pod that its status has first, of those that its network has given
// it, or "".
func (m *Manager) primaryIP(ips []string) string {
	if len(ips) > 1 {
		ips = runtime.PodIPs(ips, []string{m.cfg.HostIP()})
	}
	return cmp.Or(ips...)
}

// handle runs a probe. It returns when ctx ends.
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
		return m.checkGRPC(ctx, t, h.GRPC)
	default:
		return unknown(errors.New("probe has no handler"))
	}
}

func (m *Manager) exec(ctx context.Context, t target, command []string) probeOutcome {
	if m.cfg.Execer == nil {
		return unknown(fmt.Errorf("exec: %w", runtime.ErrUnsupported))
	}
	limit := timeout(t.spec)
	out, code, err := m.cfg.Execer.Exec(ctx, t.id, expand(command, t.container.Env), limit, maxOutput)
	switch {
	case errors.Is(err, runtime.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return failed("the command did not end within %s", limit)
	case err != nil:
		return unknown(err)
	case code != 0:
		return failed("exit code %d: %s", code, text(out))
	default:
		return succeeded()
	}
}

// text returns what a container has written as a part of a message.
func text(b []byte) string {
	return strings.TrimSpace(strings.ToValidUTF8(string(b[:min(len(b), maxMessage)]), ""))
}

// expand replaces references to the environment variables of the container that have a
// value in the spec. Others are known only in the container.
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
	address, err := t.network().Address(a.Host, a.Port)
	if err != nil {
		return unknown(err)
	}
	conn, err := m.cfg.Dial(ctx, "tcp", address)
	if err != nil {
		return failed("%s", connectionError(ctx, err, t))
	}
	_ = conn.Close() // the connection alone is the success
	return succeeded()
}

func (m *Manager) checkGRPC(ctx context.Context, t target, a *corev1.GRPCAction) probeOutcome {
	if m.cfg.GRPC == nil {
		return unknown(fmt.Errorf("grpc: %w", runtime.ErrUnsupported))
	}
	address, err := t.network().Address("", intstr.FromInt32(a.Port))
	if err != nil {
		return unknown(err)
	}
	service := ""
	if a.Service != nil {
		service = *a.Service
	}
	if err := m.cfg.GRPC(ctx, address, service); err != nil {
		return failed("%s", connectionError(ctx, err, t))
	}
	return succeeded()
}

// connectionError returns err as a message, or the timeout if that was the cause.
func connectionError(ctx context.Context, err error, t target) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %s", timeout(t.spec))
	}
	return text([]byte(err.Error())) // a server has its say in it
}

// network returns the container as probes reach it.
func (t *target) network() *podnet.Container {
	return &podnet.Container{Name: t.container.Name, PodIP: t.ip, Ports: t.container.Ports}
}
