package podlogs_test

import (
	"context"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podlogs"
)

func ExampleReader_Copy() {
	dir, err := os.MkdirTemp("", "logs")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	// A runtime writes:
	log := filepath.Join(dir, "default_web_u1", "app", "0.log")
	_ = os.MkdirAll(filepath.Dir(log), 0o700)
	_ = os.WriteFile(log, []byte("2026-05-01T12:00:00Z stdout F listening\n2026-05-01T12:00:01Z stdout F GET /\n"), 0o600)

	r, err := podlogs.New(podlogs.Config{LogsDir: dir})
	if err != nil {
		panic(err)
	}
	lines := int64(1)
	if err := r.Copy(context.Background(), os.Stdout, os.Stderr, podlogs.Log{Path: "default_web_u1/app/0.log"}, &corev1.PodLogOptions{TailLines: &lines}); err != nil {
		panic(err)
	}
	// Output: GET /
}
