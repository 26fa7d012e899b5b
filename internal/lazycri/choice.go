package lazycri

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

// Choice says where pods run. Exactly one of Given, Endpoint and Simulated is set.
type Choice struct {
	Given           any    // a runtime that exists
	Endpoint, Image string // CRI sockets of a runtime and, if it is another, of its image service
	Simulated       bool   // in an embedded runtime that simulates pods
}

// Check returns why an endpoint is invalid.
func (c Choice) Check() error {
	var errs []error
	for _, endpoint := range []string{c.Endpoint, c.Image} {
		if endpoint != "" {
			errs = append(errs, cri.CheckEndpoint(endpoint))
		}
	}
	return errors.Join(errs...)
}

// IsAmbiguous reports whether there is more than one choice.
func (c Choice) IsAmbiguous() bool {
	return c.Given != nil && (c.Endpoint != "" || c.Simulated) || c.Endpoint != "" && c.Simulated
}

// Adoption is the choice to take over pods without an owner that come from these sources.
type Adoption struct{ Sources []string }

// Check returns an error for a source without a name.
func (a Adoption) Check() error {
	if slices.Contains(a.Sources, "") {
		return fmt.Errorf("adoption: sources %q must be named", a.Sources)
	}
	return nil
}

// Needs returns what adoption needs of the runtime.
func (Adoption) Needs() []runtime.Need {
	return []runtime.Need{runtime.NeedFor[runtime.OwnerSetter]("sharing the runtime with others")}
}
