package kubeletconfig

import (
	"crypto/tls"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/kubelet/config/v1beta1"
)

// Config is the configuration of a kubelet: a KubeletConfiguration, and which of its fields were
// given. Its methods must not be called concurrently with Set.
type Config struct {
	kubelet v1beta1.KubeletConfiguration
	given   map[string]bool // paths of fields that were given
}

// Default returns the configuration of a kubelet for which nothing is given.
func Default() *Config {
	c := &Config{given: map[string]bool{}}
	c.setDefaults()
	return c
}

// Kubelet returns the configuration with all defaults. The caller owns the result.
func (c *Config) Kubelet() *v1beta1.KubeletConfiguration { return c.kubelet.DeepCopy() }

// TLS returns what the configuration says about TLS of the kubelet's API: versions, cipher suites and
// groups, without a certificate.
func (c *Config) TLS() (*tls.Config, error) { return tlsConfig(&c.kubelet) }

// Given reports whether the field at path was given, by a file or by Set.
func (c *Config) Given(path string) bool { return c.given[path] }

// Changed returns the paths of the fields in which other differs, in the order of the type.
func (c *Config) Changed(other *Config) []string {
	var paths []string
	for _, f := range Fields() {
		if !reflect.DeepEqual(valueAt(&c.kubelet, f.Path).Interface(), valueAt(&other.kubelet, f.Path).Interface()) {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

// Set sets the field of a flag of the kubelet (Field.Flag) as that flag does: it replaces what a file
// says, except that feature gates of the file stay which the flag does not name. It returns an error
// that wraps ErrUnknownFlag if no field has the flag.
func (c *Config) Set(flag, value string) error {
	f, err := c.set(flag, value)
	if err == nil {
		c.given[f.Path] = true
	}
	return err
}

// SetDefault is Set for the default that a program has for a flag: the field does not count as given.
func (c *Config) SetDefault(flag, value string) error {
	_, err := c.set(flag, value)
	return err
}

// Text returns the field at path in the form of a flag, "" if it has no value or no such form.
func (c *Config) Text(path string) string {
	switch path {
	case "evictionHard":
		return joinThresholds(c.kubelet.EvictionHard)
	case "evictionSoft":
		return joinThresholds(c.kubelet.EvictionSoft)
	}
	return text(valueAt(&c.kubelet, path))
}

func (c *Config) set(flag, value string) (Field, error) {
	f, ok := fieldOfFlag(flag)
	if !ok {
		return f, fmt.Errorf("-%s: %w", flag, ErrUnknownFlag)
	}
	gates := c.kubelet.FeatureGates
	err := setText(leaf(&c.kubelet, f.Path), value)
	if f.Path == "featureGates" && err == nil {
		c.kubelet.FeatureGates = withGates(gates, c.kubelet.FeatureGates)
	}
	if errors.Is(err, errNoFlagForm) && f.Treatment == NoMeaning {
		err = nil // nothing depends on the value
	}
	if err != nil {
		return f, fmt.Errorf("-%s: %w", flag, err)
	}
	return f, nil
}

// ErrUnknownFlag is wrapped by errors of Set.
var ErrUnknownFlag = errors.New("no flag of the kubelet that sets a field of its configuration")

// setDefaults gives the fields without a value their default.
func (c *Config) setDefaults() {
	if k := &c.kubelet; k.NodeStatusReportFrequency.Duration == 0 {
		k.NodeStatusReportFrequency = k.NodeStatusUpdateFrequency
	}
	for _, f := range Fields() {
		if f.Default == "" || !valueAt(&c.kubelet, f.Path).IsZero() {
			continue
		}
		if err := setText(leaf(&c.kubelet, f.Path), f.Default); err != nil {
			panic(fmt.Sprintf("default of %s: %v", f.Path, err)) // a mistake in the table, which a test finds
		}
	}
}

// Notices returns a line for each field that was given and has no meaning here, and for each such
// feature gate: what it is, and why it changes nothing.
func (c *Config) Notices() []string {
	var notices []string
	for _, f := range Fields() {
		if f.Treatment != NoMeaning || !c.given[f.Path] {
			continue
		}
		if got := text(valueAt(&c.kubelet, f.Path)); got != "" && got != "0s" && got != f.Default && !slices.Contains(f.Accepts, got) {
			notices = append(notices, fmt.Sprintf("%s has no effect: %s", f.Path, f.Note))
		}
	}
	if len(c.kubelet.ReservedMemory) > 0 && c.kubelet.MemoryManagerPolicy != v1beta1.StaticMemoryManagerPolicy {
		notices = append(notices, reservedMemoryPath+" has no effect: memoryManagerPolicy is not Static")
	}
	return append(notices, gateNotices(c.kubelet.FeatureGates)...)
}

// unsupportedValues returns an error for each unsupported field that was given a value.
func (c *Config) unsupportedValues() []error {
	var errs []error
	for _, f := range Fields() {
		if f.Treatment != Unsupported {
			continue
		}
		got := text(valueAt(&c.kubelet, f.Path))
		if got != f.Default && !slices.Contains(append(f.Accepts, "", "0", "0s", "false"), got) || got == "false" && f.Default == "true" {
			errs = append(errs, fmt.Errorf("%s: %q is not supported: %s", f.Path, got, f.Note))
		}
	}
	return errs
}
