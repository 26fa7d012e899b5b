package kubeletconfig_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/kubeletconfig"
)

const header = `{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration"`

// nested returns a configuration with one field.
func nested(path, value string) string {
	for i := len(strings.Split(path, ".")) - 1; i > 0; i-- {
		cut := strings.LastIndex(path, ".")
		path, value = path[:cut], `{"`+path[cut+1:]+`":`+value+`}`
	}
	return header + `,"` + path + `":` + value + `}`
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Configurations of nodes that exist start unchanged.
func TestLoad_NodesThatExist(t *testing.T) {
	for name, notices := range map[string][]string{
		"kubeadm.yaml": {"logging.options has no effect"},
		"cloud.json":   {"featureGates[RotateKubeletServerCertificate] has no effect", "hairpinMode has no effect", "protectKernelDefaults has no effect", "systemReservedCgroup has no effect", "kubeReservedCgroup has no effect"},
		"edge.yaml":    {"rotateCertificates has no effect", "serverTLSBootstrap has no effect", "volumePluginDir has no effect", "featureGates[APIPriorityAndFairness]", "featureGates[DownwardAPIHugePages]", "featureGates[PodSecurity]", "featureGates[RotateKubeletServerCertificate]"},
	} {
		c, err := kubeletconfig.Load(filepath.Join("testdata", name), "")
		require.NoError(t, err, name)
		require.NoError(t, c.Validate(), name)
		all := strings.Join(c.Notices(), "\n")
		assert.Len(t, c.Notices(), len(notices), all)
		for _, n := range notices {
			assert.Contains(t, all, n, name)
		}
	}
}

func TestLoad_DropIns(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "15-site"), 0o700))
	for name, fields := range map[string]string{
		"10-a.conf":         `"maxPods":20,"clusterDNS":["10.0.0.1"],"evictionHard":{"memory.available":"1Gi"}`,
		"15-site/a.conf":    `"maxPods":25`,
		"20-b.conf":         `"maxPods":30,"syncFrequency":null,"evictionHard":{"nodefs.available":null,"imagefs.available":"3%"}`,
		"30-not-a-dropin.x": `"maxPods":40`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(header+","+fields+"}"), 0o600))
	}
	main := file(t, "kubelet.yaml", header+`,"maxPods":10,"syncFrequency":"5s","clusterDNS":["1.1.1.1","2.2.2.2"],"evictionHard":{"nodefs.available":"5%"}}`)
	c, err := kubeletconfig.Load(main, dir)
	require.NoError(t, err)
	k := c.Kubelet()
	assert.Equal(t, int32(30), k.MaxPods)
	assert.Equal(t, []string{"10.0.0.1"}, k.ClusterDNS, "lists are replaced")
	assert.Equal(t, map[string]string{"memory.available": "1Gi", "imagefs.available": "3%"}, k.EvictionHard, "maps are merged")
	assert.Equal(t, time.Minute, k.SyncFrequency.Duration, "null is the default")
	assert.False(t, c.Given("syncFrequency"))
	assert.True(t, c.Given("maxPods"))

	k.ClusterDNS[0] = "changed"
	assert.Equal(t, []string{"10.0.0.1"}, c.Kubelet().ClusterDNS, "the caller owns the result")
}

// Drop-in files change the defaults of the main file, as those of a kubelet do.
func TestLoad_DropInsOverDefaults(t *testing.T) {
	defaults := kubeletconfig.Default().Kubelet().EvictionHard
	for fields, want := range map[string]struct {
		drop   string
		memory string // the threshold; "": none
		others bool   // the other default thresholds are there
		report time.Duration
	}{
		``:                                   {`"evictionHard":{"memory.available":"200Mi"},"nodeStatusUpdateFrequency":"4s"`, "200Mi", true, 5 * time.Minute},
		`,"maxPods":1`:                       {`"evictionHard":{}`, "100Mi", true, 5 * time.Minute},
		`,"maxPods":2`:                       {`"evictionHard":{"memory.available":null}`, "", true, 5 * time.Minute},
		`,"maxPods":3`:                       {`"evictionHard":null`, "100Mi", true, 5 * time.Minute},
		`,"evictionHard":{}`:                 {`"evictionHard":{"memory.available":"200Mi"}`, "200Mi", false, 5 * time.Minute},
		`,"evictionHard":null`:               {`"maxPods":1`, "100Mi", true, 5 * time.Minute},
		`,"syncFrequency":"30s"`:             {`"nodeStatusReportFrequency":"1m"`, "100Mi", true, time.Minute},
		`,"nodeStatusUpdateFrequency":"20s"`: {`"nodeStatusUpdateFrequency":"4s"`, "100Mi", true, 20 * time.Second},
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a.conf"), []byte(header+","+want.drop+"}"), 0o600))
		c, err := kubeletconfig.Load(file(t, "kubelet.yaml", header+fields+"}"), dir)
		require.NoError(t, err, fields)
		k := c.Kubelet()
		assert.Equal(t, want.memory, k.EvictionHard["memory.available"], "%s then %s", fields, want.drop)
		assert.Equal(t, want.others, k.EvictionHard["nodefs.available"] == defaults["nodefs.available"], "%s then %s", fields, want.drop)
		assert.Equal(t, want.report, k.NodeStatusReportFrequency.Duration, "%s then %s", fields, want.drop)
		assert.Equal(t, strings.Contains(fields, "evictionHard\":{") || strings.Contains(want.drop, "evictionHard\":{"), c.Given("evictionHard"))
	}
}

func TestLoad_RelativePaths(t *testing.T) {
	path := file(t, "kubelet.yaml", header+`,"staticPodPath":"manifests","tlsCertFile":"/abs/cert","authentication":{"x509":{"clientCAFile":"ca.crt"}}}`)
	c, err := kubeletconfig.Load(path, "")
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(filepath.Dir(path), "manifests"), c.Kubelet().StaticPodPath)
	assert.Equal(t, filepath.Join(filepath.Dir(path), "ca.crt"), c.Kubelet().Authentication.X509.ClientCAFile)
	assert.Equal(t, "/abs/cert", c.Kubelet().TLSCertFile)
	assert.Empty(t, c.Kubelet().TLSPrivateKeyFile)
}

func TestLoad_BadFiles(t *testing.T) {
	for text, want := range map[string]string{
		"":                       `apiVersion "" and kind ""`,
		"a: b":                   `apiVersion "" and kind ""`,
		header + `,"maxpods":1}`: "unknown fields: maxpods; names are case-sensitive",
		header + `,"authentication":{"x509":{"clientCafile":"a"}}}`:        "unknown fields: authentication.x509.clientCafile",
		header + `,"maxPods":"many"}`:                                      "maxPods: want int32, is string",
		header + `,"memorySwap":{"swapBehavior":5}}`:                       "memorySwap.swapBehavior: want string, is number",
		header + `,"shutdownGracePeriodByPodPriority":[{"priorities":1}]}`: `shutdownGracePeriodByPodPriority: json: unknown field "priorities"`,
		header + `,"syncFrequency":"1y","maxPods":"many","maxpods":1}`: "unknown fields: maxpods; names are case-sensitive\nmaxPods: want int32, is string\n" +
			`syncFrequency: time: unknown unit "y" in duration "1y"`,
		"apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration":                         `apiVersion "kubelet.config.k8s.io/v1"`,
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Pod":                                     `kind "Pod"`,
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: 1\nport: 2":  "already set",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\tport: 1":         "not a KubeletConfiguration",
		header + "}" + strings.Repeat(" ", 1<<20):                                                  "larger than",
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nsyncFrequency: 1y": `syncFrequency: time: unknown unit "y" in duration "1y"`,
	} {
		path := file(t, "kubelet.yaml", text)
		_, err := kubeletconfig.Load(path, "")
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path, "the file is named")
	}
	_, err := kubeletconfig.Load("/no/such/file", "")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = kubeletconfig.Load("", "/no/such/dir")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzLoad(f *testing.F) {
	for _, name := range []string{"kubeadm.yaml", "cloud.json", "edge.yaml"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "kubelet.yaml")
		require.NoError(t, os.WriteFile(path, text, 0o600))
		c, err := kubeletconfig.Load(path, "")
		if err != nil {
			return
		}
		_ = c.Notices()
		if c.Validate() == nil {
			if _, err = c.Settings(capacity()); err != nil {
				require.ErrorContains(t, err, "resources of this node", "what is valid has settings, if the node is large enough")
			}
		}
	})
}

// A file that changes how soon the status of the Node is updated changes how often it is sent, too.
func TestLoad_NodeStatusReportFrequency(t *testing.T) {
	for fields, want := range map[string][]time.Duration{
		``: {10 * time.Second, 5 * time.Minute},
		`,"nodeStatusUpdateFrequency":"0s","nodeStatusReportFrequency":"0s"`:  {10 * time.Second, 5 * time.Minute},
		`,"nodeStatusUpdateFrequency":"20s"`:                                  {20 * time.Second, 20 * time.Second},
		`,"nodeStatusReportFrequency":"1m"`:                                   {10 * time.Second, time.Minute},
		`,"nodeStatusUpdateFrequency":"4s","nodeStatusReportFrequency":"10m"`: {4 * time.Second, 10 * time.Minute},
	} {
		c, err := kubeletconfig.Load(file(t, "config.json", header+fields+"}"), "")
		require.NoError(t, err)
		k := c.Kubelet()
		assert.Equal(t, want, []time.Duration{k.NodeStatusUpdateFrequency.Duration, k.NodeStatusReportFrequency.Duration}, fields)
		require.NoError(t, c.Set("node-status-update-frequency", "3s"))
		assert.Equal(t, want[1], c.Kubelet().NodeStatusReportFrequency.Duration, "a flag does not")
	}
}
