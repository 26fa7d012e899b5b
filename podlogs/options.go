package podlogs

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/internal/crilog"
)

// ErrInvalidOptions is wrapped by the errors of Validate.
var ErrInvalidOptions = errors.New("invalid log options")

// anyStream stands for both streams in a filter.
const anyStream = crilog.NumStreams

// Validate checks options as the API server does, except that TailLines may be combined
// with one Stream, and that without a Stream all are meant.
func Validate(o *corev1.PodLogOptions) error {
	var errs []error
	invalid := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidOptions}, args...)...))
	}
	if o.TailLines != nil && *o.TailLines < 0 {
		invalid("tailLines: %d must not be negative", *o.TailLines)
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		invalid("limitBytes: %d must be greater than 0", *o.LimitBytes)
	}
	if o.SinceSeconds != nil && *o.SinceSeconds < 1 {
		invalid("sinceSeconds: %d must be greater than 0", *o.SinceSeconds)
	}
	if o.SinceSeconds != nil && o.SinceTime != nil {
		invalid("at most one of sinceTime and sinceSeconds may be given")
	}
	if o.Stream != nil && *o.Stream != corev1.LogStreamAll && *o.Stream != corev1.LogStreamStdout && *o.Stream != corev1.LogStreamStderr {
		invalid("stream: %q must be %s, %s or %s", *o.Stream, corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr)
	}
	return errors.Join(errs...)
}

// filter selects entries of a log.
type filter struct {
	since  time.Time     // zero: all
	stream crilog.Stream // anyStream: both
}

func newFilter(o *corev1.PodLogOptions, now time.Time) filter {
	f := filter{stream: anyStream}
	switch {
	case o.SinceTime != nil:
		f.since = o.SinceTime.Time
	case o.SinceSeconds != nil && *o.SinceSeconds < int64(now.Sub(time.Unix(0, 0)).Seconds()): // further back is everything
		f.since = now.Add(-time.Duration(*o.SinceSeconds) * time.Second)
	}
	if o.Stream != nil {
		switch *o.Stream {
		case corev1.LogStreamStdout:
			f.stream = crilog.Stdout
		case corev1.LogStreamStderr:
			f.stream = crilog.Stderr
		}
	}
	return f
}

func (f filter) hasStream(s crilog.Stream) bool { return f.stream == anyStream || f.stream == s }
