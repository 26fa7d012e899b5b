package nodeshutdown_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/nodeshutdown"
	"github.com/sublet-dev/agent/podspec"
)

func TestGracePeriods(t *testing.T) {
	critical := podspec.SystemCriticalPriority
	for name, tc := range map[string]struct {
		all, critical time.Duration
		want          []nodeshutdown.Group
	}{
		"critical pods have a part":        {30 * time.Second, 10 * time.Second, []nodeshutdown.Group{{0, 20 * time.Second}, {critical, 10 * time.Second}}},
		"critical pods have all":           {30 * time.Second, 30 * time.Second, []nodeshutdown.Group{{0, 0}, {critical, 30 * time.Second}}},
		"critical pods have none":          {30 * time.Second, 0, []nodeshutdown.Group{{0, 30 * time.Second}, {critical, 0}}},
		"parts of seconds are dropped":     {2500 * time.Millisecond, 1900 * time.Millisecond, []nodeshutdown.Group{{0, time.Second}, {critical, time.Second}}},
		"none without a period":            {0, 0, nil},
		"none if critical pods have more":  {time.Second, 2 * time.Second, nil},
		"none for a negative critical one": {time.Second, -time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := nodeshutdown.GracePeriods(tc.all, tc.critical)
			assert.Equal(t, tc.want, got)
			if tc.want != nil {
				assert.Equal(t, tc.all.Truncate(time.Second), nodeshutdown.Total(got))
			}
		})
	}
}

func TestConfig_Check(t *testing.T) {
	_, err := nodeshutdown.New(nodeshutdown.Config{})
	require.EqualError(t, err, "nodeshutdown: Config.Dial required\nnodeshutdown: Config.Groups required")
	_, err = nodeshutdown.New(nodeshutdown.Config{Groups: nodeshutdown.GracePeriods(time.Second, 0)})
	require.EqualError(t, err, "nodeshutdown: Config.Dial required")
	err = nodeshutdown.CheckGroups([]nodeshutdown.Group{{1, time.Second}, {2, -time.Second}, {3, 0}, {1, 1500 * time.Millisecond}})
	require.EqualError(t, err, "nodeshutdown: period -1s of priority 2 must be in whole seconds from 0\n"+
		"nodeshutdown: priority 1 has two periods\nnodeshutdown: period 1.5s of priority 1 must be in whole seconds from 0")
}
