package podsource

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podspec"
)

// union is what all sources want together: one pod a full name and a UID. It is
// read-only once made.
type union struct {
	pods    []*placed // in the order of sources and of what they hand over
	byUID   map[types.UID]*placed
	byFull  map[string]*placed
	objects map[podspec.Ref]podspec.Object
	owner   map[string]claim // of full names
	faults  []refusal
}

// placed is a pod and the source that wants it.
type placed struct {
	*entry
	source string
}

// claim is what a full name belongs to. It outlives edits of the pod, whose UID
// changes with them.
type claim struct {
	source, origin string
	nth            int // of the pods of that name in the origin
}

// refusal is a fault of a pod or object that has to stand back for another.
type refusal struct {
	source string
	pod    *corev1.Pod // the refused one
	Fault
}

// unite puts together what sources want. Who had a full name before keeps it for
// as long as it claims it; then it goes to the first that does.
func unite(sources []*desired, before map[string]claim) union {
	n := 0
	for _, d := range sources {
		n += len(d.entries)
	}
	u := union{
		pods: make([]*placed, 0, n), byUID: make(map[types.UID]*placed, n), byFull: make(map[string]*placed, n),
		objects: map[podspec.Ref]podspec.Object{}, owner: make(map[string]claim, n),
	}
	contested := u.assign(sources, before)
	u.place(sources, contested)
	u.gather(sources)
	return u
}

// assign decides who owns each full name, and returns those that several claim.
func (u *union) assign(sources []*desired, before map[string]claim) map[string]bool {
	contested := map[string]bool{}
	for _, d := range sources {
		for _, e := range d.entries {
			if _, taken := u.owner[e.full]; taken {
				contested[e.full] = true
			} else {
				u.owner[e.full] = claim{source: d.source, origin: e.origin}
			}
		}
	}
	if len(contested) == 0 {
		return contested
	}
	for _, d := range sources {
		nth := counter{}
		for _, e := range d.entries {
			if !contested[e.full] {
				continue
			}
			if c := nth.claim(d, e); before[e.full] == c {
				u.owner[e.full] = c
			}
		}
	}
	return contested
}

// counter numbers the pods of one full name in one origin.
type counter map[[2]string]int

func (c counter) claim(d *desired, e *entry) claim {
	key := [2]string{e.origin, e.full}
	n := c[key]
	c[key] = n + 1
	return claim{source: d.source, origin: e.origin, nth: n}
}

func (u *union) place(sources []*desired, contested map[string]bool) {
	var refused []*placed
	for _, d := range sources {
		nth := counter{}
		for _, e := range d.entries {
			p := &placed{entry: e, source: d.source}
			if contested[e.full] && u.owner[e.full] != nth.claim(d, e) || u.byUID[e.pod.UID] != nil {
				refused = append(refused, p)
				continue
			}
			u.pods = append(u.pods, p)
			u.byUID[e.pod.UID], u.byFull[e.full] = p, p
		}
	}
	for _, p := range refused {
		u.refuse(p)
	}
}

func (u *union) refuse(p *placed) {
	same, first := "full name "+p.full, u.byFull[p.full]
	if first == nil {
		same, first = "UID "+string(p.pod.UID), u.byUID[p.pod.UID]
	}
	u.faults = append(u.faults, refusal{source: p.source, pod: p.pod, Fault: Fault{
		Where: p.where(), At: time.Time{},
		Err: fmt.Errorf("pod %s/%s is refused: pod %s/%s of %s has the %s already and stays; rename or remove one",
			p.pod.Namespace, p.pod.Name, first.pod.Namespace, first.pod.Name, first.where(), same),
	}})
}

func (p *placed) where() string {
	if p.origin != "" {
		return p.origin
	}
	return "source " + p.source
}

func (u *union) gather(sources []*desired) {
	from := map[podspec.Ref]string{}
	for _, d := range sources {
		for _, o := range d.objects {
			first, taken := from[o.Ref]
			if !taken {
				u.objects[o.Ref], from[o.Ref] = o, d.source
				continue
			}
			u.faults = append(u.faults, refusal{source: d.source, Fault: Fault{
				Where: "source " + d.source,
				Err: fmt.Errorf("%s %s/%s is of source %s already, which stays; rename or remove one",
					o.Kind, o.Namespace, o.Name, first),
			}})
		}
	}
}
