package cpumanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/topology"
)

// retryDelay is the wait after the runtime could not tell which CPUs are in use.
const retryDelay = time.Second

// Runner keeps the running containers on the CPUs that they are to use.
type Runner struct {
	m       *Manager
	rt      Runtime
	updater runtime.CpusetUpdater
	pods    func() []runtime.Pod
	sent    map[string]runtime.Cpuset // by container id: the last update
	// onReserved says that it was logged that containers share reserved CPUs.
	onReserved bool
}

// Runner returns what keeps running containers on their CPUs; there must be just one. pods
// returns the last observed state of all pods, usually that of a podcache.Cache. The error
// wraps runtime.ErrUnsupported if the runtime cannot change the CPUs of a container.
func (m *Manager) Runner(rt Runtime, pods func() []runtime.Pod) (*Runner, error) {
	updater, ok := runtime.Capability[runtime.CpusetUpdater](rt)
	if !ok {
		return nil, fmt.Errorf("cpumanager: the runtime cannot change the CPUs of a running container: %w", runtime.ErrUnsupported)
	}
	return &Runner{m: m, rt: rt, updater: updater, pods: pods, sent: map[string]runtime.Cpuset{}}, nil
}

// Run restores the assignments, if necessary, and then updates containers until ctx is done.
// It returns nil then.
func (r *Runner) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			r.m.refreshTopology()
		case <-r.m.changed:
		}
		next := r.m.cfg.Period
		if err := r.restore(ctx); err != nil && ctx.Err() == nil {
			r.m.cfg.Logger.Warn("cpu assignments not restored", logattr.Err(err))
			next = min(next, retryDelay)
		} else {
			r.update(ctx)
			r.warnReserved()
		}
		timer.Reset(next)
	}
}

// restore finds the assignments in the runtime if the state file has none.
func (r *Runner) restore(ctx context.Context) error {
	if err := r.m.load(); err != nil || r.m.isRestored() {
		return err
	}
	listed, err := r.rt.Pods(ctx)
	if err != nil {
		return err
	}
	for i := range listed {
		if listed[i], err = r.rt.Pod(ctx, listed[i].UID); err != nil {
			return fmt.Errorf("inspect pod: %w", err)
		}
	}
	r.m.adopt(listed)
	return r.m.save()
}

// adopt takes over the assignments of running containers: those whose CPUs are as many as
// they request, exclude the reserved ones, which all others share, and belong to no other
// container.
func (m *Manager) adopt(pods []runtime.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	type found struct {
		uid       types.UID
		container string
		a         assignment
	}
	var all []found
	for i := range pods {
		for j := range pods[i].Containers {
			c := &pods[i].Containers[j]
			if a, ok := m.observedAssignment(c); ok {
				all = append(all, found{pods[i].UID, c.Name, a})
			}
		}
	}
	for i, f := range all {
		if slices.ContainsFunc(slices.Concat(all[:i:i], all[i+1:]), func(g found) bool { return g.a.CPUs.Intersect(f.a.CPUs).Len() > 0 }) {
			continue
		}
		if m.pods[f.uid] == nil {
			m.pods[f.uid] = podState{}
		}
		m.pods[f.uid][f.container] = f.a
		m.cfg.Logger.Info("exclusive cpus restored", logattr.PodUID(f.uid), slog.String("containerName", f.container), slog.String("cpus", f.a.CPUs.String()))
	}
	m.file.Changed() // by the next start nothing is to be found
	close(m.restored)
}

// observedAssignment returns what a running container has for itself.
func (m *Manager) observedAssignment(c *runtime.Container) (assignment, bool) {
	if c.State != runtime.Running || c.Resources == nil || c.Resources.CPURequest == nil {
		return assignment{}, false
	}
	cpus, err := topology.ParseSet(c.Resources.Cpuset.CPUs)
	memory, errMemory := topology.ParseSet(c.Resources.Cpuset.MemoryNodes)
	if errors.Join(err, errMemory) != nil || cpus.Len() == 0 || cpus.Intersect(m.cfg.Reserved).Len() > 0 ||
		c.Resources.CPURequest.MilliValue() != int64(cpus.Len())*1000 {
		return assignment{}, false
	}
	a := assignment{CPUs: cpus, MemoryNodes: memory}
	if memory.Len() > 0 && c.Resources.MemoryLimit != nil {
		a.Memory = c.Resources.MemoryLimit.Value()
	}
	return a, true
}

// refreshTopology notices CPUs that were plugged in or removed.
func (m *Manager) refreshTopology() {
	t, err := m.cfg.Topology()
	if err != nil {
		m.cfg.Logger.Warn("cpu topology not read", logattr.Err(err))
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	online := t.Online()
	if before := m.topology.Online(); !before.Equal(online) {
		m.cfg.Logger.Warn("online cpus changed", slog.String("before", before.String()), slog.String("cpus", online.String()))
		m.warnOffline(online)
	}
	m.topology = t
}

// update moves each running container that is not where it should be. Containers that have
// exclusive CPUs come last: the others make room before.
func (r *Runner) update(ctx context.Context) {
	type move struct {
		uid types.UID
		id  string
		set runtime.Cpuset
	}
	var moves [2][]move
	running := map[string]bool{}
	for _, pod := range r.pods() {
		for i := range pod.Containers {
			c := &pod.Containers[i]
			if c.State != runtime.Running {
				continue
			}
			running[c.ID] = true
			set, exclusive := r.m.desired(pod.UID, c.Name)
			if set.MemoryNodes == "" && r.isConfined(c) {
				set.MemoryNodes = r.m.memoryNodes() // an empty list changes nothing
			}
			if r.isCurrent(c, set) {
				continue
			}
			order := 0
			if exclusive {
				order = 1
			}
			moves[order] = append(moves[order], move{pod.UID, c.ID, set})
		}
	}
	maps.DeleteFunc(r.sent, func(id string, _ runtime.Cpuset) bool { return !running[id] })
	for _, mv := range slices.Concat(moves[0], moves[1]) {
		err := r.updater.UpdateCpuset(ctx, mv.id, mv.set)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			delete(r.sent, mv.id)
			r.m.cfg.Logger.Warn("cpus of a container not updated", logattr.PodUID(mv.uid), slog.String("containerID", mv.id), slog.String("cpus", mv.set.CPUs), logattr.Err(err))
		} else {
			r.sent[mv.id] = mv.set
		}
		if r.m.cfg.Hooks.Updated != nil {
			r.m.cfg.Hooks.Updated(mv.uid, mv.id, mv.set, err)
		}
	}
}

// warnReserved logs once if no CPUs are left for containers that share, but the reserved ones.
func (r *Runner) warnReserved() {
	r.m.mu.Lock()
	reserved := r.m.shared().Intersect(r.m.cfg.Reserved)
	r.m.mu.Unlock()
	was := r.onReserved
	if r.onReserved = r.m.cfg.Options.StrictCPUReservation && reserved.Len() > 0; r.onReserved && !was {
		r.m.cfg.Logger.Warn("containers share reserved cpus, as all others are exclusive", slog.String("cpus", reserved.String()))
	}
}

// isCurrent reports whether a container is where it should be, as far as is known. The last
// update counts more than the observation, which may be older.
func (r *Runner) isCurrent(c *runtime.Container, set runtime.Cpuset) bool {
	if sent, ok := r.sent[c.ID]; ok {
		return sent == set
	}
	if c.Resources == nil {
		return false
	}
	cpus, err := topology.ParseSet(c.Resources.Cpuset.CPUs)
	return err == nil && cpus.String() == set.CPUs && (set.MemoryNodes == "" || c.Resources.Cpuset.MemoryNodes == set.MemoryNodes)
}

// isConfined reports whether a container had or has the nodes of its memory from a Manager. Where
// none sets them, something else may have, whose choice is kept.
func (r *Runner) isConfined(c *runtime.Container) bool {
	return r.sent[c.ID].MemoryNodes != "" ||
		r.m.cfg.MemoryAffinity && c.Resources != nil && c.Resources.Cpuset.MemoryNodes != ""
}

// memoryNodes returns all NUMA nodes that have memory, or "" if they are unknown.
func (m *Manager) memoryNodes() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodesWithMemory().String()
}

// nodesWithMemory returns the NUMA nodes that have memory: the kernel of cgroup v1 rejects others. m.mu is locked.
func (m *Manager) nodesWithMemory() topology.Set {
	return topology.NewSet(slices.Collect(maps.Keys(m.topology.Memory))...)
}

// desired returns where a container is to run, and whether it is alone there.
func (m *Manager) desired(uid types.UID, container string) (set runtime.Cpuset, exclusive bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cpuset(uid, container), m.pods[uid][container].effective().CPUs.Len() > 0
}
