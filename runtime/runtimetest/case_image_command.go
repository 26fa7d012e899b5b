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
		{"the stop signal of the image is used", "applications whose image names another signal would be killed the hard way", processes, func(c *CaseT) {
			image, signal := c.imageWithStopSignal()
			id := c.pod("p").up("c", "trap 'exit 8' "+signal+"; trap 'exit 9' TERM", func(cfg *v1.ContainerConfig) {
				cfg.Image = &v1.ImageSpec{Image: image.GetId(), UserSpecifiedImage: image.GetId()}
			})
			c.ok(c.stop(id, stopGrace), "stop container")
			st := c.status(id)
			same(c, exited, st.GetState(), "its state after StopContainer")
			same(c, 8, st.GetExitCode(), "the exit code of its handler of "+signal+", the stop signal of the image")
		}},
	}
}

// imageWithStopSignal returns an image with another stop signal than SIGTERM, and the name of the signal as the shell
// takes it, or ends the case as skipped.
func (c *CaseT) imageWithStopSignal() (image *v1.Image, signal string) {
	for _, ref := range []string{c.s.image, c.s.second} {
		if ref == "" {
			continue
		}
		r, err := c.is.ImageStatus(c.ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}, Verbose: true})
		c.ok(err, "verbose status of image "+ref)
		for _, key := range slices.Sorted(maps.Keys(r.GetInfo())) {
			var info any
			if json.Unmarshal([]byte(r.GetInfo()[key]), &info) != nil {
				continue
			}
			signal := strings.TrimPrefix(text(info, "StopSignal"), "SIG")
			if slices.Contains([]string{"HUP", "INT", "QUIT", "USR1", "USR2", "WINCH"}, signal) {
				return r.GetImage(), signal
			}
		}
	}
	c.skipped("no image of the suite names a stop signal: give one with SecondImage")
	return nil, ""
}

// text returns the text of that name in a JSON value, however deep.
func text(value any, name string) string {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			if found := text(item, name); found != "" {
				return found
			}
		}
	case map[string]any:
		if found, _ := v[name].(string); found != "" {
			return found
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if found := text(v[key], name); found != "" {
				return found
			}
		}
	}
	return ""
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
