package main

import (
	"bytes"
	"context"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// leaveSocket leaves the file of a socket that has no listener, as a killed agent does.
func leaveSocket(t *testing.T, root string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(root, 0o700))
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketPath(root), Net: "unix"})
	require.NoError(t, err)
	stale.SetUnlinkOnClose(false)
	require.NoError(t, stale.Close())
}

// The commands show and change the pods of a running agent by its socket, which replaces
// the one of an agent that was killed.
func TestCommands(t *testing.T) {
	dir, err := os.MkdirTemp("", "na") //nolint:usetesting // a short path for the socket
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	root := filepath.Join(dir, "r")
	manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: {sim.sublet.dev/run-for: 1h}}\nspec: {containers: [{name: c, image: nginx:1}]}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(manifest), 0o600))
	f, err := parse([]string{"-root-dir", root, "-pod-logs-dir", filepath.Join(dir, "l"), "-manifests", dir, "-listen=", "-hostname-override", "n"}, &bytes.Buffer{})
	require.NoError(t, err)
	leaveSocket(t, root)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, f, &bytes.Buffer{}) }()
	command := func(name string, args ...string) (string, error) {
		var out bytes.Buffer
		err := runCommand(t.Context(), name, append(args, "-root-dir", root), strings.NewReader(""), &out, &out)
		return out.String(), err
	}
	require.Eventually(t, func() bool {
		out, err := command("get", "-o", "wide")
		return err == nil && strings.Contains(out, "web-n   1/1     Running")
	}, time.Minute, 50*time.Millisecond)
	info, err := os.Stat(socketPath(root))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	out, err := command("get", "pods", "web-n", "-o", "json")
	require.NoError(t, err)
	assert.Contains(t, out, `"name": "web-n"`)
	_, err = command("logs", "web-n", "-p", "-c", "c", "--tail", "3")
	require.ErrorContains(t, err, "previous terminated container")
	for _, args := range [][]string{{"exec", "-root-dir", root, "web-n", "--", "ls"}, {"attach", "web-n"}, {"port-forward", "web-n", "0:80"}} {
		_, err := command(args[0], args[1:]...)
		require.ErrorContains(t, err, "pods are simulated", "%s", args)
	}
	out, err = command("restart", "web-n")
	require.NoError(t, err)
	assert.Equal(t, "pod default/web-n restarted\n", out)
	out, err = command("drain", "--grace-period", "1s")
	require.NoError(t, err)
	assert.Equal(t, "node drained\n", out)
	out, err = command("get", "web-n", "-o", "json")
	require.NoError(t, err)
	assert.Contains(t, out, "The node was drained by request", "also right after the restart")
	for want, args := range map[string][]string{
		"nodeagent get without a name lists all": {"get", "none"},
		"must be json, yaml or wide":             {"get", "-o", "x"},
		"nodeagent get lists the pods":           {"logs", "none"},
		"not found on this node":                 {"evict", "none"},
		"pod and command required":               {"exec", "web-n"},
		"invalid port":                           {"port-forward", "web-n", "x"},
		"evict does":                             {"drain", "web-n"},
		"pod required":                           {"attach"},
	} {
		_, err := command(args[0], args[1:]...)
		require.ErrorContains(t, err, want)
	}
	cancel()
	require.NoError(t, <-done)
	_, err = os.Stat(socketPath(root))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = command("get")
	require.ErrorContains(t, err, "is the agent running")
}

func TestParseInterleaved(t *testing.T) {
	var out bytes.Buffer
	err := runCommand(t.Context(), "logs", []string{"-x"}, nil, &out, &out)
	require.ErrorContains(t, err, "not defined: -x; see nodeagent logs -help")
	require.Empty(t, out.String(), "execute prints the error, once")
	require.ErrorIs(t, runCommand(t.Context(), "logs", []string{"web", "-help"}, nil, &out, &out), flag.ErrHelp)
	assert.Contains(t, out.String(), "usage: nodeagent logs POD")
	assert.Contains(t, out.String(), "-tail")
}
