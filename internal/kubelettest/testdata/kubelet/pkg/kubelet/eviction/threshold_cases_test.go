package eviction

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cases"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
)

// thresholdCase is what is available over time, with the conditions of the node and the thresholds that pods are evicted for.
type thresholdCase struct {
	Hard       map[string]string `json:"hard,omitempty"`
	Soft       map[string]string `json:"soft,omitempty"`
	Grace      map[string]string `json:"grace,omitempty"` // of soft ones
	Reclaim    map[string]string `json:"reclaim,omitempty"`
	Transition int               `json:"transition"` // seconds of evictionPressureTransitionPeriod
	Steps      []thresholdStep   `json:"steps"`
}

type thresholdStep struct {
	At         int              `json:"at"`        // seconds
	Available  map[string]int64 `json:"available"` // of 1000; a signal that is not there was not measured
	Conditions []string         `json:"conditions,omitempty"`
	Due        []string         `json:"due,omitempty"` // signals with hard or soft
}

func TestThresholdCases(t *testing.T) {
	start := time.Unix(1000, 0)
	cases.Write(t, "eviction/testdata/kubelet-thresholds.jsonl", `
		Thresholds, as in the configuration, and what was available of 1000 bytes, inodes or processes at some seconds, with the
		conditions of the node and the thresholds for which pods are evicted then. Nothing is reclaimed or evicted meanwhile.`,
		10000, func(r *rand.Rand, size float64) (thresholdCase, []string) {
			c := randomThresholds(r)
			all, err := ParseThresholdConfig([]string{"pods"}, c.Hard, c.Soft, c.Grace, c.Reclaim)
			if err != nil {
				t.Fatal(err, c)
			}
			var met []evictionapi.Threshold
			var first thresholdsObservedAt
			var last nodeConditionsObservedAt
			var traits []string
			now, was := 0, ""
			for range 2 + int(size*5) {
				now += cases.One(r, 1, 9, 10, 20, 30)
				step := thresholdStep{At: now, Available: map[string]int64{}}
				observations := signalObservations{}
				for _, s := range []string{"memory.available", "allocatableMemory.available", "nodefs.available"} {
					if c.names(s) && cases.Chance(r, 0.9) {
						step.Available[s] = cases.One[int64](r, 99, 100, 149, 150, 249, 250, 299, 300, 1000)
						observations[evictionapi.Signal(s)] = signalObservation{available: resource.NewQuantity(step.Available[s], resource.DecimalSI), capacity: resource.NewQuantity(1000, resource.DecimalSI)}
					}
				}
				at := start.Add(time.Duration(now) * time.Second)
				thresholds := thresholdsMet(klog.Background(), all, observations, false)
				below := len(thresholds)
				if len(met) > 0 {
					thresholds = mergeThresholds(thresholds, thresholdsMet(klog.Background(), met, observations, true))
				}
				first = thresholdsFirstObservedAt(thresholds, first, at)
				last = nodeConditionsLastObservedAt(nodeConditions(thresholds), last, at)
				for _, condition := range nodeConditionsObservedSince(last, time.Duration(c.Transition)*time.Second, at) {
					step.Conditions = append(step.Conditions, string(condition))
				}
				met = thresholdsMetGracePeriod(klog.Background(), first, at)
				for _, threshold := range met {
					kind := " soft"
					if isHardEvictionThreshold(threshold) {
						kind = " hard"
					}
					step.Due = append(step.Due, string(threshold.Signal)+kind)
				}
				slices.Sort(step.Conditions)
				slices.Sort(step.Due)
				is := fmt.Sprint(min(len(met), 2), len(step.Conditions), len(first) > below)
				traits = append(traits, was+is)
				was = is
				c.Steps = append(c.Steps, step)
			}
			return c, traits
		})
}

// names reports whether a threshold is on the signal, or one on the memory of the node, which may hold for that of all pods too.
func (c *thresholdCase) names(signal string) bool {
	configured := strings.Replace(signal, "allocatableMemory", "memory", 1)
	return c.Hard[configured]+c.Soft[configured] != ""
}

func randomThresholds(r *rand.Rand) thresholdCase {
	c := thresholdCase{Hard: map[string]string{}, Soft: map[string]string{}, Grace: map[string]string{}, Reclaim: map[string]string{}, Transition: cases.One(r, 1, 10, 30)}
	for _, s := range []string{"memory.available", "nodefs.available"} {
		if cases.Chance(r, 0.5) {
			c.Hard[s] = cases.One(r, "100", "12.5%")
		}
		if cases.Chance(r, 0.4) {
			c.Soft[s] = cases.One(r, "250", "25%", "100")
			c.Grace[s] = cases.One(r, "10s", "30s")
		}
		if cases.Chance(r, 0.4) {
			c.Reclaim[s] = cases.One(r, "50", "5%", "0")
		}
	}
	return c
}
