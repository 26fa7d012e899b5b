package imagegc_test

import (
	"fmt"
	"time"

	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/runtime"
)

// Plan tells what would go and what stays, and why.
func ExamplePlan() {
	now := time.Now()
	images := []runtime.Image{{ID: "web", Bytes: 300}, {ID: "db", Bytes: 200}, {ID: "tool", Bytes: 100}}
	day := 24 * time.Hour
	state := imagegc.PlanInput{
		Records: map[string]imagegc.ImageRecord{
			"web":  {FirstDetected: now.Add(-9 * day), LastUsed: now},
			"db":   {FirstDetected: now.Add(-9 * day), LastUsed: now.Add(-2 * day)},
			"tool": {FirstDetected: now.Add(-9 * day), LastUsed: now.Add(-5 * day)},
		},
		KeepReason: func(image runtime.Image) imagegc.Reason {
			if image.ID == "web" {
				return imagegc.ReasonInUse
			}
			return ""
		},
		BytesToFree: 100,
	}
	for _, c := range imagegc.Plan(images, state, imagegc.Policy{}, now) {
		fmt.Println(c.Image.ID, c.Remove, c.Reason)
	}
	// Output:
	// tool true the disk is full and it is the least recently used
	// db false there is room enough
	// web false a container was made from it
}
