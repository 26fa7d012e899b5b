package agent

import (
	"reflect"

	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/logrotate"
	"github.com/sublet-dev/agent/pleg"
	"github.com/sublet-dev/agent/podsource"
	"github.com/sublet-dev/agent/podworkers"
	"github.com/sublet-dev/agent/probe"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/status"
	"github.com/sublet-dev/agent/syncloop"
)

// Hooks are called as the agent's parts work; package prom turns them into
// metrics. Each field says when its functions are called and what they may not do.
type Hooks struct {
	Sources     podsource.Hooks
	SyncLoop    syncloop.Hooks
	PodManager  syncloop.PodManagerHooks
	Housekeeper syncloop.HousekeeperHooks
	PodWorkers  podworkers.Hooks
	PLEG        pleg.Hooks
	Status      status.Hooks
	Probe       probe.Hooks
	Eviction    eviction.Hooks
	ImageGC     imagegc.Hooks
	ContainerGC containergc.Hooks
	LogRotation logrotate.Hooks
	CRI         cri.Hooks // calls of the runtime that the agent itself connects to
}

// WithHooks adds what is called as the agent's parts work. Given more than once,
// all are called, in the order of the options.
func WithHooks(h Hooks) Option {
	return func(s *settings) error {
		chain(reflect.ValueOf(&s.hooks).Elem(), reflect.ValueOf(h))
		return nil
	}
}

// chain has each function of hooks called by the one in its place in into, after
// what is there. It goes by reflection so that a hook that is added to a component
// is not forgotten here; where there is only one function it is called itself.
func chain(into, hooks reflect.Value) {
	if into.Kind() == reflect.Struct {
		for i := range into.NumField() {
			chain(into.Field(i), hooks.Field(i))
		}
		return
	}
	switch {
	case hooks.IsNil():
	case into.IsNil():
		into.Set(hooks)
	default:
		first := reflect.ValueOf(into.Interface()) // into itself is about to change
		into.Set(reflect.MakeFunc(into.Type(), func(args []reflect.Value) (results []reflect.Value) {
			defer func() { results = hooks.Call(args) }() // also if the first one panics
			return first.Call(args)
		}))
	}
}
