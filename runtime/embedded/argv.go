package embedded

import (
	"errors"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Annotations of containers that kubelets set: the path of the termination message, and
// the grace period of the pod in seconds.
const (
	messagePath = "io.kubernetes.container.terminationMessagePath"
	gracePeriod = "io.kubernetes.pod.terminationGracePeriod"
)

// Argv returns the command line of the container: the pod's command and arguments,
// with the image's entrypoint and command where the pod has none.
func (c *Container) Argv() ([]string, error) {
	command, args := c.Config.GetCommand(), c.Config.GetArgs()
	if len(command) == 0 {
		command = c.Image.Entrypoint
		if len(args) == 0 {
			args = c.Image.Cmd
		}
	}
	argv := slices.Concat(command, args)
	if len(argv) == 0 {
		return nil, errors.New("no command: neither the container nor the record of its image has one")
	}
	return argv, nil
}

// Environ returns the environment of the container: the image's, overridden by the
// pod's.
func (c *Container) Environ() []string {
	var env []string
	index := map[string]int{}
	put := func(name, pair string) {
		if i, ok := index[name]; ok {
			env[i] = pair
			return
		}
		index[name] = len(env)
		env = append(env, pair)
	}
	for _, pair := range c.Image.Env {
		name, _, _ := strings.Cut(pair, "=")
		put(name, pair)
	}
	for _, e := range c.Config.GetEnvs() {
		put(e.GetKey(), e.GetKey()+"="+string(e.GetValue()))
	}
	return env
}

// IsTerminationMessage reports whether m is the file in which a container leaves the
// message that explains its exit. Kubelets mount it, and name its path in an annotation.
func (c *Container) IsTerminationMessage(m *v1.Mount) bool {
	file := c.Config.GetAnnotations()[messagePath]
	if file == "" {
		file = "/dev/termination-log"
	}
	return path.Clean(m.GetContainerPath()) == path.Clean(file)
}

// Dir returns the working directory of the pod or the image; "" for none.
func (c *Container) Dir() string {
	if d := c.Config.GetWorkingDir(); d != "" {
		return d
	}
	return c.Image.WorkingDir
}
