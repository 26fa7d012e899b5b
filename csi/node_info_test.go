package csi

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/csitest"
)

// What the API server rejects of one driver would keep all of them from the CSINode.
func TestRegister_RejectsWhatTheClusterRejects(t *testing.T) {
	many := map[string]string{}
	for i := range maxTopology + 1 {
		many[fmt.Sprint("key", i)] = "v"
	}
	for name, tc := range map[string]struct {
		driver *csitest.Driver
		want   string // "": it is registered
	}{
		"a long node id":    {&csitest.Driver{Name: "two.example", NodeID: strings.Repeat("x", 257)}, "the node id has 257 bytes, at most 256"},
		"an invalid name":   {&csitest.Driver{Name: "two_example"}, "CSI driver two_example cannot be in the CSINode: name: a lowercase RFC 1123 subdomain must"},
		"no label":          {&csitest.Driver{Name: "two.example", Topology: map[string]string{"zone of mine": "a"}}, `topology "zone of mine": "a" is no label`},
		"no value":          {&csitest.Driver{Name: "two.example", Topology: map[string]string{"example/zone": "a b"}}, `topology "example/zone": "a b" is no label`},
		"too much":          {&csitest.Driver{Name: "two.example", Topology: many}, "the topology has 65 segments, at most 64"},
		"a contradiction":   {&csitest.Driver{Name: "two.example", NodeID: "elsewhere"}, `topology topology.csitest.example/node: the node is at "elsewhere", but at "node" according to CSI driver csitest.example`},
		"the same topology": {&csitest.Driver{Name: "Two.example", Topology: map[string]string{csitest.TopologyKey: "node", "zone": ""}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			node := new(blockingNode)
			e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Node = node })
			d := tc.driver
			d.Dir = filepath.Join(e.dir, "two")
			p := e.plugin()
			p.Name, p.Socket, p.Endpoint = d.Name, "/two", filepath.Join(e.dir, "two.sock")
			stop, err := d.Serve(p.Endpoint, "")
			require.NoError(t, err)
			defer stop(false)
			err = e.Register(t.Context(), p)
			if tc.want == "" {
				require.NoError(t, err)
				require.Equal(t, []string{"Two.example", csitest.Name}, node.drivers)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.Equal(t, []string{csitest.Name}, node.drivers)
			e.restart(nil) // without a cluster
			require.NoError(t, e.Register(t.Context(), p))
		})
	}
}

// A driver that says something else of the node than before, as after a move, replaces itself.
func TestRegister_ReplacesItsTopology(t *testing.T) {
	e := newEnv(t, func(_ *testEnv, cfg *Config) { cfg.Node = new(blockingNode) })
	e.stop(false)
	e.driver.NodeID = "moved"
	e.serve()
	require.Equal(t, map[string]string{csitest.TopologyKey: "moved"}, e.Topology())
}
