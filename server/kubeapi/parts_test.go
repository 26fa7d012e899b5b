package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/sublet-dev/agent/stats"
)

// The examples of RFC 6902, appendix A, and of RFC 6901.
func TestJSONPatch_RFC6902(t *testing.T) {
	for name, c := range map[string]struct{ doc, patch, want, err string }{
		"add a member":            {`{"foo":"bar"}`, `[{"op":"add","path":"/baz","value":"qux"}]`, `{"baz":"qux","foo":"bar"}`, ""},
		"add to a list":           {`{"foo":["bar","baz"]}`, `[{"op":"add","path":"/foo/1","value":"qux"}]`, `{"foo":["bar","qux","baz"]}`, ""},
		"append":                  {`{"foo":["bar"]}`, `[{"op":"add","path":"/foo/-","value":["abc"]}]`, `{"foo":["bar",["abc"]]}`, ""},
		"add at the end":          {`{"foo":["bar"]}`, `[{"op":"add","path":"/foo/1","value":"x"}]`, `{"foo":["bar","x"]}`, ""},
		"remove a member":         {`{"baz":"qux","foo":"bar"}`, `[{"op":"remove","path":"/baz"}]`, `{"foo":"bar"}`, ""},
		"remove of a list":        {`{"foo":["bar","qux","baz"]}`, `[{"op":"remove","path":"/foo/1"}]`, `{"foo":["bar","baz"]}`, ""},
		"replace":                 {`{"baz":"qux","foo":"bar"}`, `[{"op":"replace","path":"/baz","value":"boo"}]`, `{"baz":"boo","foo":"bar"}`, ""},
		"replace in a list":       {`{"a":[1,2,3]}`, `[{"op":"replace","path":"/a/1","value":9}]`, `{"a":[1,9,3]}`, ""},
		"replace the document":    {`{"a":1}`, `[{"op":"add","path":"","value":{"b":2}}]`, `{"b":2}`, ""},
		"move":                    {`{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}`, `[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]`, `{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}`, ""},
		"move in a list":          {`{"foo":["all","grass","cows","eat"]}`, `[{"op":"move","from":"/foo/1","path":"/foo/3"}]`, `{"foo":["all","cows","eat","grass"]}`, ""},
		"copy":                    {`{"a":{"x":1}}`, `[{"op":"copy","from":"/a","path":"/b"},{"op":"replace","path":"/b/x","value":2}]`, `{"a":{"x":1},"b":{"x":2}}`, ""},
		"test":                    {`{"baz":"qux","foo":["a",2,"c"]}`, `[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]`, `{"baz":"qux","foo":["a",2,"c"]}`, ""},
		"null":                    {`{"a":1}`, `[{"op":"add","path":"/b","value":null}]`, `{"a":1,"b":null}`, ""},
		"nested":                  {`{"a":[{"b":[1]}]}`, `[{"op":"add","path":"/a/0/b/0","value":0}]`, `{"a":[{"b":[0,1]}]}`, ""},
		"escapes":                 {`{"/":9,"~1":10}`, `[{"op":"test","path":"/~01","value":10},{"op":"remove","path":"/~1"}]`, `{"~1":10}`, ""},
		"test fails":              {`{"baz":"qux"}`, `[{"op":"test","path":"/baz","value":"bar"}]`, "", "testing value /baz failed"},
		"test of nothing":         {`{}`, `[{"op":"test","path":"/a/b","value":"bar"}]`, "", "testing value /a/b failed"},
		"test by type":            {`{"a":"10"}`, `[{"op":"test","path":"/a","value":10}]`, "", "failed"},
		"parent is missing":       {`{"foo":"bar"}`, `[{"op":"add","path":"/baz/bat","value":"qux"}]`, "", `there is no "baz"`},
		"parent is a value":       {`{"foo":"bar"}`, `[{"op":"add","path":"/foo/bat","value":"qux"}]`, "", "neither an object nor a list"},
		"remove nothing":          {`{}`, `[{"op":"remove","path":"/a"}]`, "", `there is no "a"`},
		"replace nothing":         {`{}`, `[{"op":"replace","path":"/a","value":1}]`, `{"a":1}`, ""}, // as an API server, unlike the RFC
		"replace below nothing":   {`{}`, `[{"op":"replace","path":"/a/b","value":1}]`, "", `there is no "a"`},
		"replace past the end":    {`{"a":[1]}`, `[{"op":"replace","path":"/a/1","value":1}]`, "", "index"},
		"test that it is missing": {`{"a":{}}`, `[{"op":"test","path":"/a/b","value":null}]`, `{"a":{}}`, ""},
		"test null":               {`{"a":1}`, `[{"op":"test","path":"/a","value":null}]`, "", "testing value /a failed"},
		"other capitals":          {`{}`, `[{"OP":"add","path":"/a","value":1}]`, "", `op "" is not known`},
		"index past the end":      {`{"a":[1]}`, `[{"op":"add","path":"/a/2","value":1}]`, "", "index"},
		"index with a zero":       {`{"a":[1,2]}`, `[{"op":"remove","path":"/a/01"}]`, `{"a":[1]}`, ""},
		"negative index":          {`{"a":[1,2]}`, `[{"op":"remove","path":"/a/-1"}]`, `{"a":[1]}`, ""},
		"before the first":        {`{"a":[1,2]}`, `[{"op":"remove","path":"/a/-3"}]`, "", "index"},
		"last of a list":          {`{"a":[1,2]}`, `[{"op":"remove","path":"/a/-"}]`, "", "index"},
		"into itself":             {`{"a":{"b":{}}}`, `[{"op":"move","from":"/a","path":"/a/b/c"}]`, "", "into itself"},
		"move nothing":            {`{}`, `[{"op":"move","from":"/a","path":"/b"}]`, "", `there is no "a"`},
		"without path":            {`{}`, `[{"op":"add","value":1}]`, "", "path required"},
		"without value":           {`{}`, `[{"op":"add","path":"/a"}]`, `{"a":null}`, ""},
		"without from":            {`{}`, `[{"op":"copy","path":"/a"}]`, "", "from required"},
		"path without slash":      {`{}`, `[{"op":"add","path":"a","value":1}]`, "", "must begin with /"},
		"from without slash":      {`{}`, `[{"op":"copy","path":"/a","from":"b"}]`, "", "must begin with /"},
		"unknown":                 {`{}`, `[{"op":"spam","path":"/a","value":1}]`, "", `op "spam" is not known`},
		"no list":                 {`{}`, `{}`, "", "cannot unmarshal"},
		"second operation is bad": {`{}`, `[{"op":"add","path":"/a","value":1},{"op":"remove","path":"/b"}]`, "", "operation 1"},
	} {
		got, err := jsonPatch([]byte(c.doc), []byte(c.patch))
		if c.err != "" {
			require.ErrorContains(t, err, c.err, name)
			continue
		}
		require.NoError(t, err, name)
		assert.JSONEq(t, c.want, string(got), name)
	}
	many := []byte(`[{"op":"test","path":"","value":{}}`)
	for range maxOperations {
		many = append(many, `,{"op":"test","path":"","value":{}}`...)
	}
	_, err := jsonPatch([]byte(`{}`), append(many, ']'))
	require.ErrorContains(t, err, "10000 operations")
	doubling := []byte(`[{"op":"add","path":"/a","value":"` + strings.Repeat("a", 1000) + `"}`)
	for i := range 30 {
		doubling = fmt.Appendf(doubling, `,{"op":"copy","from":"","path":"/a%d"}`, i)
	}
	_, err = jsonPatch([]byte(`{}`), append(doubling, ']'))
	require.ErrorContains(t, err, "operation 12: the patch copies more than 3145728 bytes")
}

// The examples of RFC 7386, appendix A, that have objects as patches.
func TestMergePatch_RFC7386(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		got, err := mergePatch([]byte(c[0]), []byte(c[1]))
		require.NoError(t, err)
		assert.JSONEq(t, c[2], string(got), "%s with %s", c[0], c[1])
	}
}

// A grace period without an end is such a number.
func TestPatches_KeepLargeIntegers(t *testing.T) {
	const largest = "9223372036854775807"
	got, err := mergePatch([]byte(`{"a":`+largest+`}`), []byte(`{"b":0.5}`))
	require.NoError(t, err)
	assert.Equal(t, `{"a":`+largest+`,"b":0.5}`, string(got))
	got, err = jsonPatch([]byte(`{"a":`+largest+`}`), []byte(`[{"op":"copy","from":"/a","path":"/b"},{"op":"add","path":"/c","value":`+largest+`}]`))
	require.NoError(t, err)
	assert.Equal(t, `{"a":`+largest+`,"b":`+largest+`,"c":`+largest+`}`, string(got))
}

// kubectl hides the rows of pods that are over by the condition Completed.
func TestPodTable_SummaryAndCompletion(t *testing.T) {
	for phase, conditions := range map[corev1.PodPhase]int{corev1.PodRunning: 0, corev1.PodSucceeded: 1, corev1.PodFailed: 1} {
		row := podTable().row(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}},
			Status: corev1.PodStatus{Phase: phase, Reason: "Because", PodIP: "10.0.0.1"},
		})
		assert.Equal(t, []any{"web", "0/2", "Because", "0", "<unknown>", "10.0.0.1", "<none>", "<none>", "<none>"}, row.Cells, phase)
		assert.Len(t, row.Conditions, conditions, phase)
	}
}

func TestNodeTable_StatusRolesAndAddresses(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"node-role.kubernetes.io/edge": "", "kubernetes.io/role": "box", "node-role.kubernetes.io/": ""}}}
	assert.Equal(t, []any{"n", "Unknown", "box,edge", "<unknown>"}, nodeTable().row(n).Cells[:4])
	n.Spec.Unschedulable = true
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: "True"}, {Type: corev1.NodeReady, Status: "False"}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "h"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	cells := nodeTable().row(n).Cells
	assert.Equal(t, "NotReady,SchedulingDisabled", cells[1])
	assert.Equal(t, "10.0.0.1", cells[5])
}

func TestEventTable(t *testing.T) {
	at := metav1.Time{Time: time.Unix(1000, 0)}
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "x.1"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web", FieldPath: "spec"}, Type: "Warning", Reason: "BackOff",
		Message: " text\n", FirstTimestamp: at, Source: corev1.EventSource{Component: "kubelet", Host: "n"},
	}
	assert.Equal(t, []any{"60s", "Warning", "BackOff", "pod/web", "spec", "kubelet, n", "text", "60s", int64(1), "x.1"}, eventTable().cells(e, time.Unix(1060, 0)))
	e = &corev1.Event{EventTime: metav1.MicroTime(at), ReportingController: "c", Count: 3, LastTimestamp: metav1.Time{Time: time.Unix(1050, 0)}}
	cells := eventTable().cells(e, time.Unix(1060, 0))
	assert.Equal(t, []any{"10s", "c", "60s", int64(3)}, []any{cells[0], cells[5], cells[7], cells[8]})
}

// A watcher that is too slow is ended, and others go on; history is bounded. SV-9
func TestCollection_BoundsOfWatches(t *testing.T) {
	c := newCollection(newVersions())
	put := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: uuid.NewUUID()}})
	}
	put()
	_, _, version := c.list()
	slow, _, ok := c.watch(nil)
	require.True(t, ok)
	for range watcherBuffer / 2 {
		put() // a deletion and a creation
	}
	_, from, ok := c.watch(&version)
	require.True(t, ok, "the history has just as much")
	assert.Len(t, from.changes, maxHistory)
	assert.True(t, c.isWatched())
	put()
	for range watcherBuffer {
		<-slow.changes
	}
	_, ok = <-slow.changes
	assert.False(t, ok, "ended")
	_, _, ok = c.watch(&version)
	assert.False(t, ok, "too old")
	_, _, version = c.list()
	next := version + 1
	_, _, ok = c.watch(&next)
	assert.False(t, ok, "not known")
	c.unwatch(slow)
	last, _, ok := c.watch(&version)
	assert.True(t, ok)
	c.unwatch(last)
}

// Usage is known only with two measurements, and none of them is of another container.
func TestMeter_ComputesRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		used, calls := uint64(5e9), 0
		var failure error
		m := &meter{measuring: newSlot(), measure: func(context.Context) (stats.Summary, error) {
			calls++
			now := used
			used += 5e8 // half a core if a second passes
			known := uint64(7)
			return stats.Summary{Pods: []stats.PodStats{{PodRef: stats.PodReference{UID: "u"}, Containers: []stats.ContainerStats{
				{Name: "a", CPU: &stats.CPUStats{UsageCoreNanoSeconds: &now}}, {Name: "b", CPU: &stats.CPUStats{UsageCoreNanoSeconds: &now, UsageNanoCores: &known}}, {Name: "c"},
			}}}}, failure
		}}
		s, windows, err := m.summary(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 2, calls, "the first one has no rate")
		assert.Equal(t, uint64(5e8), *s.Pods[0].Containers[0].CPU.UsageNanoCores)
		assert.Equal(t, uint64(7), *s.Pods[0].Containers[1].CPU.UsageNanoCores, "the runtime's own")
		assert.Equal(t, time.Second, windows[rateKey{"u", "a"}])
		s, _, err = m.summary(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 3, calls)
		assert.Equal(t, uint64(5e8), *s.Pods[0].Containers[0].CPU.UsageNanoCores, "too soon for another rate")
		time.Sleep(9 * time.Second)
		s, windows, err = m.summary(t.Context())
		require.NoError(t, err)
		assert.Equal(t, uint64(111_111_111), *s.Pods[0].Containers[0].CPU.UsageNanoCores)
		assert.Equal(t, 9*time.Second, windows[rateKey{"u", "a"}])
		time.Sleep(time.Hour)
		_, windows, err = m.summary(t.Context())
		require.NoError(t, err)
		assert.Equal(t, time.Second, windows[rateKey{"u", "a"}], "an old measurement says nothing of now")
		used = 0 // restarted
		time.Sleep(2 * time.Second)
		s, _, err = m.summary(t.Context())
		require.NoError(t, err)
		assert.Equal(t, uint64(5e8), *s.Pods[0].Containers[0].CPU.UsageNanoCores)
		failure = errors.New("runtime is down")
		_, _, err = m.summary(t.Context())
		require.ErrorIs(t, err, failure)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, m.measuring.acquire(t.Context()))
		_, _, err = m.summary(ctx)
		require.ErrorIs(t, err, context.Canceled)
	})
}
