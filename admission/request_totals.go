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

// requestTotals contains the sums of the requests of all pods on the node. Few pods
// change between two calls, and only those are added or removed, so that a call
// costs one comparison of pointers for each other pod.
type requestTotals struct {
	mu     sync.Mutex // guards the fields below; locked by the caller
	others []*corev1.Pod
	active map[types.UID][]*corev1.Pod // others that are not terminal; usually one per UID
	pods   int                         // number of active pods
	sums   map[corev1.ResourceName]*big.Int
}

// update adds and removes pods until the totals are those of others.
// held: t.mu
func (t *requestTotals) update(others []*corev1.Pod) {
	for i, pod := range others {
		if i == len(t.others) {
			t.others = append(t.others, nil)
		}
		if previous := t.others[i]; previous != pod {
			t.remove(previous)
			t.add(pod)
			t.others[i] = pod
		}
	}
	for _, previous := range t.others[len(others):] {
		t.remove(previous)
	}
	clear(t.others[len(others):])
	t.others = t.others[:len(others)]
}

// add adds the requests of a pod unless it is terminal.
func (t *requestTotals) add(pod *corev1.Pod) {
	if podspec.IsTerminalPhase(pod.Status.Phase) {
		return
	}
	if t.active == nil {
		t.active, t.sums = make(map[types.UID][]*corev1.Pod), make(map[corev1.ResourceName]*big.Int)
	}
	t.active[pod.UID] = append(t.active[pod.UID], pod)
	t.pods++
	for name, q := range podspec.Requests(pod) {
		if t.sums[name] == nil {
			t.sums[name] = new(big.Int)
		}
		t.sums[name].Add(t.sums[name], big.NewInt(amount(name, q)))
	}
}

// remove subtracts the requests of a pod that add has added.
func (t *requestTotals) remove(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	same := t.active[pod.UID]
	i := slices.Index(same, pod)
	if i < 0 {
		return
	}
	if len(same) == 1 {
		delete(t.active, pod.UID)
	} else {
		t.active[pod.UID] = slices.Delete(same, i, i+1)
	}
	t.pods--
	for name, q := range podspec.Requests(pod) {
		t.sums[name].Sub(t.sums[name], big.NewInt(amount(name, q)))
	}
}

// count returns the number of active pods other than the pod.
// held: t.mu
func (t *requestTotals) count(pod *corev1.Pod) int { return t.pods - len(t.active[pod.UID]) }

// used returns the sum of the requests of active pods other than the pod.
// held: t.mu
func (t *requestTotals) used(pod *corev1.Pod, name corev1.ResourceName) int64 {
	sum := new(big.Int)
	if s := t.sums[name]; s != nil {
		sum.Set(s)
	}
	for _, own := range t.active[pod.UID] {
		sum.Sub(sum, big.NewInt(amount(name, podspec.Requests(own)[name])))
	}
	if !sum.IsInt64() {
		return math.MaxInt64
	}
	return sum.Int64()
}
