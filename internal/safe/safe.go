// Package safe keeps a panic in code that is not ours to the call in which it
// happens. Sources, admitters, sinks, recorders and hooks are handed over by
// whoever assembles an agent; a mistake in one of them is logged with its stack and
// becomes that call's error, and the pods of the node do not notice.
package safe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"runtime/debug"
)

// ErrPanic is wrapped by the error that a panic becomes.
var ErrPanic = errors.New("panic")

// Call returns what f returns, or the error that its panic becomes. What names the
// call in the log and in that error.
func Call(log *slog.Logger, what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Recovered(log, what, v)
		}
	}()
	return f()
}

// Do is Call for what returns nothing: a panic is only logged.
func Do(log *slog.Logger, what string, f func()) {
	_ = Call(log, what, func() error { f(); return nil }) // logged
}

// Recovered logs what recover has returned, with the stack of the panic, and
// returns it as an error. It is to be called by the deferred function itself.
func Recovered(log *slog.Logger, what string, v any) error {
	log.Error("panic recovered", slog.String("call", what), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	return fmt.Errorf("%s: %w: %v", what, ErrPanic, v)
}

// Recorder takes events.
type Recorder[E any] interface{ Record(event E) }

type fakeRecorder[E any] struct {
	Recorder[E]
	log *slog.Logger
}

// Events returns a Recorder in front of r, in which a panic is logged and goes no
// further; nil for a nil one.
func Events[E any](log *slog.Logger, r Recorder[E]) Recorder[E] {
	if r == nil {
		return nil
	}
	return fakeRecorder[E]{r, log}
}

// Record implements Recorder.
func (r fakeRecorder[E]) Record(event E) {
	Do(r.log, "record event", func() { r.Recorder.Record(event) })
}

// Dialer connects.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// Dial returns a Dialer in front of dial, in which a panic is an error.
func Dial(log *slog.Logger, dial Dialer) Dialer {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = Call(log, "dial "+address, func() (err error) { conn, err = dial(ctx, network, address); return err })
		return conn, err
	}
}

// Hooks returns a copy of a struct of hooks in which a panic in any of the
// functions is logged and goes no further. A function that has results returns
// their zero values then. Functions that are nil stay nil.
func Hooks[T any](log *slog.Logger, hooks T) T {
	v := reflect.ValueOf(&hooks).Elem()
	for i := range v.NumField() {
		field := v.Field(i)
		if field.Kind() != reflect.Func || field.IsNil() {
			continue
		}
		what := v.Type().Field(i).Name
		field.Set(guarded(log, what, field.Type(), reflect.ValueOf(field.Interface())))
	}
	return hooks
}

func guarded(log *slog.Logger, what string, t reflect.Type, f reflect.Value) reflect.Value {
	return reflect.MakeFunc(t, func(args []reflect.Value) (results []reflect.Value) {
		defer func() {
			if p := recover(); p != nil {
				_ = Recovered(log, "hook "+what, p) // logged
				results = make([]reflect.Value, t.NumOut())
				for i := range results {
					results[i] = reflect.Zero(t.Out(i))
				}
			}
		}()
		return f.Call(args)
	})
}
