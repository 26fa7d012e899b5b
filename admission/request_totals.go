package admission

import (
	"math"
	"math/big"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// requestTotals knows what the pods of a node request together. From one question to the
// next few of them change: it adds and takes away only those, so that a question
// costs a comparison of pointers for each pod.
type requestTotals struct {
	mu     sync.Mutex // guards all below; held by whoever asks
	others []*corev1.Pod
	taking map[types.UID][]*corev1.Pod // those of others that count; mostly one a UID
	pods   int                         // how many these are
	sums   map[corev1.ResourceName]*big.Int
}

// follow brings the ledger to these pods. l.mu is held.
func (l *requestTotals) follow(others []*corev1.Pod) {
	for i, pod := range others {
		if i == len(l.others) {
			l.others = append(l.others, nil)
		}
		if former := l.others[i]; former != pod {
			l.remove(former)
			l.add(pod)
			l.others[i] = pod
		}
	}
	for _, former := range l.others[len(others):] {
		l.remove(former)
	}
	clear(l.others[len(others):])
	l.others = l.others[:len(others)]
}

// add adds what a pod takes.
func (l *requestTotals) add(pod *corev1.Pod) {
	if over(pod) {
		return
	}
	if l.taking == nil {
		l.taking, l.sums = make(map[types.UID][]*corev1.Pod), make(map[corev1.ResourceName]*big.Int)
	}
	l.taking[pod.UID] = append(l.taking[pod.UID], pod)
	l.pods++
	for name, q := range podspec.Requests(pod) {
		if l.sums[name] == nil {
			l.sums[name] = new(big.Int)
		}
		l.sums[name].Add(l.sums[name], big.NewInt(amount(name, q)))
	}
}

// remove takes away what enter added. A pod that was never entered is none of its.
func (l *requestTotals) remove(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	same := l.taking[pod.UID]
	i := slices.Index(same, pod)
	if i < 0 {
		return
	}
	if len(same) == 1 {
		delete(l.taking, pod.UID)
	} else {
		l.taking[pod.UID] = slices.Delete(same, i, i+1)
	}
	l.pods--
	for name, q := range podspec.Requests(pod) {
		l.sums[name].Sub(l.sums[name], big.NewInt(amount(name, q)))
	}
}

// beside is how many pods count but for the pod itself. l.mu is held.
func (l *requestTotals) beside(pod *corev1.Pod) int { return l.pods - len(l.taking[pod.UID]) }

// used is what the others request of a resource. l.mu is held.
func (l *requestTotals) used(pod *corev1.Pod, name corev1.ResourceName) int64 {
	sum := new(big.Int)
	if s := l.sums[name]; s != nil {
		sum.Set(s)
	}
	for _, own := range l.taking[pod.UID] {
		sum.Sub(sum, big.NewInt(amount(name, podspec.Requests(own)[name])))
	}
	if !sum.IsInt64() {
		return math.MaxInt64
	}
	return sum.Int64()
}
