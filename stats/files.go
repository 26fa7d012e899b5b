package stats

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/runtime"
)

// podDisk is what counting a pod's files came to.
type podDisk struct {
	at      time.Time
	logs    map[string]runtime.DiskUsage // by container
	volumes map[string]runtime.VolumeUsage
}

// Run counts the files of the pods that are watched, one after the other, each
// about every DiskEvery, until ctx is done; of all pods, for some minutes after
// Count was called.
func (p *Provider) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var round []Pod
	pause := p.cfg.DiskEvery
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-p.wanted:
		}
		if len(round) == 0 {
			round = p.round()
			pause = p.cfg.DiskEvery / time.Duration(max(len(round), 1))
		}
		if len(round) > 0 {
			p.count(ctx, &round[0])
			round = round[1:]
		} else {
			pause = min(pause, emptyPause) // the first pods are not to wait for a whole round
		}
		timer.Reset(pause)
	}
}

const (
	emptyPause = 10 * time.Second
	// askedFor is how long all pods' files are counted after somebody wanted to
	// know: tools that do ask again.
	askedFor = 5 * time.Minute
)

// Count counts the files of the pods that were not counted since, those first
// that were counted longest ago, until ctx is done. What is left then, Run counts.
// Usage tells what it came to.
func (p *Provider) Count(ctx context.Context, since time.Time) {
	now := time.Now()
	p.mu.Lock()
	idle := now.Sub(p.asked) > askedFor
	p.asked = now
	p.mu.Unlock()
	pods := slices.Clone(p.cfg.Pods())
	slices.SortStableFunc(pods, func(a, b Pod) int { return p.counted(a.Pod.UID).Compare(p.counted(b.Pod.UID)) })
	p.refresh(ctx, pods, since)
	if idle {
		select {
		case p.wanted <- struct{}{}:
		default:
		}
	}
}

// round are the pods whose files Run is to count now.
func (p *Provider) round() []Pod {
	p.mu.Lock()
	all := !p.asked.IsZero() && time.Since(p.asked) <= askedFor
	p.mu.Unlock()
	p.groups().kept.sweep() // nothing may be measured for a long time
	switch {
	case all:
		return p.cfg.Pods()
	case p.cfg.Watched != nil:
		return p.cfg.Watched()
	default:
		return slices.DeleteFunc(slices.Clone(p.cfg.Pods()), func(pod Pod) bool { return !pod.Watch })
	}
}

// counted is when the pod's files were counted last.
func (p *Provider) counted(uid types.UID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disks[uid].at
}

// refresh counts the files of the pods that were not counted since. Two callers
// that come at a time do not count the same files twice.
func (p *Provider) refresh(ctx context.Context, pods []Pod, since time.Time) {
	select {
	case p.counting <- struct{}{}:
		defer func() { <-p.counting }()
	case <-ctx.Done():
		return
	}
	for i := range pods {
		if ctx.Err() != nil {
			return
		}
		if !p.counted(pods[i].Pod.UID).After(since) {
			p.count(ctx, &pods[i])
		}
	}
}

// count counts the files of one pod.
func (p *Provider) count(ctx context.Context, pod *Pod) {
	d := podDisk{at: time.Now(), logs: map[string]runtime.DiskUsage{}, volumes: map[string]runtime.VolumeUsage{}}
	var errs []error
	if pod.LogDir != "" {
		folders, err := logFolders(pod.LogDir)
		errs = append(errs, err)
		for name, dir := range folders {
			u, err := count(ctx, dir)
			errs = append(errs, err)
			if err == nil {
				d.logs[name] = u
			}
		}
	}
	for name, v := range pod.Volumes {
		u, err := count(ctx, v.Path)
		errs = append(errs, err)
		if err == nil {
			d.volumes[name] = runtime.VolumeUsage{DiskUsage: u, InMemory: v.InMemory}
		}
	}
	if err := errors.Join(errs...); err != nil {
		p.cfg.Logger.Warn("files of a pod could not be counted",
			slog.String("pod", pod.Pod.Name), slog.String("namespace", pod.Pod.Namespace),
			slog.String("uid", string(pod.Pod.UID)), slog.Any("error", err))
	}
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disks[pod.Pod.UID] = d
}
