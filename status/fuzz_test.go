package status_test

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/status"
)

// Whatever is in a file, loading it gives a pod that can be written to that
// same file, or an error; and a status can be made from its contents.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"kind":"Pod","metadata":{"name":"p","namespace":"ns","uid":"uid-1"},"status":{"phase":"Running","containerStatuses":[{"name":"c","state":{"running":{}}}]}}`))
	f.Add([]byte(`{"metadata":{"name":"p","namespace":"ns","uid":"uid-1"},"status":{"conditions":[{"type":"Ready"}],"initContainerStatuses":[{}]}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		name := filepath.Join(dir, "ns_p_uid-1.json")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := status.NewFileSink(dir)
		if err != nil {
			t.Fatal(err)
		}
		pods, err := s.Load()
		if (err == nil) != (len(pods) == 1) {
			t.Fatalf("%d pods and %v", len(pods), err)
		}
		for _, p := range pods {
			mine := pod("init:i", "main:c")
			st := status.Generate(mine, runtime.Report{Observed: view(running("c", 0))}, p.Status, status.NodeInfo{}, testTime)
			if terminal := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded; terminal && st.Phase != p.Status.Phase {
				t.Fatalf("%s became %s", p.Status.Phase, st.Phase)
			}
			if err := s.SetStatus(t.Context(), p, st); err != nil {
				t.Fatal(err)
			}
		}
		if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 1 {
			t.Fatalf("files: %v", files)
		}
	})
}
