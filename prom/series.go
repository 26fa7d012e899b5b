package prom

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// family is one metric of a scrape.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gaugeFamily(name, help string, labels ...string) family {
	return family{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

func counterFamily(name, help string, labels ...string) family {
	return family{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

// value sends one sample. A zero time is that of the scrape.
func (f family) value(ch chan<- prometheus.Metric, at time.Time, v float64, labels labelSet) {
	s := &sample{family: f, value: v, labels: labels}
	if !at.IsZero() {
		s.milliseconds = at.UnixMilli()
	}
	ch <- s
}

// known sends a sample that may be unknown.
func (f family) known(ch chan<- prometheus.Metric, at time.Time, v *uint64, labels labelSet) {
	if v != nil {
		f.value(ch, at, float64(*v), labels)
	}
}

// nanoseconds sends a duration in seconds that may be unknown.
func (f family) nanoseconds(ch chan<- prometheus.Metric, at time.Time, v *uint64, labels labelSet) {
	if v != nil {
		f.value(ch, at, float64(*v)/float64(time.Second), labels)
	}
}

// describe sends the descriptions of families.
func describe(ch chan<- *prometheus.Desc, all ...family) {
	for _, f := range all {
		ch <- f.desc
	}
}

// labelSet is the labels of a series, sorted by name. It is read-only: the series of a container share it. Labels of their own would
// be most of the memory of a scrape.
type labelSet []*dto.LabelPair

// newLabels returns labels, each of which is a name and a value.
func newLabels(pairs ...string) labelSet { return labelSet(nil).with(pairs...) }

// with returns these labels and more.
func (l labelSet) with(pairs ...string) labelSet {
	more := make([]dto.LabelPair, len(pairs)/2)
	all := append(make(labelSet, 0, len(l)+len(more)), l...)
	for i := range more {
		name, value := &pairs[2*i], &pairs[2*i+1]
		*value = strings.ToValidUTF8(*value, "\uFFFD") // a runtime may report an image or an id that is no text
		more[i].Name, more[i].Value = name, value
		all = append(all, &more[i])
	}
	slices.SortFunc(all, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// sample is the value of a series at one time.
type sample struct {
	family
	labels       labelSet
	value        float64
	milliseconds int64 // since 1970; 0: the time of the scrape
}

// Desc implements prometheus.Metric.
func (s *sample) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s *sample) Write(out *dto.Metric) error {
	out.Label = s.labels
	if s.kind == prometheus.CounterValue {
		out.Counter = &dto.Counter{Value: &s.value}
	} else {
		out.Gauge = &dto.Gauge{Value: &s.value}
	}
	if s.milliseconds != 0 {
		out.TimestampMs = &s.milliseconds
	}
	return nil
}
