package podsource_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podsource"
)

// SR-7: the first of a full name stays over a restart, when both are there from the beginning.
func TestMux_DuplicateNameAfterARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, k := manifestDir(map[string]string{"m.yaml": manifest("x", "1")}), newFakeNotifier()
		r := start(t, podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(newFakeNotifier())))
		assert.Equal(t, []string{"ADD a x-n1=1"}, r.delivered())
		before := r.mux.Pods()

		dir.write("a.yaml", manifest("x", "2"))
		mux, err := podsource.New(podsource.Config{NodeName: "n1", Sources: []podsource.NamedSource{
			{Name: "a", Source: podsource.File("m", podsource.FileFS(dir), podsource.FileNotifier(k))},
		}})
		require.NoError(t, err)
		mux.Restore(before...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- mux.Run(ctx) }()
		change := <-mux.Changes()
		require.Len(t, change.Pods, 1)
		require.Equal(t, before[0].UID, change.Pods[0].UID)
		require.Len(t, mux.Errors(), 1)
		assert.Contains(t, mux.Errors()[0].Error(), "m/a.yaml: pod default/x-n1 rejected")

		dir.write("m.yaml", manifest("x", "3"))
		k.notify()
		for change := range mux.Changes() {
			if change.Op == podsource.Add {
				assert.Equal(t, "3", change.Pods[0].Spec.Containers[0].Image, "it keeps its name through an edit")
				break
			}
		}
		cancel()
		require.NoError(t, <-done)
	})
}
