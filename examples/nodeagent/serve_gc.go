package main

import (
	"context"
	"time"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/imagegc"
)

// garbage is a dry run of garbage collection: what it would remove now, and why.
type garbage struct {
	Images     []imageChoice   `json:"images"`     // those to remove first, in order
	Containers []deadContainer `json:"containers"` // to remove, in order; sandboxes too
}

type imageChoice struct {
	ID            string    `json:"id"`
	Names         []string  `json:"names,omitempty"`
	Bytes         uint64    `json:"bytes"`
	FirstDetected time.Time `json:"firstSeen"`
	LastUsed      time.Time `json:"lastUsed"`
	Remove        bool      `json:"remove"`
	Reason        string    `json:"reason"`
}

type deadContainer struct {
	Pod       string    `json:"pod"`
	Container string    `json:"container,omitempty"`
	Attempt   uint32    `json:"attempt"`
	ID        string    `json:"id"`
	Created   time.Time `json:"created"`
}

// explain returns the dry run. all shows what would be removed under disk pressure.
func explain(ctx context.Context, a *agent.Agent, all bool) (garbage, error) {
	choices, err := a.ExplainImages(ctx, all)
	if err != nil {
		return garbage{}, err
	}
	removals, err := a.ExplainContainers(ctx)
	if err != nil {
		return garbage{}, err
	}
	g := garbage{Images: make([]imageChoice, 0, len(choices)), Containers: make([]deadContainer, 0, len(removals))}
	for _, c := range choices {
		g.Images = append(g.Images, imageOf(c))
	}
	for _, r := range removals {
		g.Containers = append(g.Containers, deadContainerOf(r))
	}
	return g, nil
}

func imageOf(c imagegc.Decision) imageChoice {
	return imageChoice{
		ID: c.Image.ID, Names: c.Image.Tags, Bytes: c.Image.Bytes, FirstDetected: c.Record.FirstDetected, LastUsed: c.Record.LastUsed,
		Remove: c.Remove, Reason: string(c.Reason),
	}
}

func deadContainerOf(r containergc.Removal) deadContainer {
	pod := r.Pod.Namespace + "/" + r.Pod.Name
	if c := r.Container; c != nil {
		return deadContainer{Pod: pod, Container: c.Name, Attempt: c.Attempt, ID: c.ID, Created: c.Created}
	}
	return deadContainer{Pod: pod, Attempt: r.Sandbox.Attempt, ID: r.Sandbox.ID, Created: r.Sandbox.Created}
}
