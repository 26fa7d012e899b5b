package kube

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Config describes a Kube.
type Config struct {
	// Client is a client of the API server. With the Node authorizer its user is
	// system:node:NodeName, in the group system:nodes. Required.
	Client kubernetes.Interface
	// EventClient and LeaseClient write events and renew the lease of the node. With limits
	// of their own (rest.Config.QPS), events do not delay statuses, and nothing delays the
	// lease. Default: Client. See ConfigFor.
	EventClient, LeaseClient kubernetes.Interface
	// NodeName is the name of the Node object of this node, a DNS subdomain. Required.
	NodeName string

	// StatusQPS bounds the patches of pod statuses a second, after StatusBurst at once. The
	// client has a limit of its own (rest.Config.QPS), which is for all requests.
	// Defaults: 100 and 500.
	StatusQPS   float64
	StatusBurst int

	Logger *slog.Logger // default: discard
}

// ConfigFor returns a Config with the clients of cfg. Each has the limits of cfg for
// itself; they share connections. NodeName and Logger are left to the caller.
func ConfigFor(cfg *rest.Config) (Config, error) {
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return Config{}, fmt.Errorf("kube: client: %w", err)
	}
	var out Config
	for _, client := range []*kubernetes.Interface{&out.Client, &out.EventClient, &out.LeaseClient} {
		c, err := kubernetes.NewForConfigAndClient(cfg, shared)
		if err != nil {
			return Config{}, fmt.Errorf("kube: client: %w", err)
		}
		*client = c
	}
	return out, nil
}

// complete validates the Config and sets defaults.
func (c *Config) complete() error {
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("kube: Config.Client: required"))
	}
	if c.NodeName == "" {
		errs = append(errs, errors.New("kube: Config.NodeName: required"))
	} else if bad := validation.IsDNS1123Subdomain(c.NodeName); len(bad) > 0 {
		errs = append(errs, fmt.Errorf("kube: Config.NodeName: invalid name %q: %s", c.NodeName, strings.Join(bad, "; ")))
	}
	if c.StatusQPS < 0 || c.StatusBurst < 0 {
		errs = append(errs, fmt.Errorf("kube: Config.StatusQPS and StatusBurst must not be negative, got %v and %d", c.StatusQPS, c.StatusBurst))
	}
	c.StatusQPS, c.StatusBurst = cmp.Or(c.StatusQPS, 100), cmp.Or(c.StatusBurst, 500)
	if c.EventClient == nil {
		c.EventClient = c.Client
	}
	if c.LeaseClient == nil {
		c.LeaseClient = c.Client
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}
