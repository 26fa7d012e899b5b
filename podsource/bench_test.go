package podsource

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func many(n int) Set {
	var s Set
	for i := range n {
		p := &corev1.Pod{}
		p.Name, p.Namespace, p.UID = fmt.Sprint("p", i), "default", types.UID(fmt.Sprint("uid-", i))
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		s.Pods = append(s.Pods, Manifest{Pod: p})
	}
	return s
}

// A set of 10,000 pods of which one changed, from the source to the reader.
func BenchmarkOneOfTenThousand(b *testing.B) {
	for _, copied := range []bool{false, true} {
		b.Run(map[bool]string{false: "same pointers", true: "new pointers"}[copied], func(b *testing.B) {
			b.ReportAllocs()
			m, err := New(Config{NodeName: "n", Sources: []NamedSource{{Name: "a", Source: NewMemory()}}})
			if err != nil {
				b.Fatal(err)
			}
			ctx := context.Background()
			s := many(10_000)
			m.receive(ctx, 0, s)
			drain(m)
			for n := 0; b.Loop(); n++ {
				next := Set{Pods: append([]Manifest(nil), s.Pods...)}
				if copied {
					b.StopTimer()
					for i := range next.Pods {
						next.Pods[i].Pod = next.Pods[i].Pod.DeepCopy()
					}
					b.StartTimer()
				}
				changed := next.Pods[5000].Pod.DeepCopy()
				changed.Spec.Containers[0].Image = fmt.Sprint("i", n)
				next.Pods[5000].Pod = changed
				m.receive(ctx, 0, next)
				s = next
				if got := drain(m); got != 1 {
					b.Fatalf("%d changes", got)
				}
			}
		})
	}
}

// drain takes what Run would have delivered.
func drain(m *Mux) (n int) {
	for {
		s, ok := m.delivered.next(&m.merged)
		if !ok {
			return n
		}
		m.delivered.add(s)
		n++
	}
}

// A rescan of 1,000 files that did not change.
func BenchmarkScan(b *testing.B) {
	for _, everything := range []bool{false, true} {
		b.Run(map[bool]string{false: "after a notify", true: "rescan"}[everything], func(b *testing.B) {
			b.ReportAllocs()
			dir := b.TempDir()
			old := time.Now().Add(-time.Minute)
			for i := range 1000 {
				writeOld(b, fmt.Sprintf("%s/%d.yaml", dir, i), fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%d}\nspec: {containers: [{name: c, image: i}]}\n", i), old)
			}
			f, ok := File(dir).(*file)
			if !ok {
				b.Fatal("no file")
			}
			s := newScan(f)
			s.run(true, time.Now())
			for b.Loop() {
				if changed, _ := s.run(everything, time.Now()); changed {
					b.Fatal("changed")
				}
			}
		})
	}
}

func writeOld(b *testing.B, path, data string, at time.Time) {
	b.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		b.Fatal(err)
	}
}
