package cri

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

const (
	hostsPath  = "/etc/hosts"
	hostsLimit = 1 << 20 // of the node's own file
)

// hostsContent is the hosts file of a pod with addresses of its own. A hostname
// that is fully qualified already stands there in full and in short.
func hostsContent(pod *corev1.Pod, hostname, domain string, ips []string) string {
	var b strings.Builder
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	if domain != "" {
		hostname = strings.TrimSuffix(hostname, "."+domain)
	}
	for _, ip := range ips {
		b.WriteString(ip + "\t")
		if domain != "" {
			b.WriteString(hostname + "." + domain + "\t")
		}
		b.WriteString(hostname + "\n")
	}
	return b.String() + aliases(pod)
}

// nodeHostsContent is the hosts file of a pod on the node's network.
func nodeHostsContent(pod *corev1.Pod, node string) string {
	return "# Kubernetes-managed hosts file (host network).\n" + node + aliases(pod)
}

// nodeHosts reads the node's own hosts file, as far as hostsLimit.
func nodeHosts(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, hostsLimit))
	return string(text), err
}

func aliases(pod *corev1.Pod) string {
	if len(pod.Spec.HostAliases) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range pod.Spec.HostAliases {
		b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
	}
	return b.String()
}

// hostsMount writes the pod's hosts file and returns its mount, or nil where
// there is none: the container brings its own, or nothing is known to write.
func (t *applyRun) hostsMount(spec *corev1.Container) (*v1.Mount, error) {
	own := slices.ContainsFunc(spec.VolumeMounts, func(vm corev1.VolumeMount) bool { return filepath.Clean(vm.MountPath) == hostsPath })
	onNode := podspec.IsHostNetwork(t.pod)
	if own || t.m.Dir == "" || !onNode && len(t.sandbox.IPs) == 0 {
		return nil, nil
	}
	content := hostsContent(t.pod, t.m.Hostname, t.m.ClusterDomain, t.sandbox.IPs)
	if onNode {
		node, err := nodeHosts(t.c.cfg.Node.HostsFile)
		if err != nil {
			return nil, fmt.Errorf("the node's hosts file: %w", err)
		}
		content = nodeHostsContent(t.pod, node)
	}
	// Written in place: running containers have this very file mounted.
	file := filepath.Join(t.m.Dir, runtime.HostsFile)
	if err := writeShared(file, []byte(content), 0o644); err != nil {
		return nil, fmt.Errorf("write the hosts file: %w", err)
	}
	return &v1.Mount{
		ContainerPath: hostsPath, HostPath: file, Readonly: false, SelinuxRelabel: t.c.cfg.Node.SELinux,
		UidMappings: t.translator().MountIDs(t.m.UIDMappings), GidMappings: t.translator().MountIDs(t.m.GIDMappings),
	}, nil
}
