package agent

import (
	"bytes"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// setHooks sets each function of hooks to one that calls f with its name.
func setHooks(hooks reflect.Value, name string, f func(name string)) {
	if hooks.Kind() == reflect.Struct {
		for i := range hooks.NumField() {
			setHooks(hooks.Field(i), name+"."+hooks.Type().Field(i).Name, f)
		}
		return
	}
	hooks.Set(reflect.MakeFunc(hooks.Type(), func([]reflect.Value) (results []reflect.Value) {
		f(strings.TrimPrefix(name, "."))
		for out := range hooks.Type().Outs() {
			results = append(results, reflect.Zero(out))
		}
		return results
	}))
}

// AG-9: no hook of a component is forgotten: each calls all observers, in order,
// whichever of them panics.
func TestJoinHooks_CallsAllObservers(t *testing.T) {
	var calls []string
	observers := make([]Hooks, 4)
	for i, who := range []string{"first", "panics", "last"} {
		setHooks(reflect.ValueOf(&observers[i]).Elem(), "", func(hook string) {
			calls = append(calls, hook+" "+who)
			if who == "panics" {
				panic(who)
			}
		})
	}
	var log bytes.Buffer
	joined := joinHooks(slog.New(slog.NewTextHandler(&log, nil)), observers)
	var call func(v reflect.Value, name string)
	call = func(v reflect.Value, name string) {
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				call(v.Field(i), name+"."+v.Type().Field(i).Name)
			}
			return
		}
		if !assert.False(t, v.IsNil(), "%s is not joined", name) {
			return
		}
		calls = nil
		log.Reset()
		args := make([]reflect.Value, v.Type().NumIn())
		for i := range args {
			args[i] = reflect.Zero(v.Type().In(i))
		}
		v.Call(args)
		hook := strings.TrimPrefix(name, ".")
		assert.Equal(t, []string{hook + " first", hook + " panics", hook + " last"}, calls)
		assert.Contains(t, log.String(), `"hook `+hook+`"`)
	}
	call(reflect.ValueOf(joined), "")
}

func TestJoinHooks_NilWithoutObservers(t *testing.T) {
	assert.Zero(t, joinHooks(slog.New(slog.DiscardHandler), []Hooks{{}, {}}))
}
