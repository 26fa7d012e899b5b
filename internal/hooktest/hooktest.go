// Package hooktest tests hooks: structs of functions that a component calls when something
// has happened.
package hooktest

import (
	"bytes"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// RequireJoins checks that join joins each function of its hooks: it calls all, in order,
// whichever of them panics; the log names the one that does, below prefix.
func RequireJoins[H any](t *testing.T, prefix string, join func(first H, log *slog.Logger, next H) H) {
	t.Helper()
	var calls []string
	hooks := make([]H, 4)
	for i, who := range []string{"first", "panics", "last"} {
		each(reflect.ValueOf(&hooks[i]).Elem(), prefix, func(name string, f reflect.Value) {
			f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) (results []reflect.Value) {
				calls = append(calls, name+" "+who)
				if who == "panics" {
					panic(who)
				}
				for out := range f.Type().Outs() {
					results = append(results, reflect.Zero(out))
				}
				return results
			}))
		})
	}
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	var joined H
	assert.Zero(t, join(joined, log, joined), "hooks of nothing")
	for _, h := range hooks {
		joined = join(joined, log, h)
	}
	each(reflect.ValueOf(joined), prefix, func(name string, f reflect.Value) {
		if !assert.False(t, f.IsNil(), "%s is not joined", name) {
			return
		}
		calls = nil
		text.Reset()
		args := make([]reflect.Value, f.Type().NumIn())
		for i := range args {
			args[i] = reflect.Zero(f.Type().In(i))
		}
		f.Call(args)
		assert.Equal(t, []string{name + " first", name + " panics", name + " last"}, calls)
		assert.Contains(t, text.String(), `"hook `+name+`"`)
	})
}

// each calls visit with each function of hooks and its name.
func each(hooks reflect.Value, name string, visit func(name string, f reflect.Value)) {
	if hooks.Kind() != reflect.Struct {
		visit(strings.TrimPrefix(name, "."), hooks)
		return
	}
	for i := range hooks.NumField() {
		each(hooks.Field(i), name+"."+hooks.Type().Field(i).Name, visit)
	}
}
