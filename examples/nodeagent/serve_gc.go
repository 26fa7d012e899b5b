package main

import (
	"context"
	"time"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/containergc"
	"github.com/sublet-dev/agent/imagegc"
)

// garbage is a dry run: what collection would do now, and why. Nothing is removed.
type garbage struct {
	Images     []imageChoice `json:"images"`     // those to remove first, in order
	Containers []dead        `json:"containers"` // to remove, in order; sandboxes too
}

type imageChoice struct {
	ID        string    `json:"id"`
	Names     []string  `json:"names,omitempty"`
	Bytes     uint64    `json:"bytes"`
	FirstSeen time.Time `json:"firstSeen"`
	LastUsed  time.Time `json:"lastUsed"`
	Remove    bool      `json:"remove"`
	Reason    string    `json:"reason"`
}

type dead struct {
	Pod       string    `json:"pod"`
	Container string    `json:"container,omitempty"`
	Attempt   uint32    `json:"attempt"`
	ID        string    `json:"id"`
	Created   time.Time `json:"created"`
}

// explain asks for the dry run. all is for what would go if the disk were short.
func explain(ctx context.Context, a *agent.Agent, all bool) (garbage, error) {
	choices, err := a.ExplainImages(ctx, all)
	if err != nil {
		return garbage{}, err
	}
	removals, err := a.ExplainContainers(ctx)
	if err != nil {
		return garbage{}, err
	}
	g := garbage{Images: make([]imageChoice, 0, len(choices)), Containers: make([]dead, 0, len(removals))}
	for _, c := range choices {
		g.Images = append(g.Images, imageOf(c))
	}
	for _, r := range removals {
		g.Containers = append(g.Containers, deadOf(r))
	}
	return g, nil
}

func imageOf(c imagegc.Decision) imageChoice {
	return imageChoice{
		ID: c.Image.ID, Names: c.Image.Tags, Bytes: c.Image.Bytes, FirstSeen: c.Record.FirstDetected, LastUsed: c.Record.LastUsed,
		Remove: c.Remove, Reason: string(c.Reason),
	}
}

func deadOf(r containergc.Removal) dead {
	pod := r.Pod.Namespace + "/" + r.Pod.Name
	if c := r.Container; c != nil {
		return dead{Pod: pod, Container: c.Name, Attempt: c.Attempt, ID: c.ID, Created: c.Created}
	}
	return dead{Pod: pod, Attempt: r.Sandbox.Attempt, ID: r.Sandbox.ID, Created: r.Sandbox.Created}
}
