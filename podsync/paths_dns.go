package podsync

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/pathname"
	"github.com/sublet-dev/agent/runtime"
)

const (
	maxHostname   = 63
	maxResolvConf = 64 << 10
)

// ErrUnsafeName is wrapped by the error for a pod whose UID, namespace or name
// cannot be part of a path.
var ErrUnsafeName = errors.New("not usable in a path")

// podDir is <root>/<uid>.
func podDir(root string, uid types.UID) (string, error) {
	if err := pathElement("uid", string(uid)); err != nil {
		return "", err
	}
	return filepath.Join(root, string(uid)), nil
}

// LogDir returns the folder of the pod's logs: one folder a container in it.
func (s *Syncer) LogDir(pod *corev1.Pod) (string, error) { return logDir(s.cfg.LogsDir, pod) }

// WrittenFiles returns the files and folders in the pod's own folder that its
// containers can write to, besides its volumes: the hosts file and those of the
// termination messages. Not all need to be there.
func (s *Syncer) WrittenFiles(pod *corev1.Pod) []string {
	dir, err := podDir(s.cfg.PodsDir, pod.UID)
	if err != nil {
		return nil
	}
	return []string{filepath.Join(dir, runtime.HostsFile), filepath.Join(dir, runtime.MessagesDir)}
}

// logDir is <root>/<namespace>_<name>_<uid>, as kubelets lay it out.
func logDir(root string, pod *corev1.Pod) (string, error) {
	err := errors.Join(
		pathElement("namespace", pod.Namespace), pathElement("name", pod.Name), pathElement("uid", string(pod.UID)))
	if err != nil {
		return "", err
	}
	return filepath.Join(root, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID)), nil
}

func pathElement(what, s string) error {
	if !pathname.IsElement(s) {
		return fmt.Errorf("%s %q: %w", what, s, ErrUnsafeName)
	}
	return nil
}

// hostname is what a pod calls itself. A pod on the host's network has the
// host's name, which is the runtime's to know.
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

// resolver works out a pod's DNS settings. All empty means: as the node's,
// which the runtime provides by itself.
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
	case pod.Spec.DNSConfig == nil:
		return d, nil
	default:
		f, err := os.Open(node.ResolvConf)
		if err != nil {
			return d, fmt.Errorf("resolver of the node: %w", err)
		}
		defer func() { _ = f.Close() }() // only read
		b, err := io.ReadAll(io.LimitReader(f, maxResolvConf))
		if err != nil {
			return d, fmt.Errorf("resolver of the node: %w", err)
		}
		d = parseResolvConf(b)
	}
	return withDNSConfig(d, pod.Spec.DNSConfig), nil
}

// withDNSConfig adds spec.dnsConfig: its options replace those of their name.
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
		d.Options = slices.DeleteFunc(d.Options, func(have string) bool {
			name, _, _ := strings.Cut(have, ":")
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

// earlier is the first of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
