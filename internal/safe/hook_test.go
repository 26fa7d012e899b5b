package safe_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sublet-dev/agent/internal/safe"
)

// AG-9: each hook gets the arguments, in order, whatever the others do.
func TestHook_CallsAll(t *testing.T) {
	var got []any
	record := func(args ...any) { got = append(got, args...) }
	log, out := logger()
	for n, call := range []func(){
		func() {
			safe.Hook1(log, "One", nil, func(a int) { record(a) }, func(int) { throws() }, nil, func(a int) { record(a) })(1)
		},
		func() {
			safe.Hook2(log, "Two", func(int, string) { throws() }, func(a int, b string) { record(a, b) }, func(a int, b string) { record(a, b) })(1, "2")
		},
		func() {
			safe.Hook3(log, "Three", func(a, b, c int) { record(a, b, c) }, func(int, int, int) { throws() }, func(a, b, c int) { record(a, b, c) })(1, 2, 3)
		},
		func() {
			safe.Hook4(log, "Four", func(a, b, c, d int) { record(a, b, c, d) }, func(int, int, int, int) { throws() }, func(a, b, c, d int) { record(a, b, c, d) })(1, 2, 3, 4)
		},
		func() {
			safe.Hook5(log, "Five", func(a, b, c, d, e int) { record(a, b, c, d, e) }, func(int, int, int, int, int) { throws() },
				func(a, b, c, d, e int) { record(a, b, c, d, e) })(1, 2, 3, 4, 5)
		},
	} {
		got = nil
		out.Reset()
		call()
		all := []any{1, 2, 3, 4, 5}
		if n == 1 {
			all[1] = "2"
		}
		assert.Equal(t, append(all[:n+1:n+1], all[:n+1]...), got)
		assert.Equal(t, 1, strings.Count(out.String(), "no such luck"), out)
		assert.Contains(t, out.String(), `call="hook `+[]string{"One", "Two", "Three", "Four", "Five"}[n]+`"`)
	}
}

func TestHook_NilIfAllAreNil(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	assert.Nil(t, safe.Hook1[int](log, "h"))
	assert.Nil(t, safe.Hook1[int](log, "h", nil, nil))
	assert.Nil(t, safe.Hook2[int, int](log, "h", nil))
	assert.Nil(t, safe.Hook3[int, int, int](log, "h", nil))
	assert.Nil(t, safe.Hook4[int, int, int, int](log, "h", nil))
	assert.Nil(t, safe.Hook5[int, int, int, int, int](log, "h", nil))
	assert.Nil(t, safe.HookContext[int](log, "h", nil))
}

func TestHookContext_PassesContextOn(t *testing.T) {
	type key string
	add := func(name key) func(context.Context, string) context.Context {
		return func(ctx context.Context, value string) context.Context { return context.WithValue(ctx, name, value) }
	}
	log, out := logger()
	ctx := safe.HookContext(log, "Started", add("first"),
		func(context.Context, string) context.Context { throws(); return nil }, nil,
		func(context.Context, string) context.Context { return nil },
		add("last"))(t.Context(), "v")
	assert.Equal(t, "v", ctx.Value(key("first")))
	assert.Equal(t, "v", ctx.Value(key("last")))
	assert.Contains(t, out.String(), "hook Started")
}

func TestHook_DoesNotAllocate(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	n := 0
	h := safe.Hook2(log, "h", func(a int, _ error) { n += a }, func(a int, _ error) { n += a })
	assert.Zero(t, testing.AllocsPerRun(100, func() { h(1, nil) }))
	started := safe.HookContext(log, "h", func(ctx context.Context, _ int) context.Context { return ctx })
	assert.Zero(t, testing.AllocsPerRun(100, func() { started(t.Context(), 1) }))
}

func BenchmarkHook2(b *testing.B) {
	log, _ := logger()
	h := safe.Hook2(log, "h", func(int, error) {}, func(int, error) {})
	b.ReportAllocs()
	for b.Loop() {
		h(1, nil)
	}
}
