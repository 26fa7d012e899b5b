package node

import (
	goruntime "runtime"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func mapFS(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func TestDetectInfo(t *testing.T) {
	info := DetectInfo(mapFS(map[string]string{
		"etc/machine-id": "0123\n", "sys/class/dmi/id/product_uuid": "ABCD-EF\n", "proc/sys/kernel/random/boot_id": "b00t\n",
		"proc/sys/kernel/osrelease": "6.12.0\n", "etc/os-release": "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n",
		"proc/meminfo": "MemTotal: 8 kB\nSwapTotal:  1024 kB\n",
	}))
	assert.Equal(t, "0123", info.MachineID)
	assert.Equal(t, "ABCD-EF", info.SystemUUID)
	assert.Equal(t, "b00t", info.BootID)
	assert.Equal(t, "6.12.0", info.KernelVersion)
	assert.Equal(t, "Debian GNU/Linux 13 (trixie)", info.OSImage)
	assert.Equal(t, goruntime.GOOS, info.OperatingSystem)
	assert.Equal(t, goruntime.GOARCH, info.Architecture)
	require.NotNil(t, info.Swap)
	assert.EqualValues(t, 1<<20, *info.Swap.Capacity)
}

func TestDetectInfo_Fallbacks(t *testing.T) {
	for name, tc := range map[string]struct {
		files                  map[string]string
		machine, system, image string
	}{
		"nothing can be read":            {nil, "", "", "Unknown"},
		"the id is that of D-Bus":        {map[string]string{"etc/machine-id": "\n", "var/lib/dbus/machine-id": "d"}, "d", "", "Unknown"},
		"the system has the machine id":  {map[string]string{"etc/machine-id": "m"}, "m", "m", "Unknown"},
		"the system is in a device tree": {map[string]string{"etc/machine-id": "m", "proc/device-tree/system-id": "tree\x00"}, "m", "tree", "Unknown"},
		"the name is not quoted":         {map[string]string{"usr/lib/os-release": "PRETTY_NAME=Edge\n"}, "", "", "Edge"},
		"the name is in single quotes":   {map[string]string{"etc/os-release": "PRETTY_NAME='Edge 1'\n"}, "", "", "Edge 1"},
		"the name is empty":              {map[string]string{"etc/os-release": "PRETTY_NAME=\"\"\n"}, "", "", "Unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			info := DetectInfo(mapFS(tc.files))
			assert.Equal(t, tc.machine, info.MachineID)
			assert.Equal(t, tc.system, info.SystemUUID)
			assert.Equal(t, tc.image, info.OSImage)
			assert.Nil(t, info.Swap)
		})
	}
}

func TestDetectInfo_UserNamespace(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n":  false,
		"         0       1000          1\n":  true,
		"         0          0      65536\n":  true,
		"0 1000 1\n1 100000 65536\n":          true,
		"0 0 65536\n65536 65536 4294901759\n": true,
		"":                                    true, // before ids are mapped
	} {
		got := DetectInfo(mapFS(map[string]string{"proc/self/uid_map": text})).RunningInUserNamespace
		require.NotNil(t, got, text)
		assert.Equal(t, want, *got, text)
	}
	got := DetectInfo(mapFS(nil)).RunningInUserNamespace
	require.NotNil(t, got, "the kernel has no user namespaces")
	assert.False(t, *got)
}
