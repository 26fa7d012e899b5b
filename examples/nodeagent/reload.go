package main

import (
	"errors"
	"io"
	"log/slog"
	"slices"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/nodeshutdown"
)

// reloadable are fields of the configuration that can change while the agent runs, and what
// applies them together.
type reloadable struct {
	paths []string
	apply func(next *reloaded) error
}

// reloaded is a configuration that was read again.
type reloaded struct {
	flags    *flags
	settings kubeletconfig.Settings
}

// errRestart is returned for a change that a field allows in part.
var errRestart = errors.New("it needs a restart")

// reloads lists what can change.
func (d *daemon) reloads(a *agent.Agent) []reloadable {
	return []reloadable{
		{[]string{"logging.verbosity"}, func(next *reloaded) error {
			d.f.daemon.level.Set(levelOf(next.flags.verbosity))
			return nil
		}},
		{[]string{"oomScoreAdj"}, func(next *reloaded) error { return adjustOOMScore(oomScoreFile, next.flags.oomScoreAdj) }},
		{
			[]string{"evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim", "evictionMaxPodGracePeriod", "evictionPressureTransitionPeriod"},
			func(next *reloaded) error { return d.setEviction(a.Components().Eviction, next.settings.Eviction) },
		},
		{
			[]string{"imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "imageMinimumGCAge", "imageMaximumGCAge"},
			func(next *reloaded) error {
				return setImagePolicy(a.Components().ImageGC, next.settings.ImageGC.Policy)
			},
		},
		{
			[]string{"shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority"},
			func(next *reloaded) error { return d.f.shutdown.set(next.settings.Shutdown) },
		},
	}
}

// setEviction applies what does not change the resources of the node: hard thresholds stay
// those of the start.
func (d *daemon) setEviction(manager agent.Eviction, next eviction.Config) error {
	m, ok := manager.(interface{ SetPolicy(p eviction.Policy) error })
	if !ok {
		return errRestart
	}
	hard, soft := byKind(next.Thresholds)
	if text(hard) != text(d.hard) {
		hard = withReclaimOf(d.hard, hard)
	}
	thresholds := append(append([]eviction.Threshold{}, hard...), soft...) // not nil, which stands for the default ones
	return m.SetPolicy(eviction.Policy{Thresholds: thresholds, MaxPodGracePeriod: next.MaxPodGracePeriod, PressureTransitionPeriod: next.PressureTransitionPeriod})
}

// byKind splits thresholds.
func byKind(thresholds []eviction.Threshold) (hard, soft []eviction.Threshold) {
	for _, t := range thresholds {
		if t.IsHard() {
			hard = append(hard, t)
		} else {
			soft = append(soft, t)
		}
	}
	return hard, soft
}

// withReclaimOf returns thresholds with the minimum reclaims of those in next that have the same
// signal.
func withReclaimOf(thresholds, next []eviction.Threshold) []eviction.Threshold {
	thresholds = slices.Clone(thresholds)
	for i := range thresholds {
		t := &thresholds[i]
		if j := slices.IndexFunc(next, func(n eviction.Threshold) bool { return n.Signal == t.Signal }); j >= 0 {
			t.MinReclaim = next[j].MinReclaim
		}
	}
	return thresholds
}

func text(thresholds []eviction.Threshold) (text string) {
	for _, t := range thresholds {
		text += t.String() + "\n"
	}
	return text
}

func setImagePolicy(collector agent.ImageGC, p imagegc.Policy) error {
	c, ok := collector.(interface{ SetPolicy(p imagegc.Policy) error })
	if !ok {
		return errRestart
	}
	return c.SetPolicy(p)
}

// set applies other periods. Whether pods are terminated at all is decided at the start.
func (f *shutdownFlags) set(groups []nodeshutdown.Group) error {
	if f.manager == nil || len(groups) == 0 {
		return errRestart
	}
	return f.manager.SetGroups(groups)
}

// reload reads flags and files again. What can change is applied; of the rest the log says that it needs a restart. A
// configuration with a mistake changes nothing.
func (d *daemon) reload() {
	next, err := d.read()
	if err != nil {
		d.log.Error("configuration rejected, the previous one stays", slog.Any("err", err))
		return
	}
	changed := d.changed(next.flags.config.effective)
	for _, r := range d.reloadable {
		paths := slices.DeleteFunc(slices.Clone(r.paths), func(p string) bool { return !slices.Contains(changed, p) })
		if len(paths) == 0 {
			continue
		}
		err := r.apply(next)
		for _, path := range paths {
			d.report(path, next.flags.config.effective, err)
		}
	}
	for _, path := range changed {
		if _, canChange := d.applied[path]; !canChange {
			d.report(path, next.flags.config.effective, errRestart)
		}
	}
	d.log.Info("configuration read again", slog.Int("changes", len(changed)))
}

// read returns the configuration as a start would have it now.
func (d *daemon) read() (*reloaded, error) {
	next, err := parse(d.f.daemon.args, io.Discard)
	if err != nil {
		return nil, err
	}
	capacity, err := next.capacity()
	if err != nil {
		return nil, err
	}
	s, err := next.config.effective.Settings(capacity)
	return &reloaded{&next, s}, err
}

// report logs what became of a change, and remembers what is in effect.
func (d *daemon) report(path string, next *kubeletconfig.Config, err error) {
	old, ok := d.applied[path]
	if !ok {
		old = d.f.config.effective.Text(path)
	}
	attrs := []any{slog.String("field", path), slog.String("old", shown(path, old)), slog.String("new", shown(path, next.Text(path)))}
	switch {
	case errors.Is(err, errRestart):
		d.log.Warn("configuration change needs a restart", attrs...)
	case err != nil:
		d.log.Warn("configuration change not applied", append(attrs, slog.Any("err", err))...)
	default:
		d.applied[path] = next.Text(path)
		d.f.config.enforce(path, next)
		d.log.Info("configuration change applied", attrs...)
	}
}

// shown is a value without its secrets.
func shown(path, text string) string {
	switch {
	case path == "staticPodURL":
		return withoutSecrets(text)
	case path == "staticPodURLHeader" && text != "":
		return "(hidden)"
	}
	return text
}

// changed returns the fields in which next differs from what is in effect, without those
// that have no effect.
func (d *daemon) changed(next *kubeletconfig.Config) []string {
	different := d.f.config.effective.Changed(next)
	var paths []string
	for _, f := range kubeletconfig.Fields() {
		applied, canChange := d.applied[f.Path]
		if canChange && applied != next.Text(f.Path) || !canChange && f.Treatment != kubeletconfig.NoMeaning && slices.Contains(different, f.Path) {
			paths = append(paths, f.Path)
		}
	}
	return paths
}
