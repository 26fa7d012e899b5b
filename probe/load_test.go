//go:build unix

package probe

import (
	"context"
	"fmt"
	"maps"
	"net"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sublet-dev/agent/internal/systest"
	"github.com/sublet-dev/agent/runtime"
)

// answerer is a minimal HTTP server, so that the benchmark measures the probes.
func answerer(b *testing.B) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				buf := make([]byte, 1024)
				c.Read(buf)
				c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"))
				c.Close()
			}()
		}
	}()
	b.Cleanup(func() { l.Close() })
	return l
}

// PB-2: BenchmarkManager_ThousandPods probes 1,000 pods each second for some seconds of
// real time. It reports the delay of probes, the maximum of probes that started in a tenth
// of a second (a hundred if they are spread evenly), the range of the number of goroutines,
// and the CPU time per probe, including the server.
func BenchmarkManager_ThousandPods(b *testing.B) {
	const pods, lasting = 1000, 6 * time.Second
	for b.Loop() {
		_, port, err := net.SplitHostPort(answerer(b).Addr().String())
		require.NoError(b, err)
		n := newNode()
		var mu sync.Mutex
		var late []time.Duration
		begun := map[int64]int{} // in each tenth of a second
		var failures atomic.Int32
		m, err := New(Config{PodCache: n, Hooks: Hooks{Probed: func(p ProbeRun) {
			if p.Result != runtime.ProbeSuccess {
				failures.Add(1)
			}
			mu.Lock()
			late = append(late, p.StartedAt.Sub(p.ScheduledAt))
			begun[p.StartedAt.UnixMilli()/100]++
			mu.Unlock()
		}}})
		require.NoError(b, err)
		ctx, cancel := context.WithTimeout(b.Context(), lasting)
		defer cancel()
		before := goruntime.NumGoroutine()
		h := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "127.0.0.1", Port: intstr.Parse(port)}}
		for i := range pods {
			uid := types.UID(fmt.Sprintf("5d3e9c1e-0000-0000-0000-%012d", i))
			n.set(uid, fmt.Sprint(i), runtime.Running)
			m.AddPod(podOf(uid, nil, every(1, h), nil))
		}
		used := systest.CPUTime(b)
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.Run(ctx) })
		most, least := 0, 1<<30
		for ctx.Err() == nil {
			g := goruntime.NumGoroutine() - before
			most, least = max(most, g), min(least, g)
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		used = systest.CPUTime(b) - used
		require.Greater(b, len(late), pods*int(lasting/time.Second)-2*pods)
		slices.Sort(late)
		b.ReportMetric(float64(late[len(late)*99/100].Microseconds())/1000, "ms-late-p99")
		b.ReportMetric(float64(late[len(late)-1].Microseconds())/1000, "ms-late-max")
		b.ReportMetric(float64(slices.Max(slices.Collect(maps.Values(begun)))), "begun-in-0.1s-max")
		b.ReportMetric(float64(failures.Load()), "failed")
		b.ReportMetric(float64(most), "goroutines-max")
		b.ReportMetric(float64(least), "goroutines-min")
		b.ReportMetric(float64(used.Microseconds())/float64(len(late)), "us-cpu/probe")
	}
}
