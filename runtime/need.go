package runtime

import (
	"errors"
	"fmt"
	"reflect"
)

// Need is a capability that a component uses of its runtime. The Config of such a
// component has a method Needs.
type Need struct {
	Capability string // its interface: "runtime.LogReopener"
	Purpose    string // what is off without it: "log rotation"
	Optional   bool   // the component works without it
	isMet      func(rt any) bool
}

// NeedFor returns the need for the capability T, for a purpose.
func NeedFor[T any](purpose string) Need {
	return Need{Capability: reflect.TypeFor[T]().String(), Purpose: purpose, isMet: func(rt any) bool {
		_, ok := Capability[T](rt)
		return ok
	}}
}

// IsMet tells whether rt has the capability.
func (n Need) IsMet(rt any) bool { return n.isMet(rt) }

// String returns what is off without the capability, and its name.
func (n Need) String() string { return n.Purpose + " (" + n.Capability + ")" }

// Unmet returns those of needs that rt does not meet.
func Unmet(rt any, needs ...Need) (unmet []Need) {
	for _, n := range needs {
		if !n.IsMet(rt) {
			unmet = append(unmet, n)
		}
	}
	return unmet
}

// CheckNeeds returns an error for each capability that rt lacks and that is not optional,
// joined. who has the needs, for example an option.
func CheckNeeds(rt any, who string, needs ...Need) error {
	var errs []error
	for _, n := range Unmet(rt, needs...) {
		if !n.Optional {
			errs = append(errs, fmt.Errorf("%s: the runtime is no %s, which is needed for %s; a decorator needs a method Unwrap() any", who, n.Capability, n.Purpose))
		}
	}
	return errors.Join(errs...)
}
