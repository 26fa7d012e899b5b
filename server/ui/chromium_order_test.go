package ui_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sublet-dev/agent/internal/browsertest"
	"github.com/sublet-dev/agent/timeline"
)

// What every view shows stays right while nothing changes: an alert has a time instead of an age.
func TestPage_AlertsAndTitleInChromium(t *testing.T) {
	h := timeline.New(timeline.Config{})
	addRunning(h, "web")
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	condition := func(message string) {
		h.Eviction().ConditionsChanged([]corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Message: message, LastTransitionTime: metav1.NewTime(since)}})
	}
	condition("the disk is full")
	url := serve(t, h)
	p := browsertest.Open(t, url+"#/node", browsertest.Options{})
	p.Wait("document.querySelector('#alerts').textContent")
	var text string
	p.Eval("document.querySelector('#alerts').textContent", &text)
	assert.Equal(t, "DiskPressure since 2026-01-02 03:04:05: the disk is full", text)
	since = since.Add(time.Hour) // it went, and came again
	condition("the disk is full")
	p.Wait("document.querySelector('#alerts').textContent.includes('04:04:05')")
	fail(h, "web")
	p.Wait("document.title.startsWith('(1 failing) ')")
	requireClean(t, p, url)
}

// A response that arrives after that of a later request does not bring back an earlier state.
func TestPage_LateResponseInChromium(t *testing.T) {
	h := timeline.New(timeline.Config{})
	addRunning(h, "web")
	url := serve(t, h)
	p := browsertest.Open(t, url+"#/pod/uid-web", browsertest.Options{})
	const state = "document.querySelector('#detail .state')?.textContent"
	p.Wait(state + " === 'Running'")
	p.Eval(`{
		const get = window.fetch;
		let held = false;
		window.fetch = async (...all) => {
			const r = await get(...all), value = await r.json(), first = !held;
			held = true;
			if (first) { window.isHeld = true; await new Promise(done => window.release = done); setTimeout(() => window.isLate = true); }
			return {ok: true, json: async () => value};
		};
	}`, nil)
	addRunning(h, "web")
	p.Wait("window.isHeld")
	fail(h, "web")
	p.Wait(state + " === 'CrashLoopBackOff'")
	p.Eval("window.release()", nil)
	p.Wait("window.isLate")
	var shown string
	p.Eval(state, &shown)
	assert.Equal(t, "CrashLoopBackOff", shown)
	requireClean(t, p, url)
}
