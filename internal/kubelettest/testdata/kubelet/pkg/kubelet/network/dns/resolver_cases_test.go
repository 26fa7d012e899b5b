package dns

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/cases"
)

// resolverCase is what a pod and its node have of DNS, and the resolver configuration of the pod.
type resolverCase struct {
	Policy      v1.DNSPolicy     `json:"policy"`
	HostNetwork bool             `json:"hostNetwork,omitempty"`
	Config      *v1.PodDNSConfig `json:"config,omitempty"`
	ClusterDNS  []string         `json:"clusterDNS,omitempty"`
	Domain      string           `json:"domain,omitempty"`
	File        string           `json:"file"` // resolv.conf of the node
	Servers     []string         `json:"servers,omitempty"`
	Searches    []string         `json:"searches,omitempty"`
	Options     []string         `json:"options,omitempty"` // sorted
}

func TestResolverCases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	cases.Write(t, "podsync/testdata/kubelet-resolvers.jsonl", `
		What pods and their nodes have of DNS, and the resolver configurations of the pods, of the namespace shop. file is
		the one of the node. The order of options, which has no meaning, is left open.`,
		10000, func(r *rand.Rand, size float64) (resolverCase, []string) {
			c := resolverCase{
				Policy:      cases.One(r, v1.DNSNone, v1.DNSDefault, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet),
				HostNetwork: cases.Chance(r, 0.3), File: randomFile(r, size),
			}
			if cases.Chance(r, 0.7) {
				c.ClusterDNS = cases.One(r, []string{"10.96.0.10"}, []string{"10.96.0.10", "fd00::a"}, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"})
			}
			if cases.Chance(r, 0.7) {
				c.Domain = "cluster.local"
			}
			if cases.Chance(r, size) {
				c.Config = randomConfig(r)
			}
			if err := os.WriteFile(path, []byte(c.File), 0o600); err != nil {
				t.Fatal(err)
			}
			var cluster []net.IP
			for _, ip := range c.ClusterDNS {
				cluster = append(cluster, net.ParseIP(ip))
			}
			pod := &v1.Pod{Spec: v1.PodSpec{DNSPolicy: c.Policy, HostNetwork: c.HostNetwork, DNSConfig: c.Config}}
			pod.Namespace = "shop"
			d, err := NewConfigurer(&record.FakeRecorder{}, &v1.ObjectReference{}, nil, cluster, c.Domain, path).GetPodDNS(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			c.Servers, c.Searches, c.Options = d.Servers, d.Searches, slices.Sorted(slices.Values(d.Options))
			traits := []string{
				fmt.Sprint(c.Policy, c.HostNetwork, len(c.ClusterDNS) > 0, c.Domain != "", c.Config != nil),
				fmt.Sprint(c.Policy, len(c.Servers)), fmt.Sprint(len(c.Searches) > 31, c.Options),
			}
			for _, line := range strings.Split(c.File, "\n") {
				traits = append(traits, fmt.Sprint(c.Policy == v1.DNSDefault, line[:min(len(line), 24)]))
			}
			return c, traits
		})
}

func randomFile(r *rand.Rand, size float64) string {
	var lines []string
	for range r.IntN(2 + int(5*size)) {
		lines = append(lines, cases.One(r, "nameserver 1.1.1.1", "nameserver 2.2.2.2", "  nameserver\t3.3.3.3 # third", "nameserver 1.1.1.1", "nameserver ::2",
			"search corp", "search a.example. b.example", "search . corp", "search", "domain old", "search cluster.local corp",
			"search "+strings.Repeat("x", 250)+".org ok", "search"+many(r.IntN(40)),
			"options ndots:2", "options ndots:3 rotate", "options timeout:1 timeout:2", "options", "# nameserver 9.9.9.9", "#nameserver 9.9.9.9", "; search no", "", "sortlist 1.2.3.4", "nameserversx 5.5.5.5"))
	}
	return strings.Join(lines, "\n") + cases.One(r, "", "\n")
}

func many(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf(" d%d", i)
	}
	return text
}

func randomConfig(r *rand.Rand) *v1.PodDNSConfig {
	five, empty := "5", ""
	c := &v1.PodDNSConfig{Nameservers: []string{"8.8.8.8"}}
	if cases.Chance(r, 0.5) {
		c.Nameservers = cases.One(r, []string{"1.1.1.1"}, []string{"8.8.8.8", "8.8.4.4"})
	}
	c.Searches = cases.One(r, nil, []string{"corp"}, []string{"own.example", "svc.cluster.local"}, []string{"."})
	c.Options = cases.One(r, nil, []v1.PodDNSConfigOption{{Name: "ndots", Value: &five}}, []v1.PodDNSConfigOption{{Name: "rotate"}, {Name: "timeout", Value: &empty}}, []v1.PodDNSConfigOption{{Name: "ndots"}})
	return c
}
