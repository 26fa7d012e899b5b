package podsource_test

import (
	"context"
	"fmt"
	"testing/fstest"

	"github.com/sublet-dev/agent/podsource"
)

// A manifest directory of manifests, here one in memory, becomes changes.
func Example() {
	manifests := fstest.MapFS{
		"manifests/web.yaml": {Data: []byte(`
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: server, image: "registry.example/web:2"}
`)},
		"manifests/bad.yaml": {Data: []byte("kind: Pod")},
	}
	mux, err := podsource.New(podsource.Config{
		NodeName: "edge-1",
		Sources: []podsource.NamedSource{
			{Name: "file", Source: podsource.File("manifests", podsource.FileFS(manifests))},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mux.Run(ctx) }()

	change := <-mux.Changes()
	fmt.Println(change.Op, change.Source, change.Pods[0].Name, change.Pods[0].Spec.RestartPolicy)
	for _, fault := range mux.Errors() {
		fmt.Println(fault)
	}
	cancel()
	fmt.Println(<-done)
	// Output:
	// ADD file web-edge-1 Always
	// manifests/bad.yaml: document 1 (line 1, Pod): apiVersion: required
	// <nil>
}
