package events_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/internal/events"
	"github.com/sublet-dev/agent/podspec"
)

type list []*corev1.Event

func (l *list) Record(e *corev1.Event) { *l = append(*l, e) }

func backOff(uid, message string) *corev1.Event {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: types.UID(uid)}}
	return podspec.NewEvent(pod, corev1.EventTypeWarning, "BackOff", message, time.Now())
}

// AG-5
func TestRepeatsAreCountedAndToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		d := events.New(&got)
		for range 121 { // two minutes, one a second
			d.Record(backOff("a", "restarting"))
			time.Sleep(time.Second)
		}
		require.Len(t, got, 3)
		require.Equal(t, []int32{1, 61, 121}, []int32{got[0].Count, got[1].Count, got[2].Count})
		require.Equal(t, got[0].Name, got[2].Name, "one event, counted")
		d.Record(backOff("a", "another message"))
		require.Len(t, got, 4)
		time.Sleep(time.Hour)
		d.Record(backOff("a", "restarting"))
		require.Len(t, got, 5)
		require.EqualValues(t, 1, got[4].Count, "forgotten after ten minutes")
	})
}

func TestMemoryAndTextAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		d := events.New(&got)
		for i := range 10_000 {
			d.Record(backOff("a", fmt.Sprint(i)))
		}
		require.Len(t, got, 10_000, "different events are all told")
		d.Record(backOff("a", strings.Repeat("x", 5000)))
		require.Len(t, got[len(got)-1].Message, 1024)
	})
}

// The API server refuses what is no text.
func TestMessagesAreText(t *testing.T) {
	for name, message := range map[string]string{
		"cut within a character":        "x" + strings.Repeat("€", 1000),
		"cut after a character's start": "xx" + strings.Repeat("€", 1000),
		"of no text":                    strings.Repeat("a\xff", 400),
		"short, of no text":             "a\xff",
	} {
		t.Run(name, func(t *testing.T) {
			var got list
			events.New(&got).Record(backOff("a", message))
			require.Len(t, got, 1)
			require.True(t, utf8.ValidString(got[0].Message))
			require.LessOrEqual(t, len(got[0].Message), 1024)
			require.Equal(t, len(message) > 500, strings.HasSuffix(got[0].Message, "..."))
		})
	}
}

func TestNilRecorderDrops(t *testing.T) {
	events.New(nil).Record(backOff("a", "m"))
	var none *events.Dedup
	none.Record(backOff("a", "m"))
}

type printer struct{}

func (printer) Record(e *corev1.Event) { fmt.Println(e.Reason, e.Message) }

func ExampleDedup() {
	d := events.New(printer{})
	d.Record(backOff("a", "restarting container"))
	d.Record(backOff("a", "restarting container"))
	// Output: BackOff restarting container
}
