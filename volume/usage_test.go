package volume

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		var calls atomic.Int64
		var hang chan struct{}
		m := meter{log: slog.New(slog.DiscardHandler), statfs: func(path string) (runtime.FSUsage, error) {
			n := calls.Add(1)
			if hang != nil {
				<-hang
			}
			assert.Equal(t, "/mounted", path)
			return runtime.FSUsage{At: time.Now(), CapacityBytes: uint64(n)}, err
		}}
		capacity := func() uint64 { return m.VolumeUsage("uid")["data"].CapacityBytes }
		assert.Empty(t, m.VolumeUsage("uid"))
		m.add("uid", "data", "/mounted")
		assert.EqualValues(t, 1, capacity())
		m.add("uid", "data", "/mounted")
		time.Sleep(usagePeriod - time.Second)
		assert.EqualValues(t, 1, capacity(), "not measured again within a period")
		time.Sleep(time.Second)
		assert.EqualValues(t, 2, capacity())

		time.Sleep(usagePeriod)
		err = errors.New("stale file handle")
		assert.Empty(t, m.VolumeUsage("uid"), "what it was before is no usage of now")
		time.Sleep(usagePeriod)
		err = nil
		assert.EqualValues(t, 4, capacity())

		time.Sleep(usagePeriod)
		hang = make(chan struct{})
		startTime := time.Now()
		assert.EqualValues(t, 4, capacity())
		assert.Equal(t, usageWait, time.Since(startTime))
		startTime = time.Now()
		assert.EqualValues(t, 4, capacity())
		assert.Zero(t, time.Since(startTime), "waited for once")
		time.Sleep(usageMaxAge)
		assert.Empty(t, m.VolumeUsage("uid"), "too old")
		assert.EqualValues(t, 5, calls.Load(), "one at a time")
		m.forget("uid")
		close(hang)
		synctest.Wait()
		assert.Empty(t, m.VolumeUsage("uid"))
	})
}
