package eviction

import (
	"cmp"
	"slices"
	"time"
)

// Policy is the part of a Config that can change while the Manager runs.
type Policy struct {
	Thresholds               []Threshold
	MaxPodGracePeriod        time.Duration
	PressureTransitionPeriod time.Duration
}

// Check returns all errors in the policy, joined.
func (p Policy) Check() error {
	return Config{Thresholds: p.Thresholds, PressureTransitionPeriod: p.PressureTransitionPeriod}.Check()
}

// SetPolicy replaces the fields of Config from the next measurement on, which it requests.
// The same defaults hold. A grace period under way, of a threshold that stays, continues. An
// invalid policy changes nothing. What the node reports as allocatable does not follow hard thresholds.
func (m *Manager) SetPolicy(p Policy) error {
	if err := p.Check(); err != nil {
		return err
	}
	p.Thresholds = slices.Clone(p.Thresholds)
	m.mu.Lock()
	m.next = &p
	m.mu.Unlock()
	m.RequestMeasurement()
	return nil
}

// adoptPolicy takes what SetPolicy has set. It is called between measurements.
func (m *Manager) adoptPolicy() {
	m.mu.Lock()
	p := m.next
	m.next = nil
	m.mu.Unlock()
	if p == nil {
		return
	}
	m.cfg.MaxPodGracePeriod = p.MaxPodGracePeriod
	m.state = m.state.with(thresholdsOf(p.Thresholds), cmp.Or(p.PressureTransitionPeriod, defaultTransitionPeriod))
	clear(m.warned)
}

// with returns the state with other thresholds. Those that only differ in their periods or in
// what is reclaimed keep what is known of them.
func (s *thresholdState) with(thresholds []Threshold, transition time.Duration) *thresholdState {
	next := newState(thresholds, transition)
	next.lastMet, next.lastEvictionAt, next.evictedAt, next.lastActionAt = s.lastMet, s.lastEvictionAt, s.evictedAt, s.lastActionAt
	taken := make(map[int]bool)
	for i, t := range thresholds {
		for had, was := range s.thresholds {
			if taken[had] || was.String() != t.String() || was.IsHard() != t.IsHard() {
				continue
			}
			taken[had] = true
			if since, ok := s.metSince[had]; ok {
				next.metSince[i] = since
			}
			if s.active[had] {
				next.active[i] = true
			}
			if base, ok := s.stalls[had]; ok {
				next.stalls[i] = base
			}
			break
		}
	}
	return next
}
