// Package safe recovers panics in callbacks. Sources, admitters, sinks, recorders and
// hooks belong to the user of the agent. A panic in one of them is logged with its
// stack and becomes the error of that call; pods are not affected.
package safe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
)

// ErrPanic is wrapped by the error for a recovered panic.
var ErrPanic = errors.New("panic")

// Call calls f and returns its error, or an error that wraps ErrPanic if it panics. what
// names the call in the log and in that error.
func Call(log *slog.Logger, what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Recovered(log, what, v)
		}
	}()
	return f()
}

// Do is Call for functions without a result. A panic is only logged.
func Do(log *slog.Logger, what string, f func()) {
	_ = Call(log, what, func() error { f(); return nil }) // logged
}

// Recovered logs v, the result of recover, with the stack of the panic, and returns it as
// an error. It must be called by the deferred function itself.
func Recovered(log *slog.Logger, what string, v any) error {
	log.Error("panic recovered", slog.String("call", what), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	return fmt.Errorf("%s: %w: %v", what, ErrPanic, v)
}

// Recorder records events.
type Recorder[E any] interface{ Record(event E) }

type safeRecorder[E any] struct {
	Recorder[E]
	log *slog.Logger
}

// Events returns a Recorder that calls r and recovers panics, or nil if r is nil.
func Events[E any](log *slog.Logger, r Recorder[E]) Recorder[E] {
	if r == nil {
		return nil
	}
	return safeRecorder[E]{r, log}
}

// Record implements Recorder.
func (r safeRecorder[E]) Record(event E) {
	Do(r.log, "record event", func() { r.Recorder.Record(event) })
}

// Dialer opens a connection.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// Dial returns a Dialer that calls dial and returns panics as errors.
func Dial(log *slog.Logger, dial Dialer) Dialer {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = Call(log, "dial "+address, func() (err error) { conn, err = dial(ctx, network, address); return err })
		return conn, err
	}
}
