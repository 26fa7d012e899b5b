package containergc_test

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/runtime"
)

// Of a pod that crashed three times the last dead container stays: status tells
// of it.
func ExamplePlan() {
	pod := runtime.Pod{UID: "u1", Containers: []runtime.Container{
		{ID: "c", Name: "app", Attempt: 2, State: runtime.Exited},
		{ID: "b", Name: "app", Attempt: 1, State: runtime.Exited},
		{ID: "a", Name: "app", Attempt: 0, State: runtime.Exited},
	}}
	desired := func(types.UID) containergc.PodState { return containergc.PodDesired }
	for _, r := range containergc.Plan([]runtime.Pod{pod}, desired, containergc.Policy{}, false, time.Now()) {
		fmt.Println("remove", r.Container.ID)
	}
	// Output:
	// remove a
	// remove b
}
