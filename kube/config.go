package kube

import (
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
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return errors.Join(errs...)
}

// Kube is the connection of one node to its API server. Its methods may be called from
// any goroutine.
type Kube struct {
	cfg Config
}

// New returns a Kube. It checks cfg and does no I/O.
func New(cfg Config) (*Kube, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Kube{cfg: cfg}, nil
}
