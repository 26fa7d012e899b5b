package main

import "strconv"

// goal is one figure of the table.
type goal struct {
	work      string
	figure    string
	benchmark string // pattern
	unit      string // of the benchmark
	shown     string // after values
	limit     limit
	target    float64
}

// limit says on which side of the target a value must be.
type limit int

const (
	noLimit limit = iota
	atLeast
	atMost
)

// isMet compares a value as it is shown.
func (l limit) isMet(value, target float64) bool {
	value, _ = strconv.ParseFloat(short(value), 64) // written by short
	switch l {
	case atLeast:
		return value >= target
	case atMost:
		return value <= target
	default:
		return true
	}
}

// goals are the rows of the table. The names of benchmarks and units are those that the benchmarks report: the tests of package bench
// run the cheap ones and compare.
func goals() []goal {
	const (
		burst   = `Burst/containerd-[\d.]+/pods=\d+/busy=\d`
		rich    = `RichPod/containerd-[\d.]+`
		many    = `ManyPods/pods=10000`
		beside  = `BesideKubelet/containerd-[\d.]+/`
		agent   = beside + `pods=250/program=agent`
		kubelet = beside + `pods=250/program=kubelet`
		bursts  = "30 and 100 pods at once, quiet and with a busy core"
		richPod = "pod of 3 containers, 2 init containers, a sidecar, volumes, probes"
		tenK    = "10,000 simulated pods"
		real250 = "250 hostNetwork pods, agent"
		kube250 = "250 hostNetwork pods, kubelet"
		restart = "agent restart with 1,000 running pods"
		latency = "container exit until the status is sent, 500 pods, 20 exits/s"
		churn   = "1,000 simulated pods, 50 replaced per second"
	)
	return []goal{
		{bursts, "throughput / best raw calls", burst, "throughput/raw", "", atLeast, 0.95},
		{bursts, "throughput / raw calls of several at a time", burst, parallelThroughput, "", noLimit, 0},
		{bursts, "first pod / a single raw pod", burst, "first/single", "", atMost, 1.3},
		{bursts, "first raw pod at the best concurrency / a single raw pod", burst, "raw-first/single", "", noLimit, 0},
		{bursts, "median pod / last pod", burst, "median/last", "", atMost, 0.55},
		{bursts, "deletion / best raw calls", burst, "deletion/raw", "", atLeast, 0.95},
		{bursts, "deletion / raw calls of several at a time", burst, parallelDeletion, "", noLimit, 0},
		{bursts, "throughput / raw calls one at a time", burst, "throughput/raw1", "", noLimit, 0},
		{bursts, "throughput / 4 raw calls at a time", burst, "throughput/raw4", "", noLimit, 0},
		{bursts, "throughput / 8 raw calls at a time", burst, "throughput/raw8", "", noLimit, 0},
		{bursts, "throughput / 30 raw calls at a time", burst, "throughput/raw30", "", noLimit, 0},
		{bursts, "last pod, agent", burst, "last-ms", " ms", noLimit, 0},
		{bursts, "last pod, kubelet", burst, "kubelet-last-ms", " ms", noLimit, 0},
		{richPod, "start / its raw calls", rich, "agent/raw", "", atMost, 1.1},
		{richPod, "deletion / its raw calls", rich, "agent-down/raw", "", noLimit, 0},
		{tenK, "all started, per pod", many, "up-ms/pod", " ms", noLimit, 0},
		{tenK, "the same with 1,000 pods", `ManyPods/pods=1000`, "up-ms/pod", " ms", noLimit, 0},
		{tenK, "one change", many, "change-ms", " ms", noLimit, 0},
		{tenK, "all deleted, per pod", many, "down-ms/pod", " ms", noLimit, 0},
		{tenK, "memory per idle pod", many, "KiB/pod", " KiB", atMost, 10},
		{tenK, "CPU while idle, of a core", `Idle/pods=10000/events=true`, "%core", " %", atMost, 0.3},
		{"1,000 simulated pods", "CPU while idle, of a core", `Idle/pods=1000/events=true`, "%core", " %", atMost, 0.3},
		{churn, "growth of memory", `Churn/.*`, "grown-KiB", " KiB", atMost, 1024},
		{churn, "growth of goroutines", `Churn/.*`, "grown-goroutines", "", atMost, 5},
		{churn, "CPU, of a core", `Churn/.*`, "%core", " %", noLimit, 0},
		{real250, "last pod started", agent, "last-ms", " ms", noLimit, 0},
		{kube250, "last pod started", kubelet, "last-ms", " ms", noLimit, 0},
		{real250, "CPU per start", agent, "start-cpu-ms/pod", " ms", noLimit, 0},
		{kube250, "CPU per start", kubelet, "start-cpu-ms/pod", " ms", noLimit, 0},
		{real250, "CRI calls per start", agent, "start-calls/pod", "", noLimit, 0},
		{kube250, "CRI calls per start", kubelet, "start-calls/pod", "", noLimit, 0},
		{real250, "CPU while idle, of a core", agent, "steady-%core", " %", noLimit, 0},
		{kube250, "CPU while idle, of a core", kubelet, "steady-%core", " %", noLimit, 0},
		{real250, "CRI calls per minute while idle", agent, "steady-calls/min", "", noLimit, 0},
		{kube250, "CRI calls per minute while idle", kubelet, "steady-calls/min", "", noLimit, 0},
		{real250, "resident memory", agent, "MB", " MB", noLimit, 0},
		{kube250, "resident memory", kubelet, "MB", " MB", noLimit, 0},
		{real250, "all containers stopped", agent, "stopped-ms", " ms", noLimit, 0},
		{kube250, "all containers stopped", kubelet, "stopped-ms", " ms", noLimit, 0},
		{real250, "all sandboxes removed", agent, "deleted-ms", " ms", noLimit, 0},
		{kube250, "all sandboxes removed", kubelet, "deleted-ms", " ms", noLimit, 0},
		{restart, "all adopted and reported", `Restart/pods=1000`, "reported-s", " s", atMost, 1},
		{restart, "CRI calls per pod", `Restart/pods=1000`, "calls/pod", "", atMost, 2},
		{latency, "99th percentile", `StatusLatency/.*=20`, "exit-p99-ms", " ms", atMost, 10},
		{"resident memory", "no pods", beside + `pods=30/program=agent`, "none-MB", " MB", atMost, 20},
		{"resident memory", "30 pods", beside + `pods=30/program=agent`, "MB", " MB", atMost, 30},
		{"resident memory", "no pods, paged out", beside + `pods=30/program=pageout`, "none-MB", " MB", atMost, 20},
		{"resident memory", "30 pods, started after that", beside + `pods=30/program=pageout`, "MB", " MB", atMost, 30},
		{"resident memory", "of that not mapped from the program's file, no pods", beside + `pods=30/program=agent`, "none-anonymous-MB", " MB", noLimit, 0},
		{"resident memory", "of that not mapped from the program's file, 30 pods", beside + `pods=30/program=agent`, "anonymous-MB", " MB", noLimit, 0},
		{"resident memory", "an empty client of the runtime", beside + `program=client`, "none-MB", " MB", noLimit, 0},
		{"resident memory", "kubelet, no pods", beside + `pods=30/program=kubelet`, "none-MB", " MB", noLimit, 0},
		{"resident memory", "kubelet, 30 pods", beside + `pods=30/program=kubelet`, "MB", " MB", noLimit, 0},
	}
}
