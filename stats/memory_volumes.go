package stats

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
)

// addMemoryFileSystems adds the file systems of volumes in memory: each has a tmpfs of its own, with
// the size of the volume. One that cannot be measured has only what is used of it.
func (p *Provider) addMemoryFileSystems(s *Summary) {
	paths := map[types.UID]map[string]string{}
	for _, pod := range p.cfg.Pods() {
		for name, v := range pod.Volumes {
			if !v.InMemory {
				continue
			}
			if paths[pod.Pod.UID] == nil {
				paths[pod.Pod.UID] = map[string]string{}
			}
			paths[pod.Pod.UID][name] = v.Path
		}
	}
	for i := range s.Pods {
		of := paths[types.UID(s.Pods[i].PodRef.UID)]
		for j := range s.Pods[i].VolumeStats {
			v := &s.Pods[i].VolumeStats[j]
			path, inMemory := of[v.Name]
			if !inMemory {
				continue
			}
			fs, err := p.cfg.Statfs(path)
			if err != nil {
				p.cfg.Logger.Debug("volume in memory not measured", logattr.PodUID(types.UID(s.Pods[i].PodRef.UID)), slog.String("volume", v.Name), logattr.Err(err))
				continue
			}
			if measured := fsStats(fs); measured != nil {
				measured.Time, measured.UsedBytes, measured.InodesUsed = v.Time, v.UsedBytes, v.InodesUsed
				v.FSStats = *measured
			}
		}
	}
}
