package stats

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sublet-dev/agent/runtime"
)

// pressures reads the pressure of the node's cgroup, if it has its own, or of the machine.
// A kernel without pressure stall information is not an error.
func (p *Provider) pressures(u *runtime.NodeUsage, now time.Time) {
	g := p.groups()
	for name, into := range map[string]*runtime.PSIStats{
		"memory": &u.MemoryPressure, "io": &u.IOPressure, "cpu": &u.CPUPressure,
	} {
		if p.cfg.NodeCgroup != "" && g.v2 {
			if own, err := g.pressure(join(p.cfg.NodeCgroup, name+".pressure"), now); err == nil {
				*into = own
				continue
			}
		}
		if all, err := p.proc.pressure(join("pressure", name), now); err == nil {
			*into = all
		}
	}
}

// podPressures reads how long the pod's own tasks wait, if its cgroup reports it. Pods are
// not read while no task on the node waits.
func (p *Provider) podPressures(node *runtime.NodeUsage, u *runtime.PodUsage, group string, now time.Time) {
	g := p.groups()
	if !g.v2 {
		return
	}
	for name, of := range map[string]struct {
		node runtime.PSIStats
		into *runtime.PSIStats
	}{"memory": {node.MemoryPressure, &u.MemoryPressure}, "io": {node.IOPressure, &u.IOPressure}} {
		if of.node.Some.Avg10 == 0 {
			continue
		}
		if own, err := g.pressure(join(group, name+".pressure"), now); err == nil {
			*of.into = own
		}
	}
}

// addPressures reads how long the tasks of a cgroup have waited, whether or not tasks on the
// node wait. That of a nil is not read.
func (g *groups) addPressures(group string, memory, io, cpu *runtime.PSIStats, now time.Time) {
	if !g.v2 {
		return
	}
	for name, into := range map[string]*runtime.PSIStats{"memory": memory, "io": io, "cpu": cpu} {
		if into == nil {
			continue
		}
		if own, err := g.uncached.pressure(join(group, name+".pressure"), now); err == nil {
			*into = own
		}
	}
}

// pressure reads a file of pressure stall information.
func (r *reader) pressure(name string, now time.Time) (runtime.PSIStats, error) {
	p := runtime.PSIStats{At: now}
	err := r.read(name, func(data []byte) error {
		for line := range bytes.Lines(data) {
			fields := strings.Fields(string(line))
			if len(fields) == 0 {
				continue
			}
			stall, err := parseStall(fields[1:])
			if err != nil {
				return err
			}
			switch fields[0] {
			case "some":
				p.Some = stall
			case "full":
				p.Full = stall
			}
		}
		return nil
	})
	if err != nil {
		return runtime.PSIStats{}, err
	}
	return p, nil
}

// parseStall reads avg10=0.12 avg60=… avg300=… total=….
func parseStall(fields []string) (runtime.PSIData, error) {
	var s runtime.PSIData
	for _, f := range fields {
		key, value, _ := strings.Cut(f, "=")
		var err error
		switch key {
		case "avg10":
			s.Avg10, err = strconv.ParseFloat(value, 64)
		case "avg60":
			s.Avg60, err = strconv.ParseFloat(value, 64)
		case "avg300":
			s.Avg300, err = strconv.ParseFloat(value, 64)
		case "total":
			s.Total, err = strconv.ParseUint(value, 10, 64)
		}
		if err != nil {
			return runtime.PSIData{}, fmt.Errorf("%q: %w", f, err)
		}
	}
	return s, nil
}
