package runtimetest

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func imageCommandCases() []testCase {
	return []testCase{
		{"a container without a command runs that of its image", "most pods name no command; they could not start", confinement, func(c *CaseT) {
			want := c.imageCommand()
			p := c.pod("p")
			id, err := p.createConfig(p.containerConfig("c", nil, func(cfg *v1.ContainerConfig) { cfg.Stdin = true })) // so that a shell waits
			c.ok(err, "create container without command and args, whose image has the command "+strings.Join(want, " "))
			c.ok(c.start(id), "start container without command and args, whose image has the command "+strings.Join(want, " "))
			c.state(id, running)
			if path.Base(want[0]) == "sh" { // another one may run a second program in its place
				got := c.commandOutput(id, "cat", "/proc/1/cmdline")
				same(c, strings.Join(want, " "), strings.ReplaceAll(got, "\x00", " "), "command of a container that has only that of its image")
			}
		}},
	}
}

// imageCommand returns the entrypoint and the command of the image, or ends the case as skipped where the runtime does
// not say them.
func (c *CaseT) imageCommand() []string {
	r, err := c.is.ImageStatus(c.ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: c.s.image}, Verbose: true})
	c.ok(err, "verbose status of image")
	for _, key := range slices.Sorted(maps.Keys(r.GetInfo())) {
		var info any
		if json.Unmarshal([]byte(r.GetInfo()[key]), &info) != nil {
			continue
		}
		if command := slices.Concat(texts(info, "Entrypoint"), texts(info, "Cmd")); len(command) > 0 {
			return command
		}
	}
	c.skipped("the verbose status of the image does not name its command")
	return nil
}

// texts returns the list of that name in a JSON value, however deep.
func texts(value any, name string) []string {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			if found := texts(item, name); found != nil {
				return found
			}
		}
	case map[string]any:
		list, _ := v[name].([]any)
		var found []string
		for _, item := range list {
			if text, ok := item.(string); ok {
				found = append(found, text)
			}
		}
		if found != nil {
			return found
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if found := texts(v[key], name); found != nil {
				return found
			}
		}
	}
	return nil
}
