package loglimit_test

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/loglimit"
	"github.com/sublet-dev/agent/internal/logtest"
)

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			out   logtest.Buffer
			limit loglimit.Limit
		)
		log := logtest.NewLogger(&out, slog.LevelWarn)
		record := func(client string) string {
			out.Reset()
			limit.Log(t.Context(), log, slog.LevelWarn, "refused", slog.String("client", client))
			return out.String()
		}
		assert.Equal(t, "level=WARN msg=refused client=a\n", record("a"))
		assert.Empty(t, record("b"))
		time.Sleep(loglimit.Period - 1)
		assert.Empty(t, record("c"))
		time.Sleep(time.Nanosecond)
		assert.Equal(t, "level=WARN msg=refused client=d omitted=2\n", record("d"))
		assert.Empty(t, record("e"))
		time.Sleep(time.Hour)
		assert.Equal(t, "level=WARN msg=refused client=f omitted=1\n", record("f"))
		time.Sleep(time.Hour)
		assert.Equal(t, "level=WARN msg=refused client=g\n", record("g"))
	})
}
