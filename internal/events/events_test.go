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
func TestDedup_EmitsRepeatedEventsOncePerMinute(t *testing.T) {
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

// Containers of a pod have events of their own, whose messages may not name them.
func TestDedup_KeepsContainersApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		d := events.New(&got)
		for range 2 {
			for _, name := range []string{"a", "b"} {
				e := backOff("u", "Liveness probe failed")
				e.InvolvedObject.FieldPath = "spec.containers{" + name + "}"
				d.Record(e)
			}
			time.Sleep(time.Minute)
		}
		require.Len(t, got, 4)
		for i, e := range got {
			require.Equal(t, "spec.containers{"+string("ab"[i%2])+"}", e.InvolvedObject.FieldPath)
			require.EqualValues(t, 1+i/2, e.Count)
		}
	})
}

func TestMemoryAndTextAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		d := events.New(&got)
		for i := range 10_000 {
			d.Record(backOff(fmt.Sprint(i), "text"))
		}
		require.Len(t, got, 10_000, "different events are all told")
		d.Record(backOff("a", strings.Repeat("x", 5000)))
		require.Len(t, got[len(got)-1].Message, 1024)
	})
}

// AG-5: of events that differ only in their messages, nine are emitted and all others
// are combined.
func TestSimilarEventsAreTakenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got list
		d := events.New(&got)
		freed := func(i int) { d.Record(backOff("a", fmt.Sprintf("freed %d bytes", i))) }
		for i := range 9 {
			freed(i)
			freed(i)
		}
		require.Len(t, got, 9)
		d.Record(backOff("b", "freed 11 bytes"))
		require.Len(t, got, 10)
		require.Equal(t, "freed 11 bytes", got[9].Message, "another's")
		other := backOff("a", "freed 11 bytes")
		other.Reason = "Pulled"
		d.Record(other)
		require.Equal(t, "freed 11 bytes", got[10].Message, "another reason")
		for i := range 61 {
			freed(100 + i)
			time.Sleep(time.Second)
		}
		require.Len(t, got, 13)
		require.Equal(t, "(combined from similar events): freed 100 bytes", got[11].Message)
		require.Equal(t, "(combined from similar events): freed 160 bytes", got[12].Message, "the newest")
		require.Equal(t, []int32{1, 61}, []int32{got[11].Count, got[12].Count})
		require.Equal(t, got[11].Name, got[12].Name)
		freed(3)
		require.Len(t, got, 14, "what was told by itself is told so again")
		require.Equal(t, "freed 3 bytes", got[13].Message)
		time.Sleep(10 * time.Minute)
		freed(7)
		require.Len(t, got, 15)
		require.Equal(t, "freed 7 bytes", got[14].Message, "they were forgotten")
		require.EqualValues(t, 1, got[14].Count)
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
