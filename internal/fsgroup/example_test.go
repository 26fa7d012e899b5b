package fsgroup_test

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/fsgroup"
)

func ExampleApply() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	fmt.Println(fsgroup.Apply(context.Background(), dir, int64(os.Getegid()), corev1.FSGroupChangeAlways, nil))
	// Output: <nil>
}
