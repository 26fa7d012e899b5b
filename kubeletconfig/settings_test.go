package kubeletconfig_test

import (
	"crypto/tls"
	"flag"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sublet-dev/agent/cgroup"
	"github.com/sublet-dev/agent/eviction"
	"github.com/sublet-dev/agent/imagegc"
	"github.com/sublet-dev/agent/kubeletconfig"
	"github.com/sublet-dev/agent/node"
	"github.com/sublet-dev/agent/nodeshutdown"
	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
	"github.com/sublet-dev/agent/runtime/cri"
)

func capacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"), node.ResourcePIDs: resource.MustParse("32768"),
	}
}

// with returns a configuration with flags of a kubelet.
func with(t *testing.T, flags ...string) *kubeletconfig.Config {
	t.Helper()
	c := kubeletconfig.Default()
	require.NoError(t, apply(c, flags...))
	return c
}

func apply(c *kubeletconfig.Config, args ...string) error {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	given := kubeletconfig.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	return given.Apply(c)
}

func settings(t *testing.T, c *kubeletconfig.Config) kubeletconfig.Settings {
	t.Helper()
	s, err := c.Settings(capacity())
	require.NoError(t, err)
	return s
}

func TestSettings_OfACloud(t *testing.T) {
	c, err := kubeletconfig.Load(filepath.Join("testdata", "cloud.json"), "")
	require.NoError(t, err)
	s := settings(t, c)
	assert.Equal(t, 29, s.Node.MaxPods)
	assert.Equal(t, cgroup.Driver("systemd"), s.Node.CgroupDriver)
	assert.Equal(t, []string{"10.100.0.10"}, s.Node.ClusterDNS)
	assert.Equal(t, "1930m", s.Node.Allocatable.Cpu().String())
	assert.Equal(t, int64(8<<30-442<<20-100<<20), s.Node.Allocatable.Memory().Value())
	assert.Equal(t, int64(8<<30-442<<20), s.Node.PodsCgroupLimits.Memory().Value())
	assert.Equal(t, math.MaxInt32, s.CRI.Pulls.MaxParallel)
	assert.Len(t, s.Eviction.Thresholds, 3)
	encrypted, err := c.TLS()
	require.NoError(t, err)
	assert.Len(t, encrypted.CipherSuites, 4)
	assert.Equal(t, int64(10<<20), s.LogRotation.MaxSize)
}

// An edge distribution leaves cgroups to the runtime.
func TestSettings_WithoutCgroups(t *testing.T) {
	c, err := kubeletconfig.Load(filepath.Join("testdata", "edge.yaml"), "")
	require.NoError(t, err)
	s := settings(t, c)
	assert.True(t, s.Node.DisableCgroups)
	assert.Empty(t, s.Node.EffectivePodsCgroupLimits())
	require.NoError(t, s.Node.Check())
}

func TestSettings_NoBoundOnProcesses(t *testing.T) {
	for _, limit := range []string{"-1", "0"} {
		assert.Zero(t, settings(t, with(t, "-pod-max-pids="+limit)).Node.PodPidsLimit, limit)
	}
}

// Each flag changes what its field decides.
func TestSettings_ByFlag(t *testing.T) {
	for args, check := range map[string]func(s kubeletconfig.Settings) any{
		"-enforce-node-allocatable=none -kube-reserved=cpu=500m,memory=1Gi": func(s kubeletconfig.Settings) any {
			l := s.Node.EffectivePodsCgroupLimits() // the weight of all CPUs, and no limit below what there is
			return len(l) == 2 && l.Cpu().Cmp(*s.Node.Capacity.Cpu()) == 0 && l.Memory().Cmp(*s.Node.Capacity.Memory()) == 0
		},
		"-max-pods=7":                                       func(s kubeletconfig.Settings) any { return s.Node.MaxPods == 7 },
		"-pods-per-core=3":                                  func(s kubeletconfig.Settings) any { return s.Node.MaxPods == 6 },
		"-node-status-max-images=7":                         func(s kubeletconfig.Settings) any { return s.Node.MaxImages == 7 },
		"-node-status-max-images=-1":                        func(s kubeletconfig.Settings) any { return s.Node.MaxImages == node.AllImages },
		"-node-status-max-images=0":                         func(s kubeletconfig.Settings) any { return s.Node.MaxImages == node.NoImages },
		"-pod-max-pids=100":                                 func(s kubeletconfig.Settings) any { return s.Node.PodPidsLimit == 100 },
		"-cgroup-root=/edge":                                func(s kubeletconfig.Settings) any { return s.Node.CgroupRoot == "/edge" },
		"-allowed-unsafe-sysctls=net.a,net.b.*":             func(s kubeletconfig.Settings) any { return len(s.Node.AllowedUnsafeSysctls) == 2 },
		"-resolv-conf=/run/r":                               func(s kubeletconfig.Settings) any { return s.Node.ResolvConf == "/run/r" },
		"-cluster-dns=1.1.1.1 -cluster-dns=2.2.2.2":         func(s kubeletconfig.Settings) any { return len(s.Node.ClusterDNS) == 2 },
		"-cluster-domain=c.l":                               func(s kubeletconfig.Settings) any { return s.Node.ClusterDomain == "c.l" },
		"-kube-reserved=cpu=500m -system-reserved=cpu=500m": func(s kubeletconfig.Settings) any { return s.Node.Allocatable.Cpu().MilliValue() == 1000 },
		"-reserved-cpus=0 -kube-reserved=cpu=500m -system-reserved=cpu=700m": func(s kubeletconfig.Settings) any { return s.Node.Allocatable.Cpu().MilliValue() == 1000 },
		"-sync-frequency=7s":                func(s kubeletconfig.Settings) any { return s.PodWorkers.ResyncPeriod == 7*time.Second },
		"-seccomp-default":                  func(s kubeletconfig.Settings) any { return s.CRI.Node.SeccompDefault },
		"-cpu-cfs-quota=false":              func(s kubeletconfig.Settings) any { return s.CRI.Node.NoCPUQuota },
		"-cpu-cfs-quota-period=50ms":        func(s kubeletconfig.Settings) any { return s.CRI.Node.CPUQuotaPeriod == 50*time.Millisecond },
		"-runtime-request-timeout=9s":       func(s kubeletconfig.Settings) any { return s.CRI.Timeout == 9*time.Second },
		"-serialize-image-pulls":            func(s kubeletconfig.Settings) any { return s.CRI.Pulls.MaxParallel == 1 },
		"-registry-qps=0 -registry-burst=3": func(s kubeletconfig.Settings) any { return s.CRI.Pulls.QPS < 0 && s.CRI.Pulls.Burst == 3 },
		"-image-gc-high-threshold=70 -image-gc-low-threshold=0": func(s kubeletconfig.Settings) any {
			return s.ImageGC.Policy == imagegc.Policy{HighThresholdPercent: 70, LowThresholdPercent: 1, MinAge: 2 * time.Minute}
		},
		"-minimum-image-ttl-duration=0s":          func(s kubeletconfig.Settings) any { return s.ImageGC.Policy.MinAge < 0 },
		"-container-log-max-size=1Ki":             func(s kubeletconfig.Settings) any { return s.LogRotation.MaxSize == 1024 },
		"-container-log-max-size=1.5Mi":           func(s kubeletconfig.Settings) any { return s.LogRotation.MaxSize == 3<<19 },
		"-container-log-max-size=-1":              func(s kubeletconfig.Settings) any { return s.LogRotation.MaxSize == -1 },
		"-container-log-max-files=9":              func(s kubeletconfig.Settings) any { return s.LogRotation.MaxFiles == 9 },
		"-eviction-max-pod-grace-period=20":       func(s kubeletconfig.Settings) any { return s.Eviction.MaxPodGracePeriod == 20*time.Second },
		"-eviction-pressure-transition-period=3s": func(s kubeletconfig.Settings) any { return s.Eviction.PressureTransitionPeriod == 3*time.Second },
		"-feature-gates=ReduceDefaultCrashLoopBackOffDecay=true": func(s kubeletconfig.Settings) any {
			return s.PodSync.BackOff == runtime.ExponentialBackOff{Base: time.Second, Max: time.Minute}
		},
		"-feature-gates=KubeletEnsureSecretPulledImages=false": func(s kubeletconfig.Settings) any { return s.CRI.ImageAccess.Policy == cri.NeverVerify },
		"-eviction-hard=memory.available<1Gi -eviction-soft=nodefs.available<20% -eviction-soft-grace-period=nodefs.available=1m -eviction-minimum-reclaim=memory.available=1Mi": func(s kubeletconfig.Settings) any {
			want, err := eviction.ParseThresholds("memory.available<1Gi", "nodefs.available<20%", "nodefs.available=1m", "memory.available=1Mi")
			return err == nil && assert.ObjectsAreEqual(want, s.Eviction.Thresholds)
		},
		"-eviction-hard=memory.available<1Gi,memory.psi.some.avg10>20% -eviction-soft=memory.psi.full.avg10>5% -eviction-soft-grace-period=memory.psi.full.avg10=1m": func(s kubeletconfig.Settings) any {
			want, err := eviction.ParseThresholds("memory.available<1Gi,memory.psi.some.avg10>20%", "memory.psi.full.avg10>5%", "memory.psi.full.avg10=1m", "")
			return err == nil && assert.ObjectsAreEqual(want, s.Eviction.Thresholds)
		},
		"-eviction-hard=none": func(s kubeletconfig.Settings) any {
			return s.Eviction.Thresholds != nil && len(s.Eviction.Thresholds) == 0
		},
		"-eviction-hard=": func(s kubeletconfig.Settings) any {
			return s.Eviction.Thresholds != nil && len(s.Eviction.Thresholds) == 0
		},
	} {
		assert.Equal(t, false, check(settings(t, kubeletconfig.Default())), "%s: is the default", args)
		assert.Equal(t, true, check(settings(t, with(t, strings.Fields(args)...))), args)
	}
}

// Fields that no flag sets.
func TestSettings_ByFile(t *testing.T) {
	c, err := kubeletconfig.Load(file(t, "k.yaml", header+`,"maxParallelImagePulls":5,"imageMaximumGCAge":"24h","containerLogMaxWorkers":3,"containerLogMonitorInterval":"4s",
		"memorySwap":{"swapBehavior":"LimitedSwap"},"crashLoopBackOff":{"maxContainerRestartPeriod":"30s"},"tlsCurvePreferences":[29],"tlsMinVersion":"VersionTLS13",
		"imagePullCredentialsVerificationPolicy":"NeverVerifyAllowlistedImages","preloadedImagesVerificationAllowlist":["a/*"],
		"mergeDefaultEvictionSettings":true,"evictionHard":{"memory.available":"1Gi"}}`), "")
	require.NoError(t, err)
	s := settings(t, c)
	assert.Equal(t, 5, s.CRI.Pulls.MaxParallel)
	assert.Equal(t, 24*time.Hour, s.ImageGC.Policy.MaxAge)
	assert.Equal(t, 3, s.LogRotation.MaxWorkers)
	assert.Equal(t, 4*time.Second, s.LogRotation.MonitorInterval)
	assert.Equal(t, cri.LimitedSwap, s.CRI.Node.Swap)
	assert.Equal(t, runtime.ExponentialBackOff{Max: 30 * time.Second}, s.PodSync.BackOff)
	encrypted, err := c.TLS()
	require.NoError(t, err)
	assert.Equal(t, []tls.CurveID{tls.X25519}, encrypted.CurvePreferences)
	assert.Equal(t, uint16(tls.VersionTLS13), encrypted.MinVersion)
	assert.Equal(t, cri.ImageAccess{Policy: cri.NeverVerifyAllowlistedImages, Allowlist: []string{"a/*"}}, s.CRI.ImageAccess)
	want, err := eviction.ParseThresholds(strings.Replace(eviction.DefaultHardThresholds, "memory.available<100Mi", "memory.available<1Gi", 1), "", "", "")
	require.NoError(t, err)
	assert.ElementsMatch(t, want, s.Eviction.Thresholds)
}

// Gates of a flag are added to those of the file.
func TestFlags_FeatureGates(t *testing.T) {
	c, err := kubeletconfig.Load(file(t, "k.yaml", header+`,"featureGates":{"GracefulNodeShutdown":false,"MemoryQoS":false}}`), "")
	require.NoError(t, err)
	require.NoError(t, apply(c, "-feature-gates=MemoryQoS=true,ReduceDefaultCrashLoopBackOffDecay=true", "-feature-gates=Other=true"))
	assert.Equal(t, map[string]bool{
		"GracefulNodeShutdown": false, "MemoryQoS": true, "ReduceDefaultCrashLoopBackOffDecay": true, "Other": true,
	}, c.Kubelet().FeatureGates)
	require.NoError(t, apply(c, "-feature-gates="))
	assert.Len(t, c.Kubelet().FeatureGates, 4)
}

// A flag replaces what the file says.
func TestFlags_OverTheFile(t *testing.T) {
	c, err := kubeletconfig.Load(file(t, "k.yaml", header+`,"maxPods":10,"podsPerCore":4,"clusterDNS":["1.1.1.1"]}`), "")
	require.NoError(t, err)
	require.NoError(t, apply(c, "-max-pods=20", "-cluster-dns=2.2.2.2"))
	assert.Equal(t, int32(20), c.Kubelet().MaxPods)
	assert.Equal(t, int32(4), c.Kubelet().PodsPerCore)
	assert.Equal(t, []string{"2.2.2.2"}, c.Kubelet().ClusterDNS)
}

func TestFlags_Bad(t *testing.T) {
	for args, want := range map[string]string{
		"-max-pods=many":                     `-max-pods: "many" must be a whole number`,
		"-cpu-cfs-quota=perhaps":             `-cpu-cfs-quota: "perhaps" must be true or false`,
		"-v=-1":                              "-v: ",
		"-sync-frequency=soon":               "-sync-frequency: ",
		"-kube-reserved=cpu":                 `-kube-reserved: entry "cpu" must be name=value`,
		"-feature-gates=A=b":                 `-feature-gates: entry "A=b"`,
		"-register-with-taints=a=b:Never":    `-register-with-taints: "a=b:Never" must be key=value:effect`,
		"-register-with-taints==b:NoExecute": "the key is empty",
		"-manifest-url-header=secret":        "-manifest-url-header: entry 1 must be name:value",
		"-max-pods=a -pod-max-pids=b":        "-pod-max-pids",
	} {
		err := apply(kubeletconfig.Default(), strings.Fields(args)...)
		require.ErrorContains(t, err, want, args)
		assert.NotContains(t, err.Error(), "secret", "a header may be a credential")
	}
	require.ErrorIs(t, kubeletconfig.Default().Set("no-such-flag", "1"), kubeletconfig.ErrUnknownFlag)
	require.NoError(t, kubeletconfig.Default().Set("vmodule", "a=1"), "nothing depends on it")
}

func TestFlags_EmptyEntries(t *testing.T) {
	k := with(t, "-kube-reserved=cpu=1,,memory=1Gi,", "-eviction-hard=memory.available<1Gi,", "-feature-gates=,MemoryQoS=true", "-manifest-url-header=", "-manifest-url-header=A:b,").Kubelet()
	assert.Equal(t, map[string]string{"cpu": "1", "memory": "1Gi"}, k.KubeReserved)
	assert.Equal(t, map[string]string{"memory.available": "1Gi"}, k.EvictionHard)
	assert.Equal(t, map[string]bool{"MemoryQoS": true}, k.FeatureGates)
	assert.Equal(t, map[string][]string{"A": {"b"}}, k.StaticPodURLHeader)
}

func TestFlags_Forms(t *testing.T) {
	k := with(t, "-manifest-url-header=A:b,A:c,D: e", "-register-with-taints=k=v:NoSchedule,x:NoExecute", "-log-flush-frequency=3s", "-enable-server").Kubelet()
	assert.Equal(t, map[string][]string{"A": {"b", "c"}, "D": {"e"}}, k.StaticPodURLHeader)
	assert.Equal(t, []corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}, {Key: "x", Effect: corev1.TaintEffectNoExecute}}, k.RegisterWithTaints)
	assert.Equal(t, 3*time.Second, k.Logging.FlushFrequency.Duration.Duration)
	assert.True(t, *k.EnableServer)
}

func TestValidate_BadValues(t *testing.T) {
	for fields, want := range map[string]string{
		`"port":70000`:                                                          "port: 70000 must be from 1 to 65535",
		`"healthzPort":-1`:                                                      "healthzPort: -1",
		`"healthzBindAddress":"0.0.0.0"`:                                        "healthzBindAddress: \"0.0.0.0\" must be a loopback address",
		`"address":"node"`:                                                      "address: \"node\" is not an IP",
		`"clusterDNS":["dns"]`:                                                  "clusterDNS: \"dns\"",
		`"oomScoreAdj":-1001`:                                                   "oomScoreAdj: -1001",
		`"maxPods":-1`:                                                          "maxPods: -1",
		`"podsPerCore":-1`:                                                      "podsPerCore: -1",
		`"registryPullQPS":-1`:                                                  "registryPullQPS: -1",
		`"registryBurst":-1`:                                                    "registryBurst: -1",
		`"kubeAPIQPS":-1`:                                                       "kubeAPIQPS: -1",
		`"kubeAPIBurst":-1`:                                                     "kubeAPIBurst: -1",
		`"eventRecordQPS":-1`:                                                   "eventRecordQPS: -1",
		`"eventBurst":-1`:                                                       "eventBurst: -1",
		`"nodeStatusMaxImages":-2`:                                              "nodeStatusMaxImages: -2",
		`"nodeStatusUpdateFrequency":"10ms"`:                                    "nodeStatusUpdateFrequency: 10ms must be at least 1s",
		`"nodeStatusReportFrequency":"-1s"`:                                     "nodeStatusReportFrequency: -1s must be at least 1s",
		`"nodeLeaseDurationSeconds":-1`:                                         "nodeLeaseDurationSeconds: -1",
		`"containerLogMaxFiles":1`:                                              "containerLogMaxFiles: 1",
		`"containerLogMaxWorkers":0`:                                            "containerLogMaxWorkers: 0",
		`"imageGCHighThresholdPercent":101`:                                     "imageGCHighThresholdPercent: 101",
		`"imageGCLowThresholdPercent":-1`:                                       "imageGCLowThresholdPercent: -1",
		`"imageGCLowThresholdPercent":85`:                                       "imageGCLowThresholdPercent: 85 must be below",
		`"syncFrequency":"-1s"`:                                                 "syncFrequency: -1s",
		`"runtimeRequestTimeout":"-1s"`:                                         "runtimeRequestTimeout: -1s",
		`"imageMinimumGCAge":"-1s"`:                                             "imageMinimumGCAge: -1s",
		`"imageMaximumGCAge":"2m"`:                                              "imageMaximumGCAge: 2m0s must be 0 or above",
		`"cpuCFSQuotaPeriod":"2s"`:                                              "cpuCFSQuotaPeriod: 2s",
		`"containerLogMonitorInterval":"2s"`:                                    "containerLogMonitorInterval: 2s",
		`"crashLoopBackOff":{"maxContainerRestartPeriod":"6m"}`:                 "crashLoopBackOff.maxContainerRestartPeriod: 6m0s",
		`"tlsCertFile":"/a"`:                                                    "tlsCertFile and tlsPrivateKeyFile",
		`"tlsMinVersion":"VersionTLS10"`:                                        "tlsMinVersion: \"VersionTLS10\"",
		`"tlsCipherSuites":["TLS_RSA_WITH_RC4_128_SHA"]`:                        "tlsCipherSuites: \"TLS_RSA_WITH_RC4_128_SHA\" is unknown or insecure",
		`"tlsCurvePreferences":[0]`:                                             "tlsCurvePreferences: 0",
		`"authorization":{"mode":"ABAC"}`:                                       "authorization.mode: \"ABAC\"",
		`"containerRuntimeEndpoint":"/run/c.sock"`:                              "containerRuntimeEndpoint: \"/run/c.sock\" must be unix:///",
		`"imageServiceEndpoint":"tcp://1"`:                                      "imageServiceEndpoint: ",
		`"maxParallelImagePulls":0`:                                             "maxParallelImagePulls: must be at least 1",
		`"maxParallelImagePulls":2,"serializeImagePulls":true`:                  "maxParallelImagePulls: 2 needs",
		`"containerLogMaxSize":"big"`:                                           "containerLogMaxSize: \"big\"",
		`"containerLogMaxSize":"0"`:                                             "containerLogMaxSize: \"0\"",
		`"containerLogMaxSize":"100m"`:                                          "containerLogMaxSize: \"100m\" must be a size in bytes",
		`"resolvConf":""`:                                                       "resolvConf: must not be empty",
		`"imagePullCredentialsVerificationPolicy":"Maybe"`:                      "imagePullCredentialsVerificationPolicy: \"Maybe\"",
		`"preloadedImagesVerificationAllowlist":["a"]`:                          "preloadedImagesVerificationAllowlist: needs",
		`"memorySwap":{"swapBehavior":"UnlimitedSwap"}`:                         "memorySwap.swapBehavior: \"UnlimitedSwap\"",
		`"enforceNodeAllocatable":["pods","pods"]`:                              "enforceNodeAllocatable: \"pods\" is given twice",
		`"enforceNodeAllocatable":["kube-reserved"]`:                            "enforceNodeAllocatable: \"kube-reserved\" is not supported",
		`"enforceNodeAllocatable":["none","pods"]`:                              "enforceNodeAllocatable: \"none\" must be the only entry",
		`"cgroupsPerQOS":false`:                                                 "enforceNodeAllocatable: \"pods\" needs cgroupsPerQOS true",
		`"podPidsLimit":9,"cgroupsPerQOS":false`:                                "podPidsLimit: 9 needs cgroupsPerQOS true; set it to -1",
		`"kubeReserved":{"gpu":"1"}`:                                            "kubeReserved: ",
		`"systemReserved":{"cpu":"lots"}`:                                       "systemReserved: ",
		`"podLogsDir":"/var/log/../pods"`:                                       "podLogsDir: ",
		`"podLogsDir":"/var/log/pöds"`:                                          "must be ASCII",
		`"cgroupDriver":"openrc"`:                                               "cgroupDriver: \"openrc\"",
		`"logging":{"format":"xml"}`:                                            "logging.format: \"xml\"",
		`"registerWithTaints":[{"key":"a","effect":"Never"}]`:                   "registerWithTaints: \"a\"",
		`"registerWithTaints":[{"key":"a/b/c","effect":"NoExecute"}]`:           "registerWithTaints: \"a/b/c\": the key: ",
		`"registerWithTaints":[{"key":"a","value":"b c","effect":"NoExecute"}]`: "registerWithTaints: \"a\": the value: ",
		`"registerWithTaints":[{"key":"a","effect":"NoExecute"},{"key":"a","value":"b","effect":"NoExecute"}]`: "registerWithTaints: \"a\" is given twice with effect NoExecute",
		`"registerWithTaints":[{"key":"a","effect":"NoExecute","timeAdded":"2026-01-01T00:00:00Z"}]`:           "timeAdded",
		`"evictionHard":{"memory":"1Gi"}`:                                           "thresholds of eviction",
		`"cpuManagerPolicy":"dynamic"`:                                              "cpuManagerPolicy: \"dynamic\"",
		`"cpuManagerPolicy":"static"`:                                               "cpuManagerPolicy: static needs CPUs on which all others run",
		`"reservedSystemCPUs":"1-"`:                                                 "reservedSystemCPUs: ",
		`"memoryManagerPolicy":"Dynamic"`:                                           "memoryManagerPolicy: \"Dynamic\"",
		`"topologyManagerPolicy":"pod"`:                                             "topologyManagerPolicy: ",
		`"topologyManagerScope":"node"`:                                             "topologyManagerScope: ",
		`"shutdownGracePeriod":"10ms"`:                                              "shutdownGracePeriod: 10ms must be 0 or at least 1s",
		`"shutdownGracePeriod":"10s","shutdownGracePeriodCriticalPods":"11s"`:       "shutdownGracePeriodCriticalPods: 11s must be at most shutdownGracePeriod, 10s",
		`"shutdownGracePeriod":"10s","shutdownGracePeriodCriticalPods":"-1s"`:       "shutdownGracePeriodCriticalPods: -1s must be 0 or at least 1s",
		`"shutdownGracePeriod":"10s","featureGates":{"GracefulNodeShutdown":false}`: "shutdownGracePeriod: needs featureGates[GracefulNodeShutdown]; remove the gate, or set 0",
		`"shutdownGracePeriod":"10s","shutdownGracePeriodByPodPriority":[{"priority":1,"shutdownGracePeriodSeconds":2}]`:                                     "shutdownGracePeriodByPodPriority: excludes shutdownGracePeriod",
		`"shutdownGracePeriodByPodPriority":[{"priority":1,"shutdownGracePeriodSeconds":2}],"featureGates":{"GracefulNodeShutdownBasedOnPodPriority":false}`: "shutdownGracePeriodByPodPriority: needs featureGates",
		`"shutdownGracePeriodByPodPriority":[{"priority":1,"shutdownGracePeriodSeconds":-2}]`:                                                                "shutdownGracePeriodByPodPriority: nodeshutdown: period -2s of priority 1",
		`"memoryThrottlingFactor":0`:                                                       "memoryThrottlingFactor: 0 must be above 0",
		`"memoryThrottlingFactor":1.1`:                                                     "memoryThrottlingFactor: 1.1 must be above 0, and at most 1",
		`"memoryThrottlingFactor":0.8,"featureGates":{"MemoryQoS":false}`:                  "memoryThrottlingFactor: needs featureGates[MemoryQoS]; remove one of both",
		`"memoryReservationPolicy":"TieredReservation","featureGates":{"MemoryQoS":false}`: "memoryReservationPolicy: TieredReservation needs featureGates[MemoryQoS]",
		`"memoryReservationPolicy":"Hard"`:                                                 "memoryReservationPolicy: \"Hard\" must be None or TieredReservation",
		`"cpuManagerReconcilePeriod":"-1s"`:                                                "cpuManagerReconcilePeriod: -1s",
	} {
		c, err := kubeletconfig.Load(file(t, "k.yaml", header+","+fields+"}"), "")
		require.NoError(t, err, fields)
		require.ErrorContains(t, c.Validate(), want, fields)
		_, err = c.Settings(capacity())
		require.ErrorContains(t, err, want, fields)
	}
}

// A reservation that leaves nothing is an error of the node, not of the configuration.
func TestSettings_NodeTooSmall(t *testing.T) {
	c := with(t, "-kube-reserved=cpu=3")
	require.NoError(t, c.Validate())
	_, err := c.Settings(capacity())
	require.ErrorContains(t, err, "resources of this node")
}

// Memory is protected and throttled as the fields and the gate say; nothing is by default, and
// containers do not swap.
func TestSettings_Memory(t *testing.T) {
	standard := settings(t, kubeletconfig.Default())
	assert.Equal(t, podspec.MemoryQoS{}, standard.Node.MemoryQoS)
	assert.Equal(t, cri.NoSwap, standard.CRI.Node.Swap)
	assert.False(t, standard.CRI.Node.SingleProcessOOMKill)
	for fields, want := range map[string]podspec.MemoryQoS{
		`"memoryThrottlingFactor":0.8`:                                                    {ThrottlingFactor: 0.8},
		`"memoryReservationPolicy":"TieredReservation"`:                                   {ReserveRequests: true},
		`"memoryReservationPolicy":"None","memoryThrottlingFactor":1`:                     {ThrottlingFactor: 1},
		`"memoryThrottlingFactor":0.9,"featureGates":{"MemoryQoS":false}`:                 {},
		`"memoryReservationPolicy":"TieredReservation","featureGates":{"MemoryQoS":true}`: {ReserveRequests: true},
		`"memorySwap":{"swapBehavior":"NoSwap"},"singleProcessOOMKill":true`:              {},
	} {
		c, err := kubeletconfig.Load(file(t, "k.yaml", header+","+fields+"}"), "")
		require.NoError(t, err)
		s := settings(t, c)
		assert.Equal(t, want, s.Node.MemoryQoS, fields)
		assert.Equal(t, strings.Contains(fields, "singleProcessOOMKill"), s.CRI.Node.SingleProcessOOMKill, fields)
		assert.Equal(t, cri.NoSwap, s.CRI.Node.Swap, fields)
		assert.Empty(t, c.Notices(), fields)
	}
}

// The periods of a shutdown are those of all and of critical pods, or those by priority.
func TestSettings_Shutdown(t *testing.T) {
	for fields, want := range map[string][]nodeshutdown.Group{
		`"maxPods":1`: nil,
		`"maxPods":1,"featureGates":{"GracefulNodeShutdownBasedOnPodPriority":false}`: nil,
		`"shutdownGracePeriod":"1s"`:                                          {{Priority: 0, Period: time.Second}, {Priority: 2000000000}},
		`"shutdownGracePeriod":"30s","shutdownGracePeriodCriticalPods":"10s"`: {{Priority: 0, Period: 20 * time.Second}, {Priority: 2000000000, Period: 10 * time.Second}},
		`"shutdownGracePeriodByPodPriority":[{"priority":5,"shutdownGracePeriodSeconds":2},{"priority":-1,"shutdownGracePeriodSeconds":9}]`: {{Priority: 5, Period: 2 * time.Second}, {Priority: -1, Period: 9 * time.Second}},
		`"shutdownGracePeriodByPodPriority":[{"priority":5,"shutdownGracePeriodSeconds":2}],"featureGates":{"GracefulNodeShutdown":false}`:  nil,
	} {
		c, err := kubeletconfig.Load(file(t, "k.yaml", header+","+fields+"}"), "")
		require.NoError(t, err)
		assert.Equal(t, want, settings(t, c).Shutdown, fields)
	}
	assert.Equal(t, 7*time.Second, nodeshutdown.Total(settings(t, with(t, "-shutdown-grace-period=7s")).Shutdown))
}

func TestConfig_Changed(t *testing.T) {
	c := kubeletconfig.Default()
	assert.Empty(t, c.Changed(kubeletconfig.Default()))
	assert.Equal(t, []string{"maxPods", "featureGates", "logging.verbosity"}, c.Changed(with(t, "-v=4", "-max-pods=7", "-feature-gates=A=true")))
}
