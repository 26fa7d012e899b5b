package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cdiSpec is a CDI specification of one device, which sets a variable and has a device node.
const cdiSpec = `{"cdiVersion": "0.5.0", "kind": "%s", "devices": [{"name": "one", "containerEdits": {
  "env": ["SUBLET_TEST_DEVICE=one"], "deviceNodes": [{"path": "/dev/sublet-test-cdi", "hostPath": "/dev/null"}]}}]}
`

func cdiCases() []testCase {
	withDevice := func(name string) containerEdit {
		return func(cfg *v1.ContainerConfig) { cfg.CDIDevices = []*v1.CDIDevice{{Name: name}} }
	}
	return []testCase{
		{"a container has its CDI devices", "devices of DRA drivers and of device plug-ins would be missing", confinement | cdiSpecs, func(c *CaseT) {
			kind := "sublet.dev/test" + c.s.id
			file := filepath.Join(c.s.cdi, "sublet-test-"+c.s.id+".json")
			c.ok(os.MkdirAll(c.s.cdi, 0o755), "make the directory of CDI specifications")
			c.ok(os.WriteFile(file, fmt.Appendf(nil, cdiSpec, kind), 0o644), "write a CDI specification") //nolint:gosec // the runtime may be another user
			defer func() { _ = os.Remove(file) }()                                                        // it is of this case
			p := c.pod("p")
			id := p.start("c", longRunTime, withDevice(kind+"=one"))
			same(c, "one", c.commandOutput(id, sh("echo $SUBLET_TEST_DEVICE")...), "CDI_devices: variable of the device in the container")
			same(c, "there", c.commandOutput(id, sh("[ -c /dev/sublet-test-cdi ] && echo there || echo missing")...), "CDI_devices: node of the device in the container")
		}},
		{"a container of an unknown CDI device is refused", "a pod would run without the device that it was given", confinement | cdiSpecs, func(c *CaseT) {
			p := c.pod("p")
			err := p.tryStart(p.containerConfig("c", sh(longRunTime), withDevice("sublet.dev/test=unknown")))
			c.rejected(err, "CDI_devices: a container with an unknown device")
		}},
	}
}
