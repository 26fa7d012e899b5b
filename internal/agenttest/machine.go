package agenttest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sublet-dev/agent"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
	"github.com/sublet-dev/agent/runtime/embedded"
	"github.com/sublet-dev/agent/runtime/embedded/simulated"
)

// Machine is a simulated runtime and a root directory on which agents run one after
// another. It is a Harness without sources, sink, faults and trace: the test gives these to
// each agent.
type Machine struct {
	// Root is the root directory of the agents.
	Root string
	// Client is the runtime of the agents. Boot replaces it.
	Client *cri.Client
	// Runtime is a connection to the runtime without the client. Boot replaces it.
	Runtime v1.RuntimeServiceClient

	t    *testing.T
	node node.Config
}

// OnMachine calls test in a bubble with a machine. Each agent has the node configuration,
// without cgroups. Agents must be stopped before test returns.
func OnMachine(t *testing.T, node node.Config, test func(t *testing.T, m *Machine)) {
	t.Helper()
	root := t.TempDir()
	node.DisableCgroups = true
	synctest.Test(t, func(t *testing.T) {
		m := &Machine{Root: root, t: t, node: node}
		defer m.Boot()()
		test(t, m)
	})
}

// Boot gives the machine an empty runtime, as after a power cut. The returned function
// closes the runtime.
func (m *Machine) Boot() (shutDown func()) {
	m.t.Helper()
	rt, err := embedded.New(embedded.Config{Executor: simulated.New(simulated.Config{})})
	require.NoError(m.t, err)
	conn, err := rt.Dial()
	require.NoError(m.t, err)
	m.Client, err = cri.New(conn, cri.Config{})
	require.NoError(m.t, err)
	m.Runtime = v1.NewRuntimeServiceClient(conn)
	return func() {
		assert.NoError(m.t, conn.Close())
		assert.NoError(m.t, rt.Close())
	}
}

// Process is one process of an agent on a Machine.
type Process struct {
	*agent.Agent
	stop func()
}

// Stop stops the agent. Its pods keep running.
func (p *Process) Stop() { p.stop() }

// Start starts an agent on the runtime of the machine.
func (m *Machine) Start(opts ...agent.Option) *Process {
	m.t.Helper()
	return m.StartOn(m.Client, opts...)
}

// StartOn starts an agent on a runtime, which decorates that of the machine.
func (m *Machine) StartOn(rt agent.Runtime, opts ...agent.Option) *Process {
	m.t.Helper()
	a, err := agent.New(append([]agent.Option{
		agent.WithNodeName("node"), agent.WithRootDir(m.Root), agent.WithRuntime(rt), agent.WithNode(m.node),
	}, opts...)...)
	require.NoError(m.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return &Process{a, func() {
		cancel()
		assert.NoError(m.t, <-done)
	}}
}

// Running returns the names of the pods of the running containers.
func (m *Machine) Running() []string {
	m.t.Helper()
	list, err := m.Runtime.ListContainers(m.t.Context(), &v1.ListContainersRequest{Filter: &v1.ContainerFilter{
		State: &v1.ContainerStateValue{State: v1.ContainerState_CONTAINER_RUNNING},
	}})
	require.NoError(m.t, err)
	names := []string{}
	for _, c := range list.GetContainers() {
		names = append(names, c.GetLabels()[runtime.LabelPodName])
	}
	return names
}

// StopContainers stops all containers without the agent.
func (m *Machine) StopContainers() {
	m.t.Helper()
	m.stopContainers(func(string) bool { return true })
}

// StopContainer stops the containers of that name without the agent.
func (m *Machine) StopContainer(name string) {
	m.t.Helper()
	m.stopContainers(func(other string) bool { return other == name })
}

func (m *Machine) stopContainers(chosen func(name string) bool) {
	m.t.Helper()
	list, err := m.Runtime.ListContainers(m.t.Context(), &v1.ListContainersRequest{})
	require.NoError(m.t, err)
	for _, c := range list.GetContainers() {
		if !chosen(c.GetMetadata().GetName()) {
			continue
		}
		_, err := m.Runtime.StopContainer(m.t.Context(), &v1.StopContainerRequest{ContainerId: c.GetId()})
		require.NoError(m.t, err)
	}
}
