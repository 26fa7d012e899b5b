package podsync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
)

const (
	maxHostname = 63
	maxFQDN     = 64 // of the kernel
)

// hostname returns the host name of a pod and its domain. Both are empty for a pod on
// the network of the host, for which the runtime sets the name of the host.
func hostname(pod *corev1.Pod, clusterDomain string) (name, domain string, err error) {
	if pod.Spec.HostNetwork {
		return "", "", nil
	}
	if o := pod.Spec.HostnameOverride; o != nil {
		return *o, "", nil
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
		if name += "." + domain; len(name) > maxFQDN {
			return "", "", fmt.Errorf("the FQDN %s, which is to be the host name, has %d characters; %d are the most", name, len(name), maxFQDN)
		}
	}
	return name, domain, nil
}

// resolver returns the DNS settings of a pod. An empty result means those of the node,
// which the runtime provides without help.
func (s *Syncer) resolver(pod *corev1.Pod) (runtime.DNS, error) {
	node := s.cfg.Node
	var d runtime.DNS
	policy := pod.Spec.DNSPolicy
	cluster := len(node.ClusterDNS) > 0 && wantsClusterDNS(pod)
	switch {
	case policy == corev1.DNSNone:
	case cluster:
		ofNode, err := s.resolvConfs.read(s.resolvConf())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return runtime.DNS{}, fmt.Errorf("read resolver configuration of the node: %w", err)
		}
		d.Servers = slices.Clone(node.ClusterDNS)
		if node.ClusterDomain != "" {
			d.Searches = []string{pod.Namespace + ".svc." + node.ClusterDomain, "svc." + node.ClusterDomain, node.ClusterDomain}
		}
		d.Searches = unique(append(d.Searches, ofNode.Searches...))
		d.Options = []string{"ndots:5"}
	default:
		path := s.resolvConf()
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

// wantsClusterDNS reports whether the pod is to have the name servers of the cluster.
func wantsClusterDNS(pod *corev1.Pod) bool {
	policy := pod.Spec.DNSPolicy
	return policy == corev1.DNSClusterFirstWithHostNet || policy == corev1.DNSClusterFirst && !pod.Spec.HostNetwork
}

// checkClusterDNS emits an event of a pod that gets the name servers of the node instead of those of
// the cluster, because the node has a cluster domain but no name servers of it. Without a domain
// the node is in no cluster, and its pods lack nothing.
func (s *Syncer) checkClusterDNS(ctx context.Context, pod *corev1.Pod, st *podState) {
	if node := &s.cfg.Node; wantsClusterDNS(pod) && node.ClusterDomain != "" && len(node.ClusterDNS) == 0 {
		s.emitOnce(ctx, pod, st, reasonClusterDNS, fmt.Errorf(
			"the node has no name servers for the cluster domain %s: the pod with dnsPolicy %s gets those of the node, as with %s",
			node.ClusterDomain, pod.Spec.DNSPolicy, corev1.DNSDefault))
	}
}

// resolvConf returns the resolver configuration of the node that pods can use.
func (s *Syncer) resolvConf() string {
	path := s.cfg.Node.ResolvConf
	if path == defaultResolvConf {
		path = s.resolvConfs.reachable(path, resolvedConf)
	}
	return path
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
		d.Options = withOption(d.Options, text)
	}
	return d
}

// withOption adds an option, which replaces one of the same name.
func withOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	options = slices.DeleteFunc(options, func(existing string) bool {
		was, _, _ := strings.Cut(existing, ":")
		return was == name
	})
	return append(options, option)
}

// Limits of a resolver configuration. Those of the cluster, the node and the pod can exceed them
// together, and resolvers then ignore what they like, or fail.
const (
	maxNameservers  = 3
	maxSearches     = 32
	maxSearchLength = 2048 // of all together
	maxDomain       = 253
)

// limitDNS returns what of the settings is within the limits, and tells by an event that something is
// left out.
func (s *Syncer) limitDNS(ctx context.Context, pod *corev1.Pod, st *podState, d runtime.DNS) runtime.DNS {
	var omitted []string
	if len(d.Servers) > maxNameservers {
		d.Servers = d.Servers[:maxNameservers]
		omitted = append(omitted, fmt.Sprintf("a resolver uses %d name servers at most; the pod gets %s", maxNameservers, strings.Join(d.Servers, " ")))
	}
	n := len(d.Searches)
	d.Searches = d.Searches[:min(n, maxSearches)]
	d.Searches = slices.DeleteFunc(d.Searches, func(domain string) bool { return len(domain) > maxDomain })
	for len(strings.Join(d.Searches, " ")) > maxSearchLength {
		d.Searches = d.Searches[:len(d.Searches)-1]
	}
	if len(d.Searches) < n {
		omitted = append(omitted, fmt.Sprintf("a resolver uses %d search domains of %d characters at most, with %d characters in total; the pod gets %s",
			maxSearches, maxDomain, maxSearchLength, strings.Join(d.Searches, " ")))
	}
	if len(omitted) > 0 {
		s.emitOnce(ctx, pod, st, reasonDNS, errors.New(strings.Join(omitted, "; ")))
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
