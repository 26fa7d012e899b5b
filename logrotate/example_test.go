package logrotate_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/runtime"
)

// oneContainer is a runtime with one container, whose log is full.
type oneContainer struct{ log string }

func (c oneContainer) Pods(context.Context) ([]runtime.Pod, error) {
	return []runtime.Pod{{
		Namespace: "default", Name: "web", UID: "u1",
		Containers: []runtime.Container{{ID: "c1", Name: "app", State: runtime.Running}},
	}}, nil
}

func (c oneContainer) ReopenLog(context.Context, string) error {
	return os.WriteFile(c.log, nil, 0o644)
}

// A log that has reached its maximum size is renamed, and the runtime opens a new one.
func ExampleRotator() {
	dir, err := os.MkdirTemp("", "logs")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	rt := oneContainer{log: filepath.Join(dir, "default_web_u1", "app", "0.log")}
	if err := os.MkdirAll(filepath.Dir(rt.log), 0o755); err != nil {
		fmt.Println(err)
		return
	}
	if err := os.WriteFile(rt.log, []byte(strings.Repeat("line\n", 1000)), 0o644); err != nil {
		fmt.Println(err)
		return
	}

	ctx, stop := context.WithCancel(context.Background())
	r, err := logrotate.New(logrotate.Config{Runtime: rt, LogsDir: dir, MaxSize: 4096, Hooks: logrotate.Hooks{
		Rotated: func(id string, bytes int64, _ time.Duration, err error) {
			fmt.Println(id, bytes, err)
			stop()
		},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Run(ctx))
	// Output:
	// c1 5000 <nil>
	// <nil>
}
