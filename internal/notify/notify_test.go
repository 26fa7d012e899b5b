package notify_test

import (
	"fmt"

	"github.com/sublet-dev/agent/internal/notify"
)

func ExampleSend() {
	ch := make(chan struct{}, 1)
	notify.Send(ch)
	notify.Send(ch) // merged with the first
	fmt.Println("pending:", len(ch))
	<-ch
	notify.Send(ch)
	fmt.Println("pending:", len(ch))
	// Output:
	// pending: 1
	// pending: 1
}
