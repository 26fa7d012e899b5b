package kubeletconfig

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sublet-dev/agent/cpumanager"
	"github.com/sublet-dev/agent/topology"
)

// The options of policies.
const (
	optionFullPCPUs        = "full-pcpus-only"
	optionStrictReserved   = "strict-cpu-reservation"
	optionDistributeNUMA   = "distribute-cpus-across-numa"
	optionAlignUncoreCache = "prefer-align-cpus-by-uncorecache"
	optionClosestNUMA      = "prefer-closest-numa-nodes"
	optionMaxNUMA          = "max-allowable-numa-nodes"
)

// gateCPUBetaOptions is the gate of the options of the static policy that are beta.
const gateCPUBetaOptions = "CPUManagerPolicyBetaOptions"

// CPUManagerOptions returns what cpuManagerPolicyOptions has, or an error for options that are unknown, alpha, exclude each
// other or have a wrong value.
func (c *Config) CPUManagerOptions() (cpumanager.Options, error) {
	const field = "cpuManagerPolicyOptions"
	var o cpumanager.Options
	err := setOptions(field, c.kubelet.CPUManagerPolicyOptions, map[string]func(string) error{
		optionFullPCPUs:        setBool(&o.FullPCPUsOnly),
		optionStrictReserved:   setBool(&o.StrictCPUReservation),
		optionDistributeNUMA:   setBool(&o.DistributeCPUsAcrossNUMA),
		optionAlignUncoreCache: setBool(&o.PreferAlignCPUsByUncoreCache),
	}, "align-by-socket", "distribute-cpus-across-cores")
	if o.Check() != nil {
		err = errors.Join(err, fmt.Errorf("%s: %s and %s exclude each other; remove one of both", field, optionAlignUncoreCache, optionDistributeNUMA))
	}
	return o, err
}

// TopologyManagerOptions returns what topologyManagerPolicyOptions has, or an error for options that are unknown or have a
// wrong value.
func (c *Config) TopologyManagerOptions() (topology.Options, error) {
	var o topology.Options
	return o, setOptions("topologyManagerPolicyOptions", c.kubelet.TopologyManagerPolicyOptions, map[string]func(string) error{
		optionClosestNUMA: setBool(&o.PreferClosestNUMANodes),
		optionMaxNUMA: func(value string) error {
			n, err := strconv.Atoi(value)
			if err != nil {
				return fmt.Errorf("%q must be a whole number", value)
			}
			const least = 8 // 0 would be the default of the library
			if n < least {
				return fmt.Errorf("%d must be at least %d", n, least)
			}
			o.MaxAllowableNUMANodes = n
			return nil
		},
	})
}

// setOptions sets the known options that are given. Those in alpha, which a kubelet has with a gate that is off by default,
// are rejected with that reason.
func setOptions(field string, given map[string]string, known map[string]func(value string) error, alpha ...string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		set, ok := known[name]
		switch {
		case ok:
			if err := set(given[name]); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", field, name, err))
			}
		case slices.Contains(alpha, name):
			errs = append(errs, fmt.Errorf("%s: %s is not supported: it is alpha in Kubernetes; remove it", field, name))
		default:
			errs = append(errs, fmt.Errorf("%s: unknown option %q; there are %s", field, name, strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
		}
	}
	return errors.Join(errs...)
}

func setBool(to *bool) func(string) error {
	return func(value string) error { return setBasic(reflect.ValueOf(to).Elem(), value) }
}

// policyOptions checks the options of policies.
func (v *validator) policyOptions(c *Config) {
	_, err := c.CPUManagerOptions()
	v.addAll(err)
	_, err = c.TopologyManagerOptions()
	v.addAll(err)
	options := v.CPUManagerPolicyOptions
	v.fail(len(options) > 0 && v.CPUManagerPolicy != staticCPUPolicy, "cpuManagerPolicyOptions: need cpuManagerPolicy %s; remove them, or set that", staticCPUPolicy)
	_, isGiven := options[optionDistributeNUMA]
	v.fail(isGiven && isOff(v.FeatureGates, gateCPUBetaOptions), "cpuManagerPolicyOptions: %s needs featureGates[%s]; remove one of both", optionDistributeNUMA, gateCPUBetaOptions)
}

// addAll adds each of joined errors.
func (v *validator) addAll(err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		v.errs = append(v.errs, joined.Unwrap()...)
		return
	}
	v.add(err)
}
