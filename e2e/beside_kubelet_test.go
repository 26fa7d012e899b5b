//go:build linux

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

const (
	// envSteady is how long pods are idle while a program is measured, such as 60s.
	envSteady = "SUBLET_BENCH_STEADY"
	// envSmoke is in the environment of TestBenchmarks: programs are built as the tests are, from what is compiled already.
	envSmoke = "SUBLET_BENCH_SMOKE"
	// envBesidePods is a number of pods that replaces 30 and 250.
	envBesidePods = "SUBLET_BENCH_PODS"
	// settleTime is how long work continues after pods have started, or a program.
	settleTime = 10 * time.Second
)

// BenchmarkBesideKubelet runs hostNetwork pods of one idle process from a manifest directory, with the agent and with the kubelet in
// processes of their own, and measures from outside: starts, CPU time and calls of idle pods, memory and removal. The calls of both
// go through a proxy in the benchmark that counts them. The program "client" is an empty client of the runtime, and "pageout" the agent
// with package pageout.
func BenchmarkBesideKubelet(b *testing.B) {
	steady := time.Minute
	if text := os.Getenv(envSteady); text != "" {
		var err error
		steady, err = time.ParseDuration(text)
		require.NoError(b, err)
	}
	counts := []int{30, 250}
	if text := os.Getenv(envBesidePods); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(b, err)
		counts = []int{n}
	}
	eachContainerd(b, func(b *testing.B, r *benchEnv) {
		r.settled(b).stop() // the image of the sandboxes is present
		b.Run("program=client", func(b *testing.B) {
			for b.Loop() {
				p := newAgentProcess(b, r, 0, "-client")
				p.start(b)
				p.reportMemory(b, "none-", steady)
				p.stop(b)
			}
			b.ReportMetric(0, "ns/op")
		})
		for _, n := range counts {
			programs := []string{"agent", "kubelet"}
			if n == counts[0] {
				programs = []string{"agent", "pageout", "kubelet"}
			}
			for _, name := range programs {
				b.Run(fmt.Sprintf("pods=%d/program=%s", n, name), func(b *testing.B) {
					for b.Loop() {
						var p *nodeProcess
						switch name {
						case "agent":
							p = newAgentProcess(b, r, n)
						case "pageout":
							p = newAgentProcess(b, r, n, "-page-out")
						default:
							p = newKubelet(b, r, n)
						}
						if p == nil {
							b.Skipf("%s names no kubelet", envKubelet)
						}
						p.countCalls(b)
						p.start(b)
						p.measure(b, r.idlePods(n), steady)
						p.stop(b)
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	})
}

// idlePods are pods that use almost nothing, and no address.
func (r *benchEnv) idlePods(n int) []*corev1.Pod {
	pods := r.burstPods(n)
	for _, p := range pods {
		p.Spec.HostNetwork = true
		c := &p.Spec.Containers[0]
		c.Image, c.Command = r.node.Pause, nil
	}
	return pods
}

// reportMemory reports the memory of the program when it is idle.
func (p *nodeProcess) reportMemory(b *testing.B, prefix string, steady time.Duration) {
	time.Sleep(min(settleTime, steady)) // the work of the start is done
	resident, anonymous := p.memory(b)
	b.ReportMetric(resident, prefix+"MB")
	b.ReportMetric(anonymous, prefix+"anonymous-MB")
}

// measure runs pods once and reports what that costs.
func (p *nodeProcess) measure(b *testing.B, pods []*corev1.Pod, steady time.Duration) {
	p.reportMemory(b, "none-", steady)
	calls, cpu := p.calls(), p.cpu(b)
	times := burstTimes{started: p.up(b, pods)}
	time.Sleep(min(settleTime, steady)) // the work that follows the starts is done
	b.ReportMetric(float64(p.calls()-calls)/float64(len(pods)), "start-calls/pod")
	b.ReportMetric(ms(p.cpu(b)-cpu)/float64(len(pods)), "start-cpu-ms/pod")

	calls, cpu = p.calls(), p.cpu(b)
	began := time.Now()
	time.Sleep(steady)
	took := time.Since(began)
	b.ReportMetric(100*(p.cpu(b)-cpu).Seconds()/took.Seconds(), "steady-%core")
	b.ReportMetric(float64(p.calls()-calls)/took.Minutes(), "steady-calls/min")
	resident, anonymous := p.memory(b)
	b.ReportMetric(resident, "MB")
	b.ReportMetric(anonymous, "anonymous-MB")

	calls, cpu = p.calls(), p.cpu(b)
	times.stopped, times.deleted = p.down(b)
	b.ReportMetric(float64(p.calls()-calls)/float64(len(pods)), "stop-calls/pod")
	b.ReportMetric(ms(p.cpu(b)-cpu)/float64(len(pods)), "stop-cpu-ms/pod")
	times.report(b, "")
}
