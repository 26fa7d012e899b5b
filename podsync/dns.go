package podsync

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

const (
	maxHostname   = 63
	maxResolvConf = 64 << 10
	resolvedConf  = "/run/systemd/resolve/resolv.conf" // the name servers that systemd-resolved asks
)

// hostname returns the host name of a pod and its domain. Both are empty for a pod on
// the network of the host, for which the runtime sets the name of the host.
func hostname(pod *corev1.Pod, clusterDomain string) (name, domain string) {
	if pod.Spec.HostNetwork {
		return "", ""
	}
	if o := pod.Spec.HostnameOverride; o != nil {
		return *o, ""
	}
	name = pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	if len(name) > maxHostname {
		name = strings.TrimRight(name[:maxHostname], "-.")
	}
	if pod.Spec.Subdomain != "" && clusterDomain != "" {
		domain = pod.Spec.Subdomain + "." + pod.Namespace + ".svc." + clusterDomain
	}
	if set := pod.Spec.SetHostnameAsFQDN; set != nil && *set && domain != "" {
		name += "." + domain
	}
	return name, domain
}

// resolver returns the DNS settings of a pod. An empty result means those of the node,
// which the runtime provides without help.
func resolver(pod *corev1.Pod, node Node) (runtime.DNS, error) {
	var d runtime.DNS
	policy := pod.Spec.DNSPolicy
	cluster := len(node.ClusterDNS) > 0 && (policy == corev1.DNSClusterFirstWithHostNet || policy == corev1.DNSClusterFirst && !pod.Spec.HostNetwork)
	switch {
	case policy == corev1.DNSNone:
	case cluster:
		d.Servers = slices.Clone(node.ClusterDNS)
		if node.ClusterDomain != "" {
			d.Searches = []string{pod.Namespace + ".svc." + node.ClusterDomain, "svc." + node.ClusterDomain, node.ClusterDomain}
		}
		d.Options = []string{"ndots:5"}
	default:
		path := node.ResolvConf
		if path == defaultResolvConf {
			path = reachable(path, resolvedConf)
		}
		if path == defaultResolvConf && pod.Spec.DNSConfig == nil {
			return runtime.DNS{}, nil // runtimes copy that file themselves
		}
		var err error
		if d, err = readResolvConf(path); err != nil {
			return runtime.DNS{}, fmt.Errorf("read resolver configuration of the node: %w", err)
		}
	}
	return withDNSConfig(d, pod.Spec.DNSConfig), nil
}

// reachable returns the file with the name servers of the node: path, or if that names only
// a resolver on loopback, which pods do not reach, the one of systemd-resolved with those
// that it asks itself.
func reachable(path, resolved string) string {
	d, err := readResolvConf(path)
	if err != nil || len(d.Servers) == 0 || slices.ContainsFunc(d.Servers, func(s string) bool { return !net.ParseIP(s).IsLoopback() }) {
		return path
	}
	if _, err := os.Stat(resolved); err != nil {
		return path
	}
	return resolved
}

func readResolvConf(path string) (runtime.DNS, error) {
	f, err := os.Open(path)
	if err != nil {
		return runtime.DNS{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return runtime.DNS{}, err
	}
	return parseResolvConf(b), nil
}

// withDNSConfig adds spec.dnsConfig. Its options replace options of the same name.
func withDNSConfig(d runtime.DNS, c *corev1.PodDNSConfig) runtime.DNS {
	if c == nil {
		return d
	}
	d.Servers = unique(append(d.Servers, c.Nameservers...))
	d.Searches = unique(append(d.Searches, c.Searches...))
	for _, o := range c.Options {
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		d.Options = slices.DeleteFunc(d.Options, func(existing string) bool {
			name, _, _ := strings.Cut(existing, ":")
			return name == o.Name
		})
		d.Options = append(d.Options, text)
	}
	return d
}

func unique(s []string) []string {
	var out []string
	for _, v := range s {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

func parseResolvConf(b []byte) runtime.DNS {
	var d runtime.DNS
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			d.Servers = append(d.Servers, f[1])
		case "search":
			d.Searches = f[1:]
		case "options":
			d.Options = f[1:]
		}
	}
	return d
}
