package admission

import (
	"cmp"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
)

// Victims returns which of the others have to be preempted so that the pod gets the
// resources it requests. The result is empty if the pod has them already. ok is false if
// even all pods that may be preempted do not have enough.
//
// A pod may be preempted if podspec.Preempts says so and mayPreempt returns true for it.
// Guaranteed pods are spared before burstable ones, and these before pods of best effort;
// within a class few pods are chosen: those that have most of what is missing, and of
// equal ones that with the lower priority, then with the smaller requests. These are the
// kubelet's rules, except that it does not compare priorities there, and that a chosen pod
// is spared if the others have enough without it.
//
// Other reasons to reject the pod are not checked: Admit does, without the victims.
func (a *Admitter) Victims(pod *corev1.Pod, others []*corev1.Pod, mayPreempt func(*corev1.Pod) bool) (victims []*corev1.Pod, ok bool) {
	missing := missingOf(a.checkResources(pod, others))
	if len(missing) == 0 {
		return nil, true
	}
	classes := map[corev1.PodQOSClass][]*corev1.Pod{}
	for _, other := range others {
		if counts(other, pod) && podspec.Preempts(pod, other) && mayPreempt(other) {
			class := podspec.QOS(other)
			classes[class] = append(classes[class], other)
		}
	}
	// Each class gives what all pods of the classes after it do not have.
	order := []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
	for i, class := range order {
		var later []*corev1.Pod
		for _, c := range order[i+1:] {
			later = append(later, classes[c]...)
		}
		chosen, enough := missing.without(later).without(victims).choose(classes[class])
		if !enough {
			return nil, false
		}
		victims = append(victims, chosen...)
	}
	return missing.minimal(victims), true
}

// missing is how much of each resource a pod lacks, in the units of amount.
type missing map[corev1.ResourceName]int64

func missingOf(v podspec.AdmitResult) missing {
	m := make(missing, len(v.Insufficient))
	for _, r := range v.Insufficient {
		lacking := amount(r.Name, r.Requested) - amount(r.Name, r.Capacity)
		m[r.Name] = lacking + min(amount(r.Name, r.Used), math.MaxInt64-max(lacking, 0))
	}
	return m
}

// freed returns how much of a resource the end of a pod frees.
func freed(pod *corev1.Pod, name corev1.ResourceName) int64 {
	if name == corev1.ResourcePods {
		return 1
	}
	return amount(name, podspec.Requests(pod)[name])
}

// without returns what is still missing without these pods.
func (m missing) without(pods []*corev1.Pod) missing {
	rest := missing{}
	for name, n := range m {
		for _, pod := range pods {
			n -= min(freed(pod, name), n)
		}
		if n > 0 {
			rest[name] = n
		}
	}
	return rest
}

// choose returns pods that together have what is missing: again and again the one that
// leaves the least.
func (m missing) choose(pods []*corev1.Pod) (chosen []*corev1.Pod, enough bool) {
	pods = slices.Clone(pods)
	for len(m) > 0 {
		if len(pods) == 0 {
			return nil, false
		}
		best := slices.MinFunc(pods, m.compare)
		pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return pod == best })
		chosen, m = append(chosen, best), m.without([]*corev1.Pod{best})
	}
	return chosen, true
}

// compare orders candidates: the best one first.
func (m missing) compare(a, b *corev1.Pod) int {
	return cmp.Or(
		cmp.Compare(m.distance(a), m.distance(b)),
		cmp.Compare(podspec.Priority(a), podspec.Priority(b)),
		cmp.Compare(freed(a, corev1.ResourceMemory), freed(b, corev1.ResourceMemory)),
		cmp.Compare(freed(a, corev1.ResourceCPU), freed(b, corev1.ResourceCPU)),
		cmp.Compare(a.UID, b.UID), // the same choice whatever the order of the pods
	)
}

// distance is how much a pod leaves missing: for each resource the square of the share,
// so that all resources weigh the same.
func (m missing) distance(pod *corev1.Pod) float64 {
	var sum float64
	for _, name := range slices.Sorted(maps.Keys(m)) { // the order matters for the last bits of the sum
		n := m[name]
		if rest := n - freed(pod, name); rest > 0 {
			share := float64(rest) / float64(n)
			sum += share * share
		}
	}
	return sum
}

// minimal drops the victims whose resources are not needed, the costliest first: the
// first ones are of the highest class.
func (m missing) minimal(victims []*corev1.Pod) []*corev1.Pod {
	for i := 0; i < len(victims); {
		if without := slices.Delete(slices.Clone(victims), i, i+1); len(m.without(without)) == 0 {
			victims = without
		} else {
			i++
		}
	}
	return victims
}
