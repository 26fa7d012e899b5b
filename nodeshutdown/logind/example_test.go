package logind_test

import (
	"context"
	"fmt"
	"time"

	"github.com/sublet-dev/agent/nodeshutdown/logind"
)

// A shutdown of this machine waits until the lock is closed, for half a minute at most. It needs
// systemd. A Manager does it by itself: Dial is the value of nodeshutdown.Config.Dial.
func ExampleDial() {
	ctx := context.Background()
	login, err := logind.Dial(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer login.Close()
	lock, err := login.Inhibit(ctx, 30*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Close()
	for inProgress := range login.Shutdowns() {
		if inProgress {
			fmt.Println("the machine shuts down")
			return
		}
	}
}
