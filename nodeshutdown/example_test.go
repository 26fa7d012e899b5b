package nodeshutdown_test

import (
	"fmt"
	"time"

	"github.com/sublet-dev/agent/nodeshutdown"
)

func ExampleGracePeriods() {
	for _, g := range nodeshutdown.GracePeriods(30*time.Second, 10*time.Second) {
		fmt.Printf("pods from priority %d: %v\n", g.Priority, g.Period)
	}
	// Output:
	// pods from priority 0: 20s
	// pods from priority 2000000000: 10s
}
