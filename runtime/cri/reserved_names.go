package cri

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sublet-dev/agent/internal/sleep"
	"github.com/sublet-dev/agent/runtime"
)

// nameTaken reports whether a create failed because its name is in use.
// containerd tells so in words only.
func nameTaken(err error) bool {
	if errors.Is(err, runtime.ErrAlreadyExists) {
		return true
	}
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	said := e.status.Message()
	return strings.Contains(said, "is reserved for") || strings.Contains(said, "name is reserved")
}

// retry bounds how often a name that is taken is tried again.
type retry struct{ removed, waited int }

const (
	// A cancelled call holds its name until the runtime has cleaned up behind
	// it, most often for less than a second.
	firstRetry   = 50 * time.Millisecond
	maxNameWaits = 6 // 3 s in all
)

// retry reports whether the name is worth another try. If its owner was found, it has
// been removed and the name is free; if not, a call is under way inside the runtime,
// and retry waits a little for its end.
func (r *retry) retry(ctx context.Context, found bool) bool {
	if found {
		r.removed++
		return r.removed == 1
	}
	r.waited++
	if r.waited > maxNameWaits {
		return false
	}
	return sleep.For(ctx, firstRetry<<(r.waited-1)) == nil
}
