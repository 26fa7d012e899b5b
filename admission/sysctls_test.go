package admission

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// SL-10: sysctls must be safe or allowed, and of a namespace that the pod does not
// share with the node.
func TestAdmission_Sysctls(t *testing.T) {
	const (
		safe      = "net.ipv4.ip_unprivileged_port_start"
		hostNet   = "hostNetwork: true, "
		hostIPC   = "hostIPC: true, "
		ownUsers  = "hostUsers: false, "
		forbidden = "forbidden sysctl: "
	)
	all := []string{"net.*", "kernel.shm*", "kernel.msgmax", "fs.mqueue.*", "user.*", "kernel.domainname"}
	for name, tc := range map[string]struct {
		allowed []string
		kernel  string
		pod     string // further fields
		sysctl  string
		says    string // "": admitted
	}{
		"safe":                                     {sysctl: safe},
		"safe, with slashes":                       {sysctl: "net/ipv4/ip_unprivileged_port_start"},
		"safe, IPC":                                {sysctl: "kernel.shm_rmid_forced"},
		"safe on a kernel that is new enough":      {sysctl: "net.ipv4.tcp_rmem", kernel: "4.15.0"},
		"safe on a kernel of another form":         {sysctl: "net.ipv4.tcp_keepalive_time", kernel: "6.1-rc1"},
		"safe on a kernel that is not known":       {sysctl: "net.ipv4.tcp_notsent_lowat"},
		"not safe on an older kernel":              {sysctl: "net.ipv4.tcp_rmem", kernel: "4.14.300-amd64", says: `"net.ipv4.tcp_rmem" not allowlisted`},
		"not safe on a kernel without a number":    {sysctl: "net.ipv4.tcp_fin_timeout", kernel: "hurd", says: "not allowlisted"},
		"always safe on an older kernel":           {sysctl: safe, kernel: "3.10"},
		"not safe":                                 {sysctl: "net.core.somaxconn", says: `"net.core.somaxconn" not allowlisted`},
		"of the node":                              {sysctl: "vm.swappiness", allowed: all, says: "not allowlisted"},
		"allowed by its name":                      {sysctl: "kernel.msgmax", allowed: all},
		"allowed by its beginning":                 {sysctl: "net.core.somaxconn", allowed: all},
		"allowed by a beginning with slashes":      {sysctl: "net.core.somaxconn", allowed: []string{"net/core/*"}},
		"allowed, written with slashes":            {sysctl: "net/ipv4/conf/eth0.1/forwarding", allowed: []string{"net.ipv4.conf.*"}},
		"not what begins with an allowed name":     {sysctl: "kernel.msgmaximum", allowed: all, says: "not allowlisted"},
		"a family of the kernel's":                 {sysctl: "kernel.shm_next_id", allowed: all},
		"safe, but of the node's network":          {sysctl: safe, pod: hostNet, says: "not allowed with host Net enabled"},
		"allowed, but of the node's network":       {sysctl: "net.core.somaxconn", allowed: all, pod: hostNet, says: "not allowed with host Net enabled"},
		"safe, but of the node's IPC":              {sysctl: "kernel.shm_rmid_forced", pod: hostIPC, says: "not allowed with host IPC enabled"},
		"allowed, but of the node's IPC":           {sysctl: "fs.mqueue.msg_max", allowed: all, pod: hostIPC, says: "not allowed with host IPC enabled"},
		"of its network with the node's IPC":       {sysctl: safe, pod: hostIPC},
		"allowed, but of the node's users":         {sysctl: "user.max_user_namespaces", allowed: all, says: "not allowed with host User enabled"},
		"allowed, of users of its own":             {sysctl: "user.max_user_namespaces", allowed: all, pod: ownUsers},
		"allowed, of its host name":                {sysctl: "kernel.domainname", allowed: all},
		"allowed, but the host name is the node's": {sysctl: "kernel.domainname", allowed: all, pod: hostNet, says: "not allowed with host UTS enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(t, "a", "{"+tc.pod+"containers: [{name: a, image: i}]}")
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: tc.sysctl, Value: "1"}}}
			v := admit(t, Config{AllowedUnsafeSysctls: tc.allowed, Kernel: tc.kernel}, p)
			assert.Equal(t, tc.says == "", v.Admitted, v.Message)
			if tc.says != "" {
				assert.Equal(t, "SysctlForbidden", v.Reason)
				assert.Contains(t, v.Message, forbidden)
				assert.Contains(t, v.Message, tc.says)
			}
		})
	}
}

func TestNew_RejectsSysctlPatterns(t *testing.T) {
	for pattern, says := range map[string]string{
		"":                "must belong to a namespace of the pod",
		"*":               "must belong to a namespace of the pod",
		"vm.swappiness":   "must belong to a namespace of the pod",
		"kernel.*":        "must belong to a namespace of the pod",
		"net":             "must belong to a namespace of the pod",
		"net.*.x":         "must be a name",
		"net.core.x y":    "must be a name",
		"net.core.*,user": "must be a name",
	} {
		_, err := New(Config{AllowedUnsafeSysctls: []string{"net.core.*", pattern}})
		require.ErrorContains(t, err, says, pattern)
	}
}

func TestIsKernelAtLeast(t *testing.T) {
	for _, tt := range []struct {
		release string
		want    bool
	}{
		{"", true}, {"4.0", true}, {"4.0.1-rc1", true}, {"4.1", true}, {"5.0", true}, {"3.9", false}, {"4", false}, {"4.x", false}, {"x", false},
	} {
		assert.Equal(t, tt.want, isKernelAtLeast(tt.release, 4, 0), tt.release)
	}
}

func TestSharesWithNode_UnknownNamespace(t *testing.T) {
	assert.True(t, sharesWithNode(&corev1.Pod{}, ""), "a sysctl without a namespace belongs to the node")
}
