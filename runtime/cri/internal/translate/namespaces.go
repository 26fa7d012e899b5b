package translate

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// namespaces says which namespaces of the kernel the pod's containers share
// with each other and with the node.
func (tr *Translator) namespaces() (*v1.NamespaceOption, error) {
	spec := &tr.Pod.Spec
	out := &v1.NamespaceOption{Network: nodeOrPod(spec.HostNetwork), Ipc: nodeOrPod(spec.HostIPC), Pid: v1.NamespaceMode_CONTAINER}
	switch {
	case spec.HostPID:
		out.Pid = v1.NamespaceMode_NODE
	case spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace:
		out.Pid = v1.NamespaceMode_POD
	}
	if podspec.UsesHostUsers(tr.Pod) {
		return out, nil
	}
	if err := tr.hasUserNamespaces(); err != nil {
		return nil, err
	}
	if len(tr.Options.UIDMappings) == 0 || len(tr.Options.GIDMappings) == 0 {
		return nil, fmt.Errorf("hostUsers false: there are no ids set aside for the pod: %w", runtime.ErrUnsupported)
	}
	out.UsernsOptions = &v1.UserNamespace{
		Mode: v1.NamespaceMode_POD, Uids: idMappings(tr.Options.UIDMappings), Gids: idMappings(tr.Options.GIDMappings),
	}
	return out, nil
}

// hasUserNamespaces: a runtime that does not know of user namespaces runs the pod
// with the node's ids and says nothing, so that only its word counts.
func (tr *Translator) hasUserNamespaces() error {
	handler := RuntimeHandler(tr.Pod)
	switch f := tr.Features; {
	case f == nil:
		return fmt.Errorf("hostUsers false: runtime features not known yet: %w", runtime.ErrNotReady)
	case f.UserNamespaces[handler]:
		return nil
	case handler == "":
		return fmt.Errorf("hostUsers false: %s has no user namespaces: %w", f.name(), runtime.ErrUnsupported)
	default:
		return fmt.Errorf("hostUsers false: runtime handler %q of %s has no user namespaces: %w", handler, f.name(), runtime.ErrUnsupported)
	}
}

func nodeOrPod(node bool) v1.NamespaceMode {
	if node {
		return v1.NamespaceMode_NODE
	}
	return v1.NamespaceMode_POD
}

func idMappings(all []runtime.IDMapping) []*v1.IDMapping {
	var out []*v1.IDMapping
	for _, m := range all {
		out = append(out, &v1.IDMapping{HostId: m.Host, ContainerId: m.Container, Length: m.Length})
	}
	return out
}

// sysctls are the kernel parameters of the pod's namespaces, by their names
// with dots.
func sysctls(pod *corev1.Pod) map[string]string {
	all := podSecurity(pod).Sysctls
	if len(all) == 0 {
		return nil
	}
	out := make(map[string]string, len(all))
	for _, s := range all {
		out[podspec.SysctlName(s.Name)] = s.Value
	}
	return out
}

// flattenSignal turns the API's SIGRTMIN+3 into the CRI's SIGRTMINPLUS3.
func flattenSignal(s string) string {
	s = strings.Replace(s, "+", "PLUS", 1)
	return strings.Replace(s, "-", "MINUS", 1)
}
