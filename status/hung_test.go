package status_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/status"
)

// ST-7: sends of some pods that hang every time delay no other pod's status, be
// the sink taken for down by them or not.
func TestManager_HungSendsDelayNoOtherPod(t *testing.T) {
	for _, hung := range []int{1, 3} {
		t.Run(fmt.Sprint(hung, " pods hang"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var received atomic.Int32
				m, stop := start(t, status.Config{Sinks: []status.Sink{status.SinkFunc(func(ctx context.Context, p *corev1.Pod, _ corev1.PodStatus) error {
					if p.UID != "fine" {
						<-ctx.Done()
						return errors.New("no answer")
					}
					received.Add(1)
					return nil
				})}})
				for i := range hung {
					waits(m, withUID(pod("main:c"), types.UID(fmt.Sprint(i))), "Hangs")
				}
				for i := range int32(20) {
					pause(20*time.Minute + time.Duration(i)*3*time.Second)
					waits(m, withUID(pod("main:c"), "fine"), fmt.Sprint("Reason", i))
					synctest.Wait()
					assert.Equal(t, i+1, received.Load(), "at once")
				}
				require.Error(t, stop(), "some were not sent")
			})
		})
	}
}
