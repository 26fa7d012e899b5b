package kube

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
)

// Config describes a Kube.
type Config struct {
	// Client is a client of the API server. With the Node authorizer its user is
	// system:node:NodeName, in the group system:nodes. Required.
	Client kubernetes.Interface
	// NodeName is the name of the Node object of this node, a DNS subdomain. Required.
	NodeName string

	// StatusQPS bounds the patches of pod statuses a second, after StatusBurst at once. The
	// client has a limit of its own (rest.Config.QPS), which is for all requests.
	// Defaults: 100 and 500.
	StatusQPS   float64
	StatusBurst int

	Logger *slog.Logger // default: discard
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
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}
