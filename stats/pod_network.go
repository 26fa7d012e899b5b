package stats

import (
	"bytes"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

const (
	// maxPodCgroups and maxPodProcesses limit the processes that are tried of a pod: so many
	// in each of so many of its cgroups.
	maxPodCgroups   = 16
	maxPodProcesses = 4
	// maxProcesses is the size of what is read of a cgroup.procs: some process ids, also if
	// many have the number 0.
	maxProcesses = 256
)

// podNetwork returns the network usage of a pod: that of the network namespace of one of its
// processes, if it is not one of hosts. It is unknown for a pod on the network of the host,
// whose traffic is the node's, and for one without a process.
func (p *Provider) podNetwork(pod *Pod, containers []runtime.ContainerUsage, hosts []string) runtime.NetworkUsage {
	if pod.Pod.Spec.HostNetwork || len(hosts) == 0 {
		return runtime.NetworkUsage{}
	}
	p.mu.Lock()
	before := p.networkPIDs[pod.Cgroup]
	p.mu.Unlock()
	if before != "" {
		if u, ok := p.processNetwork(before, pod.Cgroup, hosts); ok {
			return u
		}
	}
	var found string
	var out runtime.NetworkUsage
	for _, pid := range p.groups().podProcesses(pod.Cgroup, containers) {
		if u, ok := p.processNetwork(pid, pod.Cgroup, hosts); ok {
			found, out = pid, u
			break
		}
	}
	// Without containers it is unknown which cgroup is that of the sandbox, and the process may
	// be one that has left the namespace of the pod.
	known := slices.ContainsFunc(containers, func(c runtime.ContainerUsage) bool { return c.ID != "" })
	p.mu.Lock()
	defer p.mu.Unlock()
	if found == "" || !known {
		delete(p.networkPIDs, pod.Cgroup)
	} else {
		p.networkPIDs[pod.Cgroup] = found
	}
	return out
}

// processNetwork returns the network usage of a process of a pod. ok is false if the process
// is not one of the pod any more or is in the namespace of a host, as a helper of the runtime
// can be.
func (p *Provider) processNetwork(pid, group string, hosts []string) (u runtime.NetworkUsage, ok bool) {
	namespace, err := fs.ReadLink(p.cfg.Proc, pid+"/ns/net")
	if err != nil || slices.Contains(hosts, namespace) {
		return runtime.NetworkUsage{}, false
	}
	u, err = p.netDev(pid, maxPodNetDev, maxPodInterfaces, time.Now())
	if err != nil {
		return runtime.NetworkUsage{}, false
	}
	// The process may have ended, and its id be that of another one. It is checked afterwards:
	// ids are assigned in turn, so an id that is in the pod now was not reused before.
	member := false
	err = p.procUncached.head(pid+"/cgroup", maxFile, func(data []byte) error {
		member = isMember(data, group)
		return nil
	})
	return u, err == nil && member
}

// hostNetworks returns the network namespaces of the agent and of the machine, as far as they
// are known.
func (p *Provider) hostNetworks() (hosts []string) {
	for _, pid := range []string{"self", "1"} {
		if namespace, err := fs.ReadLink(p.cfg.Proc, pid+"/ns/net"); err == nil {
			hosts = append(hosts, namespace)
		}
	}
	return hosts
}

// isMember reports whether a process is in a cgroup or below it, by its /proc/PID/cgroup. The
// paths there begin at the cgroup namespace of the reader, which may be another one than that
// of the mounted hierarchy, so it compares the name of the pod's cgroup, which has its UID.
func isMember(data []byte, group string) bool {
	name := path.Base(group)
	for _, at := range cgroupLines(data) {
		for element := range bytes.SplitSeq(at, []byte("/")) {
			if string(element) == name {
				return true
			}
		}
	}
	return false
}

// cgroupLines yields the controllers and the path of each line of /proc/PID/cgroup.
func cgroupLines(data []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(controllers, at []byte) bool) {
		for line := range bytes.Lines(data) {
			// <id>:<controllers>:<path>
			_, rest, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(":"))
			controllers, at, _ := bytes.Cut(rest, []byte(":"))
			if !yield(controllers, at) {
				return
			}
		}
	}
}

// podProcesses returns ids of processes of a pod, some of each container. Those of its sandbox
// are first, in a cgroup that the runtime does not report as one of containers.
func (g *groups) podProcesses(group string, containers []runtime.ContainerUsage) (pids []string) {
	dir := join(g.pids, group)
	entries, err := fs.ReadDir(g.fsys, dir)
	if err != nil {
		return nil
	}
	isContainer := func(name string) bool {
		return slices.ContainsFunc(containers, func(c runtime.ContainerUsage) bool { return c.ID != "" && strings.Contains(name, c.ID) })
	}
	var sandbox, others []string
	for _, e := range entries {
		switch {
		case !e.IsDir():
		case isContainer(e.Name()):
			others = append(others, e.Name())
		default:
			sandbox = append(sandbox, e.Name())
		}
	}
	all := slices.Concat(sandbox, others)
	all = append(all[:min(len(all), maxPodCgroups)], "") // the pod's own at last
	for _, name := range all {
		_ = g.uncached.head(join(dir, name, "cgroup.procs"), maxProcesses, func(data []byte) error {
			pids = append(pids, parseProcesses(data)...)
			return nil
		})
	}
	return pids
}

// parseProcesses returns the first ids of a cgroup.procs. A process of another PID namespace
// has the number 0 there, or is missing, and a last line that is cut off is ignored.
func parseProcesses(data []byte) (pids []string) {
	for line := range bytes.Lines(data) {
		id, complete := bytes.CutSuffix(line, []byte("\n"))
		if n, ok := digits(id); ok && n > 0 && complete && len(pids) < maxPodProcesses {
			pids = append(pids, strconv.FormatUint(n, 10))
		}
	}
	return pids
}
