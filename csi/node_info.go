package csi

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// maxNodeID is the longest id of a node that a CSINode can have.
	maxNodeID = 256
	// maxTopology bounds what a driver says of where the node is: each segment becomes a label of the Node.
	maxTopology = 64
)

// checkNodeInfo returns why the cluster cannot get to know a driver. The CSINode and the labels of the Node are
// written for all drivers together: one that the API server rejects would keep the others from it.
func checkNodeInfo(c *client) error {
	var errs []error
	for _, message := range validation.IsDNS1123Subdomain(strings.ToLower(c.name)) {
		errs = append(errs, fmt.Errorf("name: %s", message))
	}
	if n := len(c.info.GetNodeId()); n > maxNodeID {
		errs = append(errs, fmt.Errorf("the node id has %d bytes, at most %d", n, maxNodeID))
	}
	segments := c.info.GetAccessibleTopology().GetSegments()
	if len(segments) > maxTopology {
		return errors.Join(append(errs, fmt.Errorf("the topology has %d segments, at most %d", len(segments), maxTopology))...)
	}
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		for _, message := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(segments[key])) {
			errs = append(errs, fmt.Errorf("topology %.100q: %.100q is no label: %s", key, segments[key], message))
		}
	}
	return errors.Join(errs...)
}

// contradiction returns an error if a driver says of where the node is what another one denies: which label
// the Node had would be left to chance. m.mu must be held.
func (m *Manager) contradiction(c *client) error {
	for _, name := range slices.Sorted(maps.Keys(m.clients)) {
		if name == c.name {
			continue // it is replaced
		}
		others := m.clients[name].info.GetAccessibleTopology().GetSegments()
		for key, value := range c.info.GetAccessibleTopology().GetSegments() {
			if other, ok := others[key]; ok && other != value {
				return fmt.Errorf("topology %s: the node is at %q, but at %q according to CSI driver %s", key, value, other, name)
			}
		}
	}
	return nil
}

// add makes a driver known, in place of the one of its name, which it returns if there is one.
func (m *Manager) add(c *client) (previous *client, err error) {
	if m.cfg.Node != nil {
		err = checkNodeInfo(c)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && m.cfg.Node != nil {
		err = m.contradiction(c)
	}
	if err != nil {
		return nil, fmt.Errorf("CSI driver %s cannot be in the CSINode: %w", c.name, err)
	}
	previous = m.clients[c.name]
	m.clients[c.name] = c
	return previous, nil
}
