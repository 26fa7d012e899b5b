package eviction_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/eviction"
)

// EV-1, EV-2: expressions, good and bad, with the exact error.
func TestParseHard(t *testing.T) {
	for _, tc := range []struct{ in, want, err string }{
		{in: "", want: ""},
		{in: "none", want: ""},
		{in: "memory.available<100Mi", want: "memory.available<100Mi"},
		{in: " memory.available < 100Mi ", want: "memory.available<100Mi"},
		{in: "memory.available<1.5Gi", want: "memory.available<1536Mi"},
		{in: "memory.available<1e3", want: "memory.available<1e3"},
		{in: "memory.available<15%", want: "memory.available<15%"},
		{in: "memory.available<0.5%", want: "memory.available<0.5%"},
		{in: "memory.available<100Mi,", want: "memory.available<100Mi"},
		{in: ",memory.available<100Mi,,pid.available<9", want: "memory.available<100Mi pid.available<9"},
		{in: ",", want: ""},
		{in: "memory.available<100Mi, ,pid.available<9", err: `eviction-hard: "": must be written as signal<value`},
		{in: "memory.available<0%", want: ""},
		{in: "memory.available<100%", want: ""},
		{in: "nodefs.available<10%,nodefs.inodesFree<5%", want: "nodefs.available<10% nodefs.inodesFree<5%"},
		{in: "imagefs.available<1Gi,imagefs.inodesFree<1000", want: "imagefs.available<1Gi imagefs.inodesFree<1k"},
		{in: "containerfs.available<1Gi,containerfs.inodesFree<5%", want: "containerfs.available<1Gi containerfs.inodesFree<5%"},
		{in: "pid.available<1000", want: "pid.available<1k"},
		{in: "allocatableMemory.available<50Mi", want: "allocatableMemory.available<50Mi"},
		{in: "memory.psi.some.avg10>20%", want: "memory.psi.some.avg10>20%"},
		{in: "memory.psi.full.avg10>2.5%", want: "memory.psi.full.avg10>2.5%"},
		{in: "io.psi.full.avg10>40%,cpu.psi.some.avg10>90%", want: "io.psi.full.avg10>40% cpu.psi.some.avg10>90%"},
		{in: eviction.DefaultHardThresholds, want: "memory.available<100Mi nodefs.available<10% nodefs.inodesFree<5% imagefs.available<15% imagefs.inodesFree<5%"},

		{in: "memory.available", err: `eviction-hard: "memory.available": must be written as signal<value`},
		{in: "memory.available=100Mi", err: `eviction-hard: "memory.available=100Mi": must be written as signal<value`},
		{in: "memory.available>100Mi", err: `eviction-hard: "memory.available>100Mi": a threshold on memory.available must be written with <`},
		{in: "memory.available<", err: `eviction-hard: "memory.available<": invalid quantity ""`},
		{in: "memory.available<100Mb", err: `eviction-hard: "memory.available<100Mb": invalid quantity "100Mb"`},
		{in: "memory.available<abc%", err: `eviction-hard: "memory.available<abc%": invalid percentage "abc%"`},
		{in: "memory.available<NaN%", err: `eviction-hard: "memory.available<NaN%": invalid percentage "NaN%"`},
		{in: "memory.available<%", err: `eviction-hard: "memory.available<%": invalid percentage "%"`},
		{in: "memory.available<-5%", err: `eviction-hard: "memory.available<-5%": percentage "-5%" must be between 0% and 100%`},
		{in: "memory.available<101%", err: `eviction-hard: "memory.available<101%": percentage "101%" must be between 0% and 100%`},
		{in: "memory.available<0", err: `eviction-hard: "memory.available<0": the value must be above 0`},
		{in: "memory.available<-100Mi", err: `eviction-hard: "memory.available<-100Mi": the value must be above 0`},
		{in: "memory.avail<100Mi", err: `eviction-hard: "memory.avail<100Mi": unknown signal "memory.avail"`},
		{in: "Memory.available<100Mi", err: `eviction-hard: "Memory.available<100Mi": unknown signal "Memory.available"`},
		{in: "<100Mi", err: `eviction-hard: "<100Mi": unknown signal ""`},
		{in: "memory.available<1Mi,memory.available<2Mi", err: `eviction-hard: "memory.available<2Mi": duplicate threshold for memory.available`},
		{in: "memory.psi.some.avg10<20%", err: `eviction-hard: "memory.psi.some.avg10<20%": a threshold on memory.psi.some.avg10 must be written with >`},
		{in: "memory.psi.some.avg10>20", err: `eviction-hard: "memory.psi.some.avg10>20": pressure must be a percentage`},
		{in: "memory.psi.some.avg10>x%", err: `eviction-hard: "memory.psi.some.avg10>x%": invalid percentage "x%"`},
		{in: "memory.psi.some.avg10>0%", err: `eviction-hard: "memory.psi.some.avg10>0%": pressure must be above 0% and below 100%`},
		{in: "memory.psi.some.avg10>100%", err: `eviction-hard: "memory.psi.some.avg10>100%": pressure must be above 0% and below 100%`},
		{in: "memory.psi.some.avg60>10%", err: `eviction-hard: "memory.psi.some.avg60>10%": unknown signal "memory.psi.some.avg60"`},
		{
			in: "x<1,nodefs.available<y",
			err: `eviction-hard: "x<1": unknown signal "x"` + "\n" +
				`eviction-hard: "nodefs.available<y": invalid quantity "y"`,
		},
	} {
		t.Run(tc.in, func(t *testing.T) {
			got, err := eviction.ParseThresholds(tc.in, "", "", "")
			if tc.err != "" {
				require.EqualError(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, join(got))
		})
	}
}

func join(list []eviction.Threshold) string {
	out := ""
	for i, t := range list {
		if i > 0 {
			out += " "
		}
		out += t.String()
	}
	return out
}

// EV-1: soft thresholds need grace periods, and minimum reclaims fit signals.
func TestParseSoft(t *testing.T) {
	for _, tc := range []struct{ soft, grace, reclaim, err string }{
		{soft: "memory.available<1Gi", grace: "memory.available=1m30s"},
		{soft: "memory.available<1Gi,pid.available<9", grace: "memory.available=1m, pid.available=1h", reclaim: "memory.available=10%,nodefs.available=500Mi"},
		{soft: "memory.available<1Gi,", grace: "memory.available=1m,", reclaim: ",memory.available=10%"},
		{soft: "memory.available<0%,pid.available<100%"}, // both are off
		{soft: "memory.available<1Gi", err: `eviction-soft: "memory.available<1Gi" has no grace period`},
		{soft: "memory.available<1Gi", grace: "pid.available=1m", err: `eviction-soft: "memory.available<1Gi" has no grace period`},
		{grace: "pid.available=1m"},
		{grace: "pid.available=1m,pid.available=2m", err: `eviction-soft-grace-period: "pid.available=2m": duplicate signal pid.available`},
		{soft: "memory.available<1Gi", grace: "memory.available=0s"},
		{soft: "memory.available<1Gi", grace: "memory.available=-1s", err: `eviction-soft-grace-period: "memory.available=-1s": the grace period must not be negative`},
		{soft: "memory.available<1Gi", grace: "memory.available=90", err: `eviction-soft-grace-period: "memory.available=90": invalid duration "90"`},
		{soft: "memory.available<1Gi", grace: "memory.available", err: `eviction-soft-grace-period: "memory.available": must be written as signal=value`},
		{soft: "memory.available<1Gi", grace: "memory=1s", err: `eviction-soft-grace-period: "memory=1s": unknown signal "memory"`},
		{reclaim: "memory.available=-1Mi", err: `eviction-minimum-reclaim: "memory.available=-1Mi": the minimum reclaim must not be negative`},
		{reclaim: "memory.available=x", err: `eviction-minimum-reclaim: "memory.available=x": invalid quantity "x"`},
		{reclaim: "memory.available=1,memory.available=2", err: `eviction-minimum-reclaim: "memory.available=2": duplicate signal memory.available`},
		{reclaim: "memory.psi.full.avg10=5%", err: `eviction-minimum-reclaim: "memory.psi.full.avg10=5%": pressure cannot be reclaimed`},
	} {
		_, err := eviction.ParseThresholds("", tc.soft, tc.grace, tc.reclaim)
		if tc.err == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, tc.err)
	}
}

// EV-1: what soft thresholds come to: a grace period of nothing makes a hard one.
func TestSoftThresholds(t *testing.T) {
	got, err := eviction.ParseThresholds("pid.available<3", "memory.available<1Gi,nodefs.available<1%",
		"memory.available=1m30s,nodefs.available=0s", "memory.available=10%")
	require.NoError(t, err)
	require.Equal(t, "pid.available<3 memory.available<1Gi nodefs.available<1%", join(got))
	assert.Equal(t, []time.Duration{0, 90 * time.Second, 0}, []time.Duration{got[0].GracePeriod, got[1].GracePeriod, got[2].GracePeriod})
	assert.Equal(t, []bool{true, false, true}, []bool{got[0].IsHard(), got[1].IsHard(), got[2].IsHard()})
	assert.Equal(t, []bool{true, false, true}, []bool{got[0].MinReclaim.IsZero(), got[1].MinReclaim.IsZero(), got[2].MinReclaim.IsZero()})
	assert.Equal(t, "10%", got[1].MinReclaim.String())
}

func TestNew_ReportsAllErrors(t *testing.T) {
	_, err := eviction.New(eviction.Config{Thresholds: []eviction.Threshold{{Signal: "x"}}, MonitoringPeriod: -1, PodCleanupTimeout: -2, PressureTransitionPeriod: -3})
	require.EqualError(t, err, `eviction: Config.Usage required
eviction: Config.Pods required
eviction: Config.Thresholds: "x<0": unknown signal "x"
eviction: Config.PressureTransitionPeriod: must not be negative: -3ns
eviction: Config.MonitoringPeriod: must not be negative: -1ns
eviction: Config.PodCleanupTimeout: must not be negative: -2ns`)
}

// EV-1: an invalid threshold is an error that names it.
func TestConfig_Check(t *testing.T) {
	bytes := func(n int64) eviction.ThresholdValue {
		return eviction.ThresholdValue{Quantity: *resource.NewQuantity(n, resource.BinarySI)}
	}
	percent := func(p float64) eviction.ThresholdValue { return eviction.ThresholdValue{Percentage: p} }
	both := eviction.ThresholdValue{Quantity: resource.MustParse("1Gi"), Percentage: 5}
	const memory, psi = eviction.MemoryAvailable, eviction.MemoryPSISome
	for _, tc := range []struct {
		threshold eviction.Threshold
		want      string // "" if it is valid
	}{
		{eviction.Threshold{Signal: memory, Value: bytes(1)}, ""},
		{eviction.Threshold{Signal: memory, Value: percent(0.1)}, ""},
		{eviction.Threshold{Signal: memory, Value: percent(99.9), GracePeriod: 1, MinReclaim: percent(100)}, ""},
		{eviction.Threshold{Signal: memory, Value: percent(5), MinReclaim: bytes(1)}, ""},
		{eviction.Threshold{Signal: psi, Value: percent(20), GracePeriod: time.Minute}, ""},
		{eviction.Threshold{Signal: "memory.free", Value: bytes(1)}, `"memory.free<1": unknown signal "memory.free"`},
		{eviction.Threshold{Signal: memory}, `"memory.available<0": the value must be above 0`},
		{eviction.Threshold{Signal: memory, Value: bytes(-1)}, `"memory.available<-1": the value must be above 0`},
		{eviction.Threshold{Signal: memory, Value: percent(-1)}, `"memory.available<0": percentage -1 must be above 0% and below 100%`},
		{eviction.Threshold{Signal: memory, Value: percent(100)}, `"memory.available<100%": percentage 100 must be above 0% and below 100%`},
		{eviction.Threshold{Signal: memory, Value: percent(math.NaN())}, `"memory.available<0": percentage NaN must be above 0% and below 100%`},
		{eviction.Threshold{Signal: memory, Value: both}, `"memory.available<5%": the value has both a quantity and a percentage`},
		{eviction.Threshold{Signal: psi, Value: bytes(1)}, `"memory.psi.some.avg10>1": pressure must be a percentage`},
		{eviction.Threshold{Signal: psi}, `"memory.psi.some.avg10>0": pressure must be above 0% and below 100%`},
		{eviction.Threshold{Signal: psi, Value: percent(100)}, `"memory.psi.some.avg10>100%": pressure must be above 0% and below 100%`},
		{eviction.Threshold{Signal: psi, Value: percent(1), MinReclaim: percent(1)}, `"memory.psi.some.avg10>1%": pressure cannot be reclaimed`},
		{eviction.Threshold{Signal: psi, Value: percent(1), MinReclaim: bytes(1)}, `"memory.psi.some.avg10>1%": pressure cannot be reclaimed`},
		{eviction.Threshold{Signal: memory, Value: bytes(1), GracePeriod: -1}, `"memory.available<1": the grace period must not be negative`},
		{eviction.Threshold{Signal: memory, Value: bytes(1), MinReclaim: bytes(-1)}, `"memory.available<1": the minimum reclaim must not be negative`},
		{eviction.Threshold{Signal: memory, Value: bytes(1), MinReclaim: percent(-1)}, `"memory.available<1": the minimum reclaim must not be negative`},
		{eviction.Threshold{Signal: memory, Value: bytes(1), MinReclaim: percent(101)}, `"memory.available<1": the minimum reclaim of 101% is not up to 100%`},
		{eviction.Threshold{Signal: memory, Value: bytes(1), MinReclaim: percent(math.NaN())}, `"memory.available<1": the minimum reclaim of NaN% is not up to 100%`},
		{eviction.Threshold{Signal: memory, Value: bytes(1), MinReclaim: both}, `"memory.available<1": the minimum reclaim has both a quantity and a percentage`},
	} {
		cfg := eviction.Config{Thresholds: []eviction.Threshold{tc.threshold}}
		if tc.want == "" {
			require.NoError(t, cfg.Check(), tc.threshold.String())
			continue
		}
		require.EqualError(t, cfg.Check(), "eviction: Config.Thresholds: "+tc.want)
	}
	require.NoError(t, new(eviction.Config).Check())
}

// EV-1: what is parsed from flags is valid, and "none" is not the default.
func TestParseThresholds_ReturnsThresholdsOfAConfig(t *testing.T) {
	for _, hard := range []string{"", eviction.None, eviction.DefaultHardThresholds, "memory.available<0%,nodefs.available<100%"} {
		list, err := eviction.ParseThresholds(hard, "pid.available<5%", "pid.available=0s", "pid.available=100%,nodefs.available=0")
		require.NoError(t, err)
		require.NotNil(t, list)
		cfg := eviction.Config{Thresholds: list}
		require.NoError(t, cfg.Check())
	}
	none, err := eviction.ParseThresholds(eviction.None, "", "", "")
	require.NoError(t, err)
	assert.Equal(t, []eviction.Threshold{}, none)
	assert.Equal(t, eviction.DefaultThresholds(), hardThresholds(eviction.DefaultHardThresholds))
}

func FuzzParseThresholds(f *testing.F) {
	f.Add("memory.available<100Mi,nodefs.available<10%", "pid.available<5", "pid.available=1m", "memory.available=1%")
	f.Add(eviction.DefaultHardThresholds, "", "", "")
	f.Add("memory.psi.some.avg10>1e9%", "", "", "")
	f.Fuzz(func(t *testing.T, hard, soft, grace, reclaim string) {
		list, err := eviction.ParseThresholds(hard, soft, grace, reclaim)
		if err != nil {
			return
		}
		for _, th := range list {
			parsed, err := eviction.ParseThresholds(th.String(), "", "", "")
			if err != nil || len(parsed) != 1 || parsed[0].Value.Of(1<<40) != th.Value.Of(1<<40) {
				t.Fatalf("%q reads back as %v, %v", th, parsed, err)
			}
		}
	})
}
