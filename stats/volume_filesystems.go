package stats

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/logattr"
)

// addVolumeFileSystems adds the file systems of Uncounted volumes: those in memory have a tmpfs of their
// own, with the size of the volume. One that cannot be measured has only what is used of it.
func (p *Provider) addVolumeFileSystems(s *Summary) {
	volumes := map[types.UID]map[string]Volume{}
	for _, pod := range p.cfg.Pods() {
		volumes[pod.Pod.UID] = pod.Volumes
	}
	for i := range s.Pods {
		uid := types.UID(s.Pods[i].PodRef.UID)
		for j := range s.Pods[i].VolumeStats {
			v := &s.Pods[i].VolumeStats[j]
			volume := volumes[uid][v.Name]
			if !volume.Uncounted {
				continue
			}
			fs, err := p.cfg.Statfs(volume.Path)
			if err != nil {
				p.cfg.Logger.Debug("file system of volume not measured", logattr.PodUID(uid), slog.String("volume", v.Name), logattr.Err(err))
				continue
			}
			if measured := fsStats(fs); measured != nil {
				measured.Time, measured.UsedBytes, measured.InodesUsed = v.Time, v.UsedBytes, v.InodesUsed
				v.FSStats = *measured
			}
		}
	}
}
