package cri

import (
	"maps"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/runtime"
)

func TestSharedStrings(t *testing.T) {
	pod := &runtime.Pod{UID: "some-uid", Namespace: "some-namespace", Name: "some-name"}
	const owner = "some-owner"
	newMap := func() map[string]string {
		m := map[string]string{
			runtime.LabelPodUID: "some-uid", runtime.LabelPodNamespace: "some-namespace", runtime.LabelPodName: "some-name",
			runtime.LabelOwner: owner, runtime.AnnotationTerminationMessagePath: "/dev/termination-log", "user": "value", "empty": "",
		}
		own := make(map[string]string, len(m))
		for k, v := range m {
			own[strings.Clone(k)] = strings.Clone(v)
		}
		return own
	}
	a, b := newMap(), newMap()
	want := maps.Clone(a)
	for _, m := range []map[string]string{a, b, nil} {
		newSharedStrings().replaceIn(m, pod, owner)
	}
	assert.Equal(t, want, a)
	keys := map[string]*byte{}
	for k := range a {
		keys[k] = unsafe.StringData(k)
	}
	for k, v := range b {
		isShared := k != "user" && k != "empty"
		assert.Equal(t, isShared, unsafe.StringData(k) == keys[k], "the key %s", k)
		if v != "" {
			assert.Equal(t, isShared, unsafe.StringData(v) == unsafe.StringData(a[k]), "the value of %s", k)
		}
	}
}
