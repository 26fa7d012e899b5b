package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/podspec"
)

// The configuration of the package is valid, and the flags of its unit are flags.
func TestPackaging_Configuration(t *testing.T) {
	c, err := kubeletconfig.Load("packaging/config.yaml", "")
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	assert.Empty(t, c.Notices())
	text, err := os.ReadFile("packaging/nodeagent.default")
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(text), `NODEAGENT_FLAGS="`)
	require.True(t, ok)
	args := strings.Fields(strings.TrimSuffix(strings.TrimSpace(after), `"`))
	for i, a := range args {
		if a == "/etc/sublet/config.yaml" {
			args[i] = "packaging/config.yaml"
		}
	}
	_, err = parse(args, t.Output())
	require.NoError(t, err)
}

// The pod of the README is accepted by an agent that has nothing but a runtime.
func TestPodManifest(t *testing.T) {
	text, err := os.ReadFile("pod.yaml")
	require.NoError(t, err)
	pods, objects, err := podspec.Decode(text, podspec.DecodeOptions{})
	require.NoError(t, err)
	require.Len(t, pods, 1)
	assert.Empty(t, objects)
	assert.True(t, pods[0].Spec.HostNetwork, "the README says that it needs no CNI configuration")
	podspec.Default(pods[0])
	require.NoError(t, podspec.Validate(pods[0]))
	assert.Empty(t, podspec.Unsupported(pods[0]))
}

// The unit is what systemd understands, and no more exposed than its comment and the README say.
func TestPackaging_Unit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze, of the Debian package systemd")
	}
	unit, err := os.ReadFile("packaging/nodeagent.service")
	require.NoError(t, err)
	// 2 is how a Go program ends by a panic and by the SIGABRT of the watchdog: the unit must be restarted then.
	assert.Contains(t, string(unit), fmt.Sprintf("\nRestartPreventExitStatus=%d %d\n", exitOwnerID, exitUsage))
	file := filepath.Join(t.TempDir(), "nodeagent.service")
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(unit), "/usr/bin/nodeagent ", "/bin/true ", 1)), 0o600))
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.NotContains(t, string(out), "nodeagent.service:", string(out))
	out, err = exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=true", "--threshold=55", "--no-pager", file).CombinedOutput()
	assert.NoError(t, err, string(out))
}

// The capabilities of the unit suffice to tell the network namespaces of containers, which can have capabilities that the agent does not
// have: without that, nothing is known of the networks of pods.
func TestPackaging_UnitSeesNetworks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a network namespace")
	}
	unit, err := os.ReadFile("packaging/nodeagent.service")
	require.NoError(t, err)
	_, list, ok := strings.Cut(string(unit), "\nCapabilityBoundingSet=")
	require.True(t, ok)
	list, _, _ = strings.Cut(list, "\n")
	bounding := "-all"
	for name := range strings.FieldsSeq(list) {
		bounding += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	pod := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", "echo ready; exec sleep 1000")
	out, err := pod.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, pod.Start())
	t.Cleanup(func() { _ = pod.Wait() }) // its context has ended
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	link := fmt.Sprintf("/proc/%d/ns/net", pod.Process.Pid)
	want, err := os.Readlink(link)
	require.NoError(t, err)
	got, err := exec.CommandContext(t.Context(), "setpriv", "--bounding-set", bounding, "readlink", link).CombinedOutput()
	require.NoError(t, err)
	assert.Equal(t, want+"\n", string(got))
}

func TestPackaging_Deb(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb, of the Debian package dpkg")
	}
	script, err := filepath.Abs("packaging/deb.sh")
	require.NoError(t, err)
	dir := t.TempDir()
	binary := filepath.Join(dir, "binary")
	require.NoError(t, os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o600))
	build := func(sub string) []byte {
		dest := filepath.Join(dir, sub)
		require.NoError(t, os.Mkdir(dest, 0o700))
		cmd := exec.CommandContext(t.Context(), script, "v1.2.3", binary)
		cmd.Dir, cmd.Env = dest, append(os.Environ(), "GOARCH=arm64", "SOURCE_DATE_EPOCH=1700000000")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		deb, err := os.ReadFile(filepath.Join(dest, "nodeagent_1.2.3_arm64.deb"))
		require.NoError(t, err)
		return deb
	}
	assert.Equal(t, build("a"), build("b"), "the same input makes the same package")
	deb := filepath.Join(dir, "a", "nodeagent_1.2.3_arm64.deb")
	list, err := exec.CommandContext(t.Context(), "dpkg-deb", "-c", deb).Output()
	require.NoError(t, err)
	for _, line := range []string{"-rwxr-xr-x root/root", "./usr/bin/nodeagent", "./lib/systemd/system/nodeagent.service", "./etc/default/nodeagent", "./etc/sublet/config.yaml", "./etc/sublet/manifests/"} {
		assert.Contains(t, string(list), line)
	}
	info, err := exec.CommandContext(t.Context(), "dpkg-deb", "-I", deb, "control", "conffiles").Output()
	require.NoError(t, err)
	assert.Contains(t, string(info), "Version: 1.2.3\nArchitecture: arm64\n")
	assert.Contains(t, string(info), "/etc/sublet/config.yaml\n")
}
