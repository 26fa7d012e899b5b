//go:build linux

package containerdtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sublet-dev/agent/cgroup"
)

// ptp needs no bridge and no iptables; there is no default route, so nothing
// that a pod sends leaves the machine.
const cniConfig = `{ "cniVersion": "1.0.0", "name": "sublet-test", "plugins": [ { "type": "ptp", "mtu": 1400, "ipMasq": false,
  "ipam": { "type": "host-local", "dataDir": "%s/ipam", "ranges": [[{ "subnet": "%s" }]] } } ] }
`

const hostsConfig = `server = "http://%[1]s"
[host."http://%[1]s"]
  capabilities = ["pull", "resolve"]
`

const disabled = `disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri"]
`

const common = `root  = "{DIR}/root"
state = "{DIR}/state"
oom_score = 0
` + disabled + `[grpc]
  address = "{DIR}/containerd.sock"
[ttrpc]
  address = "{DIR}/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{DIR}/opt"
`

const version2 = "version = 2\n" + common + `[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  stats_collect_period = 1
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{DIR}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{DIR}/certs"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{RUNC}"
        Root = "{DIR}/runc"
        SystemdCgroup = {SYSTEMD}
`

const version3 = "version = 3\n" + common + `[plugins."io.containerd.cri.v1.images"]
  stats_collect_period = 1
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{DIR}/certs"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  netns_mounts_under_state_dir = true
  enable_criu = {CRIU}
  cdi_spec_dirs = ["{DIR}/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{DIR}/cni"
    use_internal_loopback = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = "{SHIM}"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "{RUNC}"
        Root = "{DIR}/runc"
        SystemdCgroup = {SYSTEMD}
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
`

// config is the daemon's configuration file. The oom_score of containers is
// held to this process's own, since a test may lack CAP_SYS_RESOURCE.
func (n *Node) config(pause string) string {
	text := version3
	if n.bin.major == "1" {
		text = version2
	}
	shim := n.bin.shim
	if shim == "" {
		shim, _ = exec.LookPath("containerd-shim-runc-v2") // empty: the daemon says that it is missing
	}
	runc, _ := exec.LookPath("runc") // find has seen it
	if newer := os.Getenv("SUBLET_RUNC"); newer != "" && n.bin.major != "1" {
		runc = newer // user namespaces need one that Debian does not have yet
	}
	return strings.NewReplacer("{DIR}", filepath.Clean(n.dir), "{PAUSE}", pause, "{RUNC}", runc, "{SHIM}", shim,
		"{SYSTEMD}", strconv.FormatBool(n.CgroupDriver == cgroup.Systemd), "{CRIU}", strconv.FormatBool(!criuFails())).Replace(text)
}

// criuFails reports whether there is a criu that cannot work here. Debian recommends one beside runc, which newer
// kernels defeat; containerd would try it, and report a failure where it has nothing to say of a missing one.
func criuFails() bool {
	path, err := exec.LookPath("criu")
	return err == nil && exec.Command(path, "check").Run() != nil
}
