package stats_test

import (
	"context"
	"fmt"
	"testing/fstest"
	"time"

	"github.com/sublet-dev/agent/stats"
)

// A provider that reads prepared files: of a machine with 1000 KiB of memory.
func Example() {
	proc := fstest.MapFS{
		"meminfo": {Data: []byte("MemTotal: 1000 kB\nMemFree: 400 kB\nInactive(file): 100 kB\n")},
	}
	node, err := stats.New(stats.Config{Proc: proc, Cgroups: fstest.MapFS{}})
	if err != nil {
		fmt.Println(err)
		return
	}
	usage, err := node.Usage(context.Background(), time.Time{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(usage.Memory.WorkingSet>>10, "KiB are in use,", usage.Memory.Available()>>10, "KiB are left")
	// Output: 500 KiB are in use, 500 KiB are left
}
