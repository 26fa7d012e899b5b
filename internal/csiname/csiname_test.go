package csiname_test

import (
	"fmt"

	"github.com/sublet-dev/agent/internal/csiname"
)

func Example() {
	fmt.Println(csiname.Attachment("d", "h", "n"))
	fmt.Println(csiname.Unique("d", "h"))
	// Output:
	// csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d
	// kubernetes.io/csi/d^h
}
