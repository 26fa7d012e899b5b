package kube

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sublet-dev/agent/dra"
)

var _ dra.Node = (*ResourceSlices)(nil)

// sliceBubble runs ResourceSlices on a cluster whose node has slices of drivers.
type sliceBubble struct {
	t      *testing.T
	client *fake.Clientset
	*ResourceSlices

	mu      sync.Mutex
	fail    error // of all calls
	removed []string
}

func (b *sliceBubble) setFail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

func startSlices(t *testing.T, drivers ...string) *sliceBubble {
	t.Helper()
	b := &sliceBubble{t: t, client: fake.NewClientset()}
	node := "n"
	for _, d := range drivers {
		_, err := b.client.ResourceV1().ResourceSlices().Create(t.Context(), &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "n-" + d}, Spec: resourcev1.ResourceSliceSpec{NodeName: &node, Driver: d},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	b.client.PrependReactor("*", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		a, ok := action.(k8stesting.ListAction) // or of a collection
		switch {
		case !ok || b.fail != nil:
		case action.GetVerb() == "list":
			assert.Equal(t, "spec.nodeName=n", a.GetListRestrictions().Fields.String(), "a node may read its own only")
		default:
			assert.Equal(t, "delete-collection", action.GetVerb())
			b.removed = append(b.removed, a.GetListRestrictions().Fields.String())
			return true, nil, nil
		}
		return b.fail != nil, nil, b.fail
	})
	k, err := New(Config{Client: b.client, NodeName: "n"})
	require.NoError(t, err)
	b.ResourceSlices = k.ResourceSlices()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return b
}

// after lets time pass, and returns the drivers whose slices were removed.
func (b *sliceBubble) after(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.removed
	b.removed = nil
	slices.Sort(out)
	return out
}

// What drivers have published is removed after they were away for 30 seconds, and not before.
func TestResourceSlices_RemovesThoseOfAbsentDrivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startSlices(t)
		b.SetDrivers([]string{"a", "b"})
		require.Empty(t, b.after(time.Minute))
		b.SetDrivers([]string{"b"})
		require.Empty(t, b.after(29*time.Second))
		b.SetDrivers([]string{"b"}) // says nothing new
		require.Equal(t, []string{"spec.driver=a,spec.nodeName=n"}, b.after(time.Second))
		require.Empty(t, b.after(time.Hour), "once")
		b.SetDrivers(nil)
		require.Empty(t, b.after(20*time.Second))
		b.SetDrivers([]string{"b"})
		require.Empty(t, b.after(time.Hour), "it came back")
		b.SetDrivers(nil)
		require.Len(t, b.after(31*time.Second), 1)
	})
}

// Drivers that do not come back after a restart of the agent are gone as well.
func TestResourceSlices_AbsentAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startSlices(t, "back", "gone", "late")
		b.SetDrivers([]string{"back"})
		require.Empty(t, b.after(absentDriverDelay-time.Second))
		b.SetDrivers([]string{"back", "late"})
		require.Equal(t, []string{"spec.driver=gone,spec.nodeName=n"}, b.after(2*time.Second))
		require.Empty(t, b.after(time.Hour))
	})
}

// While the API server does not answer it is tried again, and a driver that comes back meanwhile keeps
// what it has published.
func TestResourceSlices_Outage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startSlices(t, "gone", "back")
		b.setFail(errors.New("connection refused"))
		require.Empty(t, b.after(absentDriverDelay+time.Minute))
		b.setFail(nil)
		b.SetDrivers([]string{"back"})
		require.Equal(t, []string{"spec.driver=gone,spec.nodeName=n"}, b.after(sliceRetry))
		b.SetDrivers(nil)
		b.setFail(errors.New("connection refused"))
		require.Empty(t, b.after(absentDriverDelay+time.Minute))
		b.SetDrivers([]string{"back"})
		b.setFail(nil)
		require.Empty(t, b.after(time.Hour))
	})
}
