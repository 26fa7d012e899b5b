package devices

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// complete validates the Config and sets defaults.
func (cfg *Config) complete() error {
	var errs []error
	if !filepath.IsAbs(cfg.StateFile) {
		errs = append(errs, fmt.Errorf("devices: Config.StateFile: %q must be an absolute path", cfg.StateFile))
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"PluginGracePeriod", &cfg.PluginGracePeriod, 5 * time.Minute},
		{"AllocateTimeout", &cfg.AllocateTimeout, time.Minute},
		{"PreStartTimeout", &cfg.PreStartTimeout, 30 * time.Second},
	} {
		if *f.value < 0 {
			errs = append(errs, fmt.Errorf("devices: Config.%s: %s must be at least 0", f.name, *f.value))
		}
		*f.value = cmp.Or(*f.value, f.or)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

// IsExtendedResource reports whether a resource is an extended one: its name has a domain that
// does not belong to Kubernetes, and it is no hugepages or attachable-volumes resource.
func IsExtendedResource(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	if !ok || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }
