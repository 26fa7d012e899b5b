package safe

import (
	"context"
	"log/slog"
	"reflect"
)

// Hook1 returns a function that calls each of hooks that is not nil, in order. A panic of
// one is logged and does not prevent the others from being called. It returns nil if all
// are nil. A call of the result allocates nothing. name names the hook in the log.
func Hook1[A any](log *slog.Logger, name string, hooks ...func(A)) func(A) {
	return join(hooks, func(h func(A)) func(A) {
		return func(a A) {
			defer recoverHook(log, name)
			h(a)
		}
	}, func(first, second func(A)) func(A) {
		return func(a A) { first(a); second(a) }
	})
}

// Hook2 is Hook1 for functions with two parameters.
func Hook2[A, B any](log *slog.Logger, name string, hooks ...func(A, B)) func(A, B) {
	return join(hooks, func(h func(A, B)) func(A, B) {
		return func(a A, b B) {
			defer recoverHook(log, name)
			h(a, b)
		}
	}, func(first, second func(A, B)) func(A, B) {
		return func(a A, b B) { first(a, b); second(a, b) }
	})
}

// Hook3 is Hook1 for functions with three parameters.
func Hook3[A, B, C any](log *slog.Logger, name string, hooks ...func(A, B, C)) func(A, B, C) {
	return join(hooks, func(h func(A, B, C)) func(A, B, C) {
		return func(a A, b B, c C) {
			defer recoverHook(log, name)
			h(a, b, c)
		}
	}, func(first, second func(A, B, C)) func(A, B, C) {
		return func(a A, b B, c C) { first(a, b, c); second(a, b, c) }
	})
}

// Hook4 is Hook1 for functions with four parameters.
func Hook4[A, B, C, D any](log *slog.Logger, name string, hooks ...func(A, B, C, D)) func(A, B, C, D) {
	return join(hooks, func(h func(A, B, C, D)) func(A, B, C, D) {
		return func(a A, b B, c C, d D) {
			defer recoverHook(log, name)
			h(a, b, c, d)
		}
	}, func(first, second func(A, B, C, D)) func(A, B, C, D) {
		return func(a A, b B, c C, d D) { first(a, b, c, d); second(a, b, c, d) }
	})
}

// Hook5 is Hook1 for functions with five parameters.
func Hook5[A, B, C, D, E any](log *slog.Logger, name string, hooks ...func(A, B, C, D, E)) func(A, B, C, D, E) {
	return join(hooks, func(h func(A, B, C, D, E)) func(A, B, C, D, E) {
		return func(a A, b B, c C, d D, e E) {
			defer recoverHook(log, name)
			h(a, b, c, d, e)
		}
	}, func(first, second func(A, B, C, D, E)) func(A, B, C, D, E) {
		return func(a A, b B, c C, d D, e E) { first(a, b, c, d, e); second(a, b, c, d, e) }
	})
}

// HookContext is Hook1 for functions that derive a context. Each gets the context that the
// previous one returned. The result of one that panics or returns nil is the context that
// it got.
func HookContext[A any](log *slog.Logger, name string, hooks ...func(context.Context, A) context.Context) func(context.Context, A) context.Context {
	type hook = func(context.Context, A) context.Context
	return join(hooks, func(h hook) hook {
		return func(ctx context.Context, a A) (derived context.Context) {
			defer func() {
				if derived == nil {
					derived = ctx
				}
			}()
			defer recoverHook(log, name)
			return h(ctx, a)
		}
	}, func(first, second hook) hook {
		return func(ctx context.Context, a A) context.Context { return second(first(ctx, a), a) }
	})
}

// join wraps each function that is not nil with guard and combines them with both.
func join[F any](hooks []F, guard func(F) F, both func(first, second F) F) (all F) {
	none := true
	for _, h := range hooks {
		switch {
		case reflect.ValueOf(h).IsNil():
		case none:
			all, none = guard(h), false
		default:
			all = both(all, guard(h))
		}
	}
	return all
}

// recoverHook is deferred by a hook.
func recoverHook(log *slog.Logger, name string) {
	if v := recover(); v != nil {
		_ = Recovered(log, "hook "+name, v) // logged
	}
}
