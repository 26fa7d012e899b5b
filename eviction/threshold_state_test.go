package eviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
)

func quantity(n int64) ThresholdValue {
	return ThresholdValue{Quantity: *resource.NewQuantity(n, resource.BinarySI)}
}

// EV-1, EV-12: a threshold is met below its value, or above it for pressure, and while it is
// active until its minimum reclaim is reached.
func TestThreshold_IsMet(t *testing.T) {
	memory := Threshold{Signal: MemoryAvailable, Value: quantity(200), MinReclaim: quantity(100)}
	huge := Threshold{Signal: MemoryAvailable, Value: quantity(200), MinReclaim: quantity(1 << 40)}
	psi := Threshold{Signal: MemoryPSISome, Value: ThresholdValue{Percentage: 20}}
	for name, tc := range map[string]struct {
		t       Threshold
		o       observation
		reclaim bool
		want    bool
	}{
		"less":                                  {memory, observation{Available: 199, Capacity: 1000}, false, true},
		"as much":                               {memory, observation{Available: 200, Capacity: 1000}, false, false},
		"less than the minimum reclaim":         {memory, observation{Available: 299, Capacity: 1000}, true, true},
		"the minimum reclaim":                   {memory, observation{Available: 300, Capacity: 1000}, true, false},
		"no more than all but one":              {huge, observation{Available: 998, Capacity: 1000}, true, true},
		"all but one":                           {huge, observation{Available: 999, Capacity: 1000}, true, false},
		"not below the capacity":                {memory, observation{Available: 1, Capacity: 200}, false, false},
		"just below the capacity":               {memory, observation{Available: 1, Capacity: 201}, false, true},
		"not measured":                          {memory, observation{}, false, false},
		"pressure above":                        {psi, observation{Percent: 20.1}, false, true},
		"pressure of the value":                 {psi, observation{Percent: 20}, false, false},
		"pressure is not reclaimed":             {psi, observation{Percent: 19}, true, false},
		"pressure has no capacity to be beyond": {psi, observation{Percent: 99}, false, true},
	} {
		assert.Equal(t, tc.want, tc.t.isMet(tc.o, tc.reclaim), name)
	}
	assert.False(t, psi.isImpossible(observation{Percent: 99}))
	assert.True(t, memory.isImpossible(observation{Capacity: 200}))
	assert.False(t, memory.isImpossible(observation{Capacity: 201}))
}

// EV-4: the most urgent threshold is handled first: memory, then disks, then processes, and of
// one signal the hard one.
func TestThresholdState_OrderOfThresholds(t *testing.T) {
	now := time.Now()
	s := newState([]Threshold{
		{Signal: PIDAvailable, Value: quantity(10)},
		{Signal: NodeFSAvailable, Value: quantity(10)},
		{Signal: MemoryAvailable, Value: quantity(20), GracePeriod: time.Second},
		{Signal: MemoryAvailable, Value: quantity(10)},
	}, time.Minute)
	observed := map[Signal]observation{}
	for _, signal := range []Signal{MemoryAvailable, NodeFSAvailable, PIDAvailable} {
		observed[signal] = observation{Signal: signal, Available: 1, Capacity: 100, At: now}
	}
	_, next := s.update(observed, now)
	assert.Equal(t, now.Add(time.Second), next)
	due, next := s.update(observed, now.Add(time.Second))
	assert.Equal(t, now.Add(time.Second+time.Minute), next, "the end of the conditions")
	var order []string
	for _, d := range due {
		order = append(order, d.String())
	}
	assert.Equal(t, []string{"memory.available<10", "memory.available<20", "nodefs.available<10", "pid.available<10"}, order)
	assert.True(t, due[0].IsHard())

	delete(observed, NodeFSAvailable)
	s.update(observed, now.Add(2*time.Second))
	assert.True(t, s.isActive(effectGroup(MemoryAvailable)))
	assert.False(t, s.isActive(effectGroup(NodeFSAvailable)), "it is unknown")
	assert.False(t, s.isActive(effectGroup(IOPSISome)))
}

// EV-2: pressure that was observed before the end of an eviction is judged later.
func TestThresholdState_PressureFromBeforeTheEviction(t *testing.T) {
	now := time.Now()
	s := newState([]Threshold{{Signal: MemoryPSISome, Value: ThresholdValue{Percentage: 20}}}, time.Minute)
	s.resetStalls(now)
	at, continues := s.stallContinues(0, observation{Signal: MemoryPSISome, Percent: 50, At: now.Add(-time.Second)})
	assert.False(t, continues)
	assert.Equal(t, now.Add(-time.Second+stallWindow), at)
}

// EV-2: without the time that tasks waited, the average counts once it would have decayed.
func TestStallBase_AtTheEndOfTheDecay(t *testing.T) {
	now := time.Now()
	b := &stallBase{at: now, percent: 20}
	decay := decayTime(20, 20)
	require.Equal(t, stallWindow, decay)
	continues, _ := b.continues(observation{Percent: 50, At: now.Add(decay)}, 20)
	assert.True(t, continues)
	continues, next := b.continues(observation{Percent: 50, At: now.Add(decay - 1)}, 20)
	assert.False(t, continues)
	assert.Equal(t, now.Add(decay), next)
}

func TestEarlier(t *testing.T) {
	a, b := time.Unix(1, 0), time.Unix(2, 0)
	assert.Equal(t, a, earlier(a, b))
	assert.Equal(t, a, earlier(b, a))
	assert.Equal(t, a, earlier(time.Time{}, a))
}
