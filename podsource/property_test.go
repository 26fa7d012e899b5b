package podsource_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/podsource"
)

// referenceMux is a slow and plain reading of what a mux must want.
type referenceMux struct {
	sources [3][]naivePod
	owner   map[string]naivePod // by name; image left out
}

type naivePod struct {
	source              int
	origin, name, image string
}

func (p naivePod) place() naivePod { p.image = ""; return p }

// deliver gives a source its new pods. An image of "" makes a pod invalid.
func (n *referenceMux) deliver(source int, pods []naivePod) {
	bad := map[string]bool{}
	var valid []naivePod
	for _, p := range pods {
		if p.image == "" {
			if p.origin == "" {
				bad["/"+p.name] = true
			} else {
				bad[p.origin] = true
			}
		} else {
			valid = append(valid, p)
		}
	}
	for _, was := range n.sources[source] {
		key := was.origin
		if key == "" {
			key = "/" + was.name
		}
		there := slices.ContainsFunc(valid, func(p naivePod) bool { return p.place() == was.place() })
		if bad[key] && !there {
			valid = append(valid, was)
		}
	}
	n.sources[source] = valid

	owner := map[string]naivePod{}
	for _, pods := range n.sources {
		for _, p := range pods {
			if first, ok := owner[p.name]; !ok || n.owner[p.name] == p.place() && first != p.place() {
				owner[p.name] = p.place()
			}
		}
	}
	n.owner = owner
}

func (n *referenceMux) want() []string {
	var out []string
	for _, pods := range n.sources {
		for _, p := range pods {
			if n.owner[p.name] == p.place() {
				out = append(out, fmt.Sprintf("%c %s=%s", 'a'+p.source, p.name, p.image))
			}
		}
	}
	slices.Sort(out)
	return out
}

// reader applies changes to its own state and fails on impossible ones.
type reader struct {
	t    *testing.T
	pods map[types.UID]*corev1.Pod
	from map[types.UID]string
}

func (r *reader) take(c podsource.Change) {
	require.NotEmpty(r.t, c.Pods)
	for _, p := range c.Pods {
		was, known := r.pods[p.UID]
		require.Equal(r.t, c.Op != podsource.Add, known, "%s of %s", c.Op, p.Name)
		switch c.Op {
		case podsource.Remove:
			delete(r.pods, p.UID)
			continue
		case podsource.Reconcile:
			require.NotEqual(r.t, was.Status, p.Status)
		case podsource.Add:
			for _, other := range r.pods {
				require.NotEqual(r.t, other.Name, p.Name, "two pods of one full name")
			}
		}
		r.pods[p.UID], r.from[p.UID] = p, c.Source
	}
}

func (r *reader) has() []string {
	var out []string
	for uid, p := range r.pods {
		name, image := p.Name, p.Spec.Containers[0].Image
		out = append(out, fmt.Sprintf("%s %s=%s", r.from[uid], name, image))
	}
	slices.Sort(out)
	return out
}

// SR-7, SR-4 over random histories of three sources: two of manifests, one of
// pods with a UID of their own. The reader is slow at random.
func TestMux_MatchesReference(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { randomHistory(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func randomHistory(t *testing.T, random *rand.Rand) {
	var hands [3]func(podsource.Set)
	var named []podsource.NamedSource
	for i := range hands {
		named = append(named, podsource.NamedSource{Name: string(rune('a' + i)), Source: sourceFunc(
			func(ctx context.Context, deliver func(podsource.Set)) error {
				hands[i] = deliver
				<-ctx.Done()
				return nil
			})})
	}
	mux, err := podsource.New(podsource.Config{NodeName: "n", Sources: named})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); synctest.Wait() }()
	go mux.Run(ctx)
	synctest.Wait()

	model := &referenceMux{owner: map[string]naivePod{}}
	r := &reader{t: t, pods: map[types.UID]*corev1.Pod{}, from: map[types.UID]string{}}
	for range 60 {
		source := random.IntN(3)
		pods := randomPods(random, source)
		model.deliver(source, pods)
		hands[source](setOf(pods))
		synctest.Wait()
		require.Len(t, mux.Pods(), len(model.want()))
		for range random.IntN(3) {
			r.maybe(mux)
		}
		if random.IntN(4) == 0 {
			for r.maybe(mux) {
			}
			require.Equal(t, model.want(), r.has())
		}
	}
	for r.maybe(mux) {
	}
	require.Equal(t, model.want(), r.has())
	require.ElementsMatch(t, slices.Collect(maps.Values(r.pods)), mux.Pods())
}

// maybe takes a change if there is one.
func (r *reader) maybe(mux *podsource.Mux) bool {
	synctest.Wait()
	select {
	case c := <-mux.Changes():
		r.take(c)
		return true
	default:
		return false
	}
}

func randomPods(random *rand.Rand, source int) []naivePod {
	var pods []naivePod
	for _, name := range []string{"p", "q", "r", "s"} {
		for _, origin := range []string{"f", "g"} {
			if random.IntN(2) == 0 {
				continue
			}
			p := naivePod{source: source, origin: origin, name: name, image: []string{"1", "2", "3", ""}[random.IntN(4)]}
			if source == 2 {
				p.origin, p.name = "", name+"-n" // where the names of manifests end up
				pods = append(pods, p)
				break
			}
			pods = append(pods, p)
		}
	}
	for i := range pods {
		if source != 2 {
			pods[i].name += "-n"
		}
	}
	slices.SortStableFunc(pods, func(a, b naivePod) int { return cmp.Compare(a.origin, b.origin) })
	return pods
}

func setOf(pods []naivePod) podsource.Set {
	var s podsource.Set
	for _, p := range pods {
		name := p.name
		if p.origin != "" {
			name = name[:len(name)-len("-n")]
		}
		made := pod(name, p.image)
		made.UID = types.UID(fmt.Sprintf("uid-%d-%s", p.source, name))
		s.Pods = append(s.Pods, podsource.Manifest{Pod: made, Origin: p.origin})
	}
	return s
}
