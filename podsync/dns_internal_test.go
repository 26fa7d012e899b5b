package podsync

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/runtime"
)

func TestResolver(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(conf, []byte("# node\nnameserver 10.0.0.2\nsearch other\nsearch corp. . example.com\noptions ndots:3\noptions ndots:2 timeout:1\n"), 0o600))
	two, empty := "2", ""
	extra := &corev1.PodDNSConfig{
		Nameservers: []string{"1.1.1.1", "10.0.0.2"}, Searches: []string{"mine"},
		Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0", Value: &empty}},
	}
	cluster := Node{ResolvConf: conf, ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local"}
	ofNode := runtime.DNS{Servers: []string{"10.0.0.2"}, Searches: []string{"corp", "example.com"}, Options: []string{"ndots:2", "timeout:1"}}
	for _, tt := range []struct {
		name string
		spec corev1.PodSpec
		node Node
		want runtime.DNS
	}{
		{"default of a file of its own", corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, cluster, ofNode},
		{"default leaves it to the runtime", corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, Node{ResolvConf: defaultResolvConf}, runtime.DNS{}},
		{"cluster first without a cluster", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, Node{ResolvConf: conf}, ofNode},
		{"default with additions", corev1.PodSpec{DNSPolicy: corev1.DNSDefault, DNSConfig: extra}, cluster, runtime.DNS{
			Servers: []string{"10.0.0.2", "1.1.1.1"}, Searches: []string{"corp", "example.com", "mine"},
			Options: []string{"timeout:1", "ndots:2", "edns0"},
		}},
		{"none", corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: extra}, cluster, runtime.DNS{
			Servers: []string{"1.1.1.1", "10.0.0.2"}, Searches: []string{"mine"}, Options: []string{"ndots:2", "edns0"},
		}},
		{"cluster first", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, cluster, runtime.DNS{
			Servers: []string{"10.96.0.10"}, Searches: []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp", "example.com"}, Options: []string{"ndots:5"},
		}},
		{"cluster first without a domain", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, Node{ResolvConf: conf, ClusterDNS: []string{"10.96.0.10"}}, runtime.DNS{
			Servers: []string{"10.96.0.10"}, Searches: []string{"corp", "example.com"}, Options: []string{"ndots:5"},
		}},
		{"cluster first where the node has no file", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, Node{ResolvConf: conf + ".none", ClusterDNS: []string{"10.96.0.10"}}, runtime.DNS{
			Servers: []string{"10.96.0.10"}, Options: []string{"ndots:5"},
		}},
		{"cluster first on the host's network", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, cluster, ofNode},
		{"cluster first with host network", corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true}, cluster, runtime.DNS{
			Servers: []string{"10.96.0.10"}, Searches: []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp", "example.com"}, Options: []string{"ndots:5"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Syncer{cfg: Config{Node: tt.node}}
			got, err := s.resolver(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: tt.spec})
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// What a resolver would ignore or fail for is left out, and an event tells it.
func TestSyncer_LimitDNS(t *testing.T) {
	domains := func(n, length int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf("%0*d", length, i))
		}
		return out
	}
	for name, tt := range map[string]struct {
		servers, searches []string
		keptServers, kept int
		event             string
	}{
		"within the limits":      {domains(3, 8), domains(32, 8), 3, 32, ""},
		"nothing":                {nil, nil, 0, 0, ""},
		"too many servers":       {domains(4, 2), domains(1, 8), 3, 1, "a resolver uses 3 name servers at most; the pod gets 00 01 02"},
		"too many domains":       {nil, domains(33, 1), 0, 32, "a resolver uses 32 search domains of 253 characters at most, with 2048 characters in total"},
		"domains that are long":  {nil, domains(2, 254), 0, 0, "a resolver uses 32 search domains of 253 characters at most, with 2048 characters in total"},
		"domains of 2048 bytes":  {nil, append(domains(8, 227), strings.Repeat("x", 224)), 0, 9, ""},
		"domains above 2048":     {nil, append(domains(8, 227), strings.Repeat("x", 225)), 0, 8, "a resolver uses 32 search domains of 253 characters at most, with 2048 characters in total"},
		"both servers and other": {domains(5, 1), domains(40, 1), 3, 32, "the pod gets 0 1 2; a resolver uses 32 search domains"},
	} {
		t.Run(name, func(t *testing.T) {
			var events eventList
			s := &Syncer{cfg: Config{Recorder: &events}}
			d := s.limitDNS(t.Context(), &corev1.Pod{}, &podState{}, runtime.DNS{Servers: tt.servers, Searches: tt.searches, Options: []string{"ndots:5"}})
			require.Equal(t, tt.servers[:tt.keptServers], d.Servers)
			require.Len(t, d.Searches, tt.kept)
			require.Equal(t, []string{"ndots:5"}, d.Options)
			if tt.event == "" {
				require.Empty(t, events)
				return
			}
			require.Len(t, events, 1)
			require.Equal(t, "DNSConfigForming", events[0].Reason)
			require.Contains(t, events[0].Message, tt.event)
		})
	}
}

// A pod that is to have the name servers of the cluster, which the node does not know, has an event, once.
func TestSyncer_CheckClusterDNS(t *testing.T) {
	domain := Node{ClusterDomain: "cluster.local"}
	for name, tt := range map[string]struct {
		node Node
		spec corev1.PodSpec
		want bool
	}{
		"no name servers":                        {domain, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, true},
		"no name servers, with host network":     {domain, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet, HostNetwork: true}, true},
		"name servers":                           {Node{ClusterDomain: "cluster.local", ClusterDNS: []string{"10.96.0.10"}}, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, false},
		"no cluster":                             {Node{}, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, false},
		"those of the node":                      {domain, corev1.PodSpec{DNSPolicy: corev1.DNSDefault}, false},
		"those of the node, on the host network": {domain, corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, HostNetwork: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var events eventList
			n := &Syncer{cfg: Config{Node: tt.node, Recorder: &events}}
			var st podState
			for range 2 {
				end := st.collectErrors()
				n.checkClusterDNS(t.Context(), &corev1.Pod{Spec: tt.spec}, &st)
				end()
			}
			if !tt.want {
				require.Empty(t, events)
				return
			}
			require.Len(t, events, 1)
			require.Equal(t, "MissingClusterDNS", events[0].Reason)
		})
	}
}

type eventList []*corev1.Event

func (l *eventList) Record(e *corev1.Event) { *l = append(*l, e) }

// Pods do not reach the stub resolver of systemd-resolved on the node's loopback.
func TestReachable(t *testing.T) {
	var r resolvConfs
	dir := t.TempDir()
	etc, resolved, none := filepath.Join(dir, "etc"), filepath.Join(dir, "resolved"), filepath.Join(dir, "none")
	require.NoError(t, os.WriteFile(resolved, []byte("nameserver 10.0.0.2\n"), 0o600))
	for _, tt := range []struct{ text, resolved, want string }{
		{"nameserver 127.0.0.53\noptions edns0 trust-ad\n", resolved, resolved},
		{"nameserver ::1\nnameserver 127.0.0.1\n", resolved, resolved},
		{"nameserver 127.0.0.53\n", none, etc},
		{"nameserver 127.0.0.53\nnameserver 10.0.0.3\n", resolved, etc},
		{"nameserver 10.0.0.3\n", resolved, etc},
		{"nameserver fe80::1%eth0\n", resolved, etc},
		{"search example.com\n", resolved, etc},
	} {
		require.NoError(t, os.WriteFile(etc, []byte(tt.text), 0o600))
		require.Equal(t, tt.want, r.reachable(etc, tt.resolved), tt.text)
	}
	require.Equal(t, none, r.reachable(none, resolved))
}

// A file that has not changed is not read again, and one that has is: also when it was replaced, or written with
// the same length.
func TestResolvConfs_Read(t *testing.T) {
	var r resolvConfs
	path := filepath.Join(t.TempDir(), "resolv.conf")
	past := time.Now().Add(-time.Hour)
	write := func(path, server string, at time.Time) {
		require.NoError(t, os.WriteFile(path, []byte("nameserver "+server+"\n"), 0o600))
		require.NoError(t, os.Chtimes(path, at, at))
	}
	requireServer := func(want string) {
		t.Helper()
		d, err := r.read(path)
		require.NoError(t, err)
		require.Equal(t, runtime.DNS{Servers: []string{want}}, d)
		d.Servers[0] = "the caller's"
	}
	_, err := r.read(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	write(path, "10.0.0.1", past)
	requireServer("10.0.0.1")
	r.files[path].dns.Servers[0] = "10.0.0.2"
	requireServer("10.0.0.2") // from memory
	write(path, "10.0.0.3", past.Add(time.Second))
	requireServer("10.0.0.3")
	write(path+".new", "10.0.0.4", past.Add(time.Second))
	require.NoError(t, os.Rename(path+".new", path))
	requireServer("10.0.0.4")
	now := time.Now()
	write(path, "10.0.0.5", now)
	requireServer("10.0.0.5")
	write(path, "10.0.0.6", now) // in the same tick of the clock
	requireServer("10.0.0.6")
	require.NoError(t, os.Remove(path))
	_, err = r.read(path)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestHostname(t *testing.T) {
	yes, no, override := true, false, "other"
	long := strings.Repeat("a", 62) + "-b"
	for _, tt := range []struct {
		name, podName string
		spec          corev1.PodSpec
		host, domain  string
	}{
		{"pod's name", "web", corev1.PodSpec{}, "web", ""},
		{"cut to what a host may have", long, corev1.PodSpec{}, strings.Repeat("a", 62), ""},
		{"spec.hostname", "web", corev1.PodSpec{Hostname: "db", Subdomain: "sub"}, "db", "sub.ns.svc.cluster.local"},
		{"as FQDN", "web", corev1.PodSpec{Hostname: "db", Subdomain: "sub", SetHostnameAsFQDN: &yes}, "db.sub.ns.svc.cluster.local", "sub.ns.svc.cluster.local"},
		{"as FQDN without a subdomain", "web", corev1.PodSpec{SetHostnameAsFQDN: &yes}, "web", ""},
		{"not as FQDN", "web", corev1.PodSpec{Subdomain: "sub", SetHostnameAsFQDN: &no}, "web", "sub.ns.svc.cluster.local"},
		{"override", "web", corev1.PodSpec{HostnameOverride: &override}, "other", ""},
		{"host network", "web", corev1.PodSpec{HostNetwork: true, Hostname: "db"}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, domain, err := hostname(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: tt.podName, Namespace: "ns"}, Spec: tt.spec}, "cluster.local")
			require.NoError(t, err)
			require.Equal(t, tt.host, host)
			require.Equal(t, tt.domain, domain)
		})
	}
	_, domain, err := hostname(&corev1.Pod{Spec: corev1.PodSpec{Subdomain: "sub"}}, "")
	require.NoError(t, err)
	require.Empty(t, domain, "no cluster domain")
	for n, fits := range map[int]bool{64: true, 65: false} { // the kernel would reject it, with a message that says nothing
		name := strings.Repeat("a", n-len(".sub..svc.cluster.local"))
		_, _, err = hostname(&corev1.Pod{Spec: corev1.PodSpec{Hostname: name, Subdomain: "sub", SetHostnameAsFQDN: &yes}}, "cluster.local")
		require.Equal(t, fits, err == nil, n)
	}
}

func TestParseResolvConf_WordsWithoutValues(t *testing.T) {
	for text, want := range map[string]runtime.DNS{
		"search a b\nsearch\n":                      {},
		"search\nsearch a\n":                        {Searches: []string{"a"}},
		"nameserver\noptions\n\nnameserver 1.1.1.1": {Servers: []string{"1.1.1.1"}},
	} {
		require.Equal(t, want, parseResolvConf([]byte(text)), text)
	}
}
