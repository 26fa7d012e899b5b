package podsync

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

const maxHostname = 63

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
func (s *Syncer) resolver(pod *corev1.Pod) (runtime.DNS, error) {
	node := s.cfg.Node
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
			path = s.resolvConfs.reachable(path, resolvedConf)
		}
		if path == defaultResolvConf && pod.Spec.DNSConfig == nil {
			return runtime.DNS{}, nil // runtimes copy that file themselves
		}
		var err error
		if d, err = s.resolvConfs.read(path); err != nil {
			return runtime.DNS{}, fmt.Errorf("read resolver configuration of the node: %w", err)
		}
	}
	return withDNSConfig(d, pod.Spec.DNSConfig), nil
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
