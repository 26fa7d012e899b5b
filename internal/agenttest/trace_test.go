package agenttest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTrace_OrderWithinOneTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrace(0, strings.NewReplacer("/tmp/x", "/root"))
		tr.add("web", lineStatus, "", "= Pending")
		tr.add("web", lineCall, "StopContainer", "StopContainer b#0")
		tr.add("web", lineCall, "StopContainer", "StopContainer a#0")
		tr.add("app", lineEvent, "events", "! Failed: mount /tmp/x")
		tr.add("app", lineEvent, "events", "! Failed: mount /tmp/x")
		tr.add("web", lineStatus, "", "= Running")
		tr.Command("put web.yaml")
		time.Sleep(time.Hour)
		tr.add("web", lineStatus, "", "= Running")
		tr.add("web", lineCall, "RemoveContainer", "RemoveContainer a#0")
		tr.add("web", lineCall, "RemovePodSandbox", "RemovePodSandbox sandbox#0")
		tr.add("web", lineCall, "RemovePodSandbox", "RemovePodSandbox sandbox#0")
		time.Sleep(time.Minute)
		tr.add("web", lineStatus, "", recreated)
		tr.add("web", lineStatus, "", "= Running")
		assert.Equal(t, `0s
  > put web.yaml
    app  ! Failed: mount /root
    web  StopContainer a#0
    web  StopContainer b#0
    web  = Running
1h
    web  RemovePodSandbox sandbox#0
1h1m
    web  = Running
`, tr.String())
	})
}

func TestTrace_Label(t *testing.T) {
	tr := newTrace(time.Second, strings.NewReplacer())
	assert.Equal(t, "web", tr.Label("u1", "web"))
	assert.Equal(t, "web(2)", tr.Label("u2", "web"))
	assert.Equal(t, "web", tr.Label("u1", "ignored"))
}

func TestMask(t *testing.T) {
	id := strings.Repeat("0af4", 16)
	assert.Equal(t, "stop ID of UID: connection lost", Mask("stop "+id+" of "+id[:32]+": error reading from server: EOF"))
}

func TestShortDuration(t *testing.T) {
	for want, d := range map[string]time.Duration{"0s": 0, "1m": time.Minute, "1h": time.Hour, "1h1m": 61 * time.Minute, "1h0m1s": time.Hour + time.Second} {
		assert.Equal(t, want, ShortDuration(d))
	}
}
