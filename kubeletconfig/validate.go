package kubeletconfig

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubelet/config/v1beta1"

	"github.com/sublet-dev/agent/topology"
)

// Validate returns all that is wrong with the configuration, joined: values that a kubelet would
// not start with, and those that the agent does not support. Each names the field and says what to do. It
// reads no file; Settings checks what depends on the machine.
func (c *Config) Validate() error {
	v := &validator{KubeletConfiguration: &c.kubelet}
	v.numbers()
	v.durations()
	v.network()
	v.images()
	v.allocatable()
	v.names()
	v.managers()
	v.policyOptions(c)
	v.shutdown()
	v.memory()
	v.reservedMemory()
	_, err := c.thresholds()
	v.add(err)
	return errors.Join(append(v.errs, c.unsupportedValues()...)...)
}

type validator struct {
	*v1beta1.KubeletConfiguration
	errs []error
}

func (v *validator) add(err error) {
	if err != nil {
		v.errs = append(v.errs, err)
	}
}

func (v *validator) fail(bad bool, format string, args ...any) {
	if bad {
		v.errs = append(v.errs, fmt.Errorf(format, args...))
	}
}

// between checks a field from least to most, both allowed.
func (v *validator) between(field string, n, least, most int64) {
	v.fail(n < least || n > most, "%s: %d must be from %d to %d", field, n, least, most)
}

func (v *validator) numbers() {
	const maxPort, many = 1<<16 - 1, 1<<31 - 1
	v.between("port", int64(v.Port), 1, maxPort)
	v.between("healthzPort", int64(*v.HealthzPort), 0, maxPort)
	v.between("oomScoreAdj", int64(*v.OOMScoreAdj), -1000, 1000)
	v.between("maxPods", int64(v.MaxPods), 1, many)
	v.between("podsPerCore", int64(v.PodsPerCore), 0, many)
	v.between("registryPullQPS", int64(*v.RegistryPullQPS), 0, many)
	v.between("registryBurst", int64(v.RegistryBurst), 0, many)
	v.between("kubeAPIQPS", int64(*v.KubeAPIQPS), 0, many)
	v.between("kubeAPIBurst", int64(v.KubeAPIBurst), 0, many)
	v.between("eventRecordQPS", int64(*v.EventRecordQPS), 0, many)
	v.between("eventBurst", int64(v.EventBurst), 0, many)
	v.between("nodeStatusMaxImages", int64(*v.NodeStatusMaxImages), -1, many)
	v.between("nodeLeaseDurationSeconds", int64(v.NodeLeaseDurationSeconds), 1, many)
	v.between("containerLogMaxFiles", int64(*v.ContainerLogMaxFiles), 2, many)
	v.between("containerLogMaxWorkers", int64(*v.ContainerLogMaxWorkers), 1, many)
	v.between("imageGCHighThresholdPercent", int64(*v.ImageGCHighThresholdPercent), 1, 100)
	v.between("imageGCLowThresholdPercent", int64(*v.ImageGCLowThresholdPercent), 0, 100)
	v.fail(*v.ImageGCLowThresholdPercent >= *v.ImageGCHighThresholdPercent, "imageGCLowThresholdPercent: %d must be below imageGCHighThresholdPercent, %d", *v.ImageGCLowThresholdPercent, *v.ImageGCHighThresholdPercent)
}

func (v *validator) durations() {
	for field, d := range map[string]time.Duration{
		"syncFrequency": v.SyncFrequency.Duration, "fileCheckFrequency": v.FileCheckFrequency.Duration, "httpCheckFrequency": v.HTTPCheckFrequency.Duration,
		"cpuManagerReconcilePeriod": v.CPUManagerReconcilePeriod.Duration, "evictionPressureTransitionPeriod": v.EvictionPressureTransitionPeriod.Duration, "runtimeRequestTimeout": v.RuntimeRequestTimeout.Duration,
		"streamingConnectionIdleTimeout": v.StreamingConnectionIdleTimeout.Duration,
	} {
		v.fail(d <= 0, "%s: %v must be positive", field, d)
	}
	for field, d := range map[string]time.Duration{"nodeStatusUpdateFrequency": v.NodeStatusUpdateFrequency.Duration, "nodeStatusReportFrequency": v.NodeStatusReportFrequency.Duration} {
		v.fail(d < time.Second, "%s: %v must be at least 1s", field, d)
	}
	v.fail(v.ImageMinimumGCAge.Duration < 0, "imageMinimumGCAge: %v must not be negative", v.ImageMinimumGCAge.Duration)
	longest := v.ImageMaximumGCAge.Duration
	v.fail(longest < 0 || longest > 0 && longest <= v.ImageMinimumGCAge.Duration, "imageMaximumGCAge: %v must be 0 or above imageMinimumGCAge, %v", longest, v.ImageMinimumGCAge.Duration)
	period := v.CPUCFSQuotaPeriod.Duration
	v.fail(period < time.Millisecond || period > time.Second, "cpuCFSQuotaPeriod: %v must be from 1ms to 1s", period)
	interval := v.ContainerLogMonitorInterval.Duration
	v.fail(interval < 3*time.Second, "containerLogMonitorInterval: %v must be at least 3s", interval)
	restart := v.CrashLoopBackOff.MaxContainerRestartPeriod.Duration
	v.fail(restart < time.Second || restart > 5*time.Minute, "crashLoopBackOff.maxContainerRestartPeriod: %v must be from 1s to 5m", restart)
}

func (v *validator) network() {
	v.fail(net.ParseIP(v.Address) == nil, "address: %q is not an IP address", v.Address)
	health := net.ParseIP(v.HealthzBindAddress)
	v.fail(*v.HealthzPort != 0 && !health.IsLoopback(), "healthzBindAddress: %q must be a loopback address: it has no authentication; set healthzPort to 0, and use /healthz of port %d", v.HealthzBindAddress, v.Port)
	v.fail(*v.ResolverConfig == "", "resolvConf: must not be empty: pods without DNS are not supported; name a file with what they get, such as nameserver 127.0.0.1")
	for _, ip := range v.ClusterDNS {
		v.fail(net.ParseIP(ip) == nil, "clusterDNS: %q is not an IP address", ip)
	}
	v.fail((v.TLSCertFile == "") != (v.TLSPrivateKeyFile == ""), "tlsCertFile and tlsPrivateKeyFile: set both or none")
	_, err := tlsConfig(v.KubeletConfiguration)
	v.add(err)
	modes := []v1beta1.KubeletAuthorizationMode{v1beta1.KubeletAuthorizationModeWebhook, v1beta1.KubeletAuthorizationModeAlwaysAllow}
	v.fail(!slices.Contains(modes, v.Authorization.Mode), "authorization.mode: %q is none of %v", v.Authorization.Mode, modes)
	for field, endpoint := range map[string]string{"containerRuntimeEndpoint": v.ContainerRuntimeEndpoint, "imageServiceEndpoint": v.ImageServiceEndpoint} {
		v.fail(endpoint != "" && !strings.HasPrefix(endpoint, "unix:///"), "%s: %q must be unix:///path/to.sock", field, endpoint)
	}
}

func (v *validator) images() {
	limit := v.MaxParallelImagePulls
	v.fail(limit != nil && *limit < 1, "maxParallelImagePulls: must be at least 1")
	v.fail(v.SerializeImagePulls != nil && *v.SerializeImagePulls && limit != nil && *limit > 1, "maxParallelImagePulls: %d needs serializeImagePulls false", deref(limit))
	size, err := resource.ParseQuantity(v.ContainerLogMaxSize)
	isBytes := size.Cmp(*resource.NewQuantity(size.Value(), size.Format)) == 0 // 100m is the tenth of a byte, not 100 MB
	v.fail(err != nil || size.IsZero() || !isBytes, "containerLogMaxSize: %q must be a size in bytes such as 10Mi, or negative", v.ContainerLogMaxSize)
	policies := []v1beta1.ImagePullCredentialsVerificationPolicy{v1beta1.NeverVerify, v1beta1.NeverVerifyPreloadedImages, v1beta1.NeverVerifyAllowlistedImages, v1beta1.AlwaysVerify}
	v.fail(!slices.Contains(policies, v.ImagePullCredentialsVerificationPolicy), "imagePullCredentialsVerificationPolicy: %q is none of %v", v.ImagePullCredentialsVerificationPolicy, policies)
	v.fail(len(v.PreloadedImagesVerificationAllowlist) > 0 && v.ImagePullCredentialsVerificationPolicy != v1beta1.NeverVerifyAllowlistedImages,
		"preloadedImagesVerificationAllowlist: needs imagePullCredentialsVerificationPolicy %s", v1beta1.NeverVerifyAllowlistedImages)
	v.fail(!slices.Contains([]string{"", noSwap, limitedSwap}, v.MemorySwap.SwapBehavior), "memorySwap.swapBehavior: %q must be %s or %s", v.MemorySwap.SwapBehavior, noSwap, limitedSwap)
}

// What enforceNodeAllocatable has.
const (
	enforcePods = "pods"
	enforceNone = "none"
)

func (v *validator) allocatable() {
	known := sets.New[string]()
	for _, what := range v.EnforceNodeAllocatable {
		v.fail(known.Has(what), "enforceNodeAllocatable: %q is given twice", what)
		known.Insert(what)
		v.fail(what != enforcePods && what != enforceNone, "enforceNodeAllocatable: %q is not supported: the cgroups of others are never changed; limit them by their systemd units", what)
	}
	v.fail(known.Has(enforceNone) && len(v.EnforceNodeAllocatable) > 1, "enforceNodeAllocatable: %q must be the only entry", enforceNone)
	v.fail(known.Has(enforcePods) && !*v.CgroupsPerQOS, "enforceNodeAllocatable: %q needs cgroupsPerQOS true; set it to none", enforcePods)
	v.fail(*v.PodPidsLimit > 0 && !*v.CgroupsPerQOS, "podPidsLimit: %d needs cgroupsPerQOS true; set it to -1", *v.PodPidsLimit)
	for field, list := range map[string]map[string]string{"kubeReserved": v.KubeReserved, "systemReserved": v.SystemReserved} {
		_, err := reservation(field, list)
		v.add(err)
	}
}

func (v *validator) names() {
	v.fail(!filepath.IsAbs(v.PodLogsDir) || filepath.Clean(v.PodLogsDir) != v.PodLogsDir, "podLogsDir: %q must be a clean absolute path", v.PodLogsDir)
	v.fail(strings.ContainsFunc(v.PodLogsDir, func(r rune) bool { return r > 127 }), "podLogsDir: %q must be ASCII", v.PodLogsDir)
	v.fail(!slices.Contains([]string{"", "cgroupfs", "systemd"}, v.CgroupDriver), "cgroupDriver: %q must be cgroupfs or systemd", v.CgroupDriver)
	v.fail(!slices.Contains([]string{"text", "json"}, v.Logging.Format), "logging.format: %q must be text or json", v.Logging.Format)
	for i, t := range v.RegisterWithTaints {
		if err := checkTaint(t); err != nil {
			v.fail(true, "registerWithTaints: %q: %w", t.Key, err)
		}
		v.fail(slices.ContainsFunc(v.RegisterWithTaints[:i], func(o corev1.Taint) bool { return o.MatchTaint(&t) }), "registerWithTaints: %q is given twice with effect %s", t.Key, t.Effect)
	}
}

func (v *validator) managers() {
	v.fail(!slices.Contains([]string{"none", staticCPUPolicy}, v.CPUManagerPolicy), "cpuManagerPolicy: %q must be none or static", v.CPUManagerPolicy)
	v.fail(!slices.Contains([]string{v1beta1.NoneMemoryManagerPolicy, v1beta1.StaticMemoryManagerPolicy}, v.MemoryManagerPolicy), "memoryManagerPolicy: %q must be None or Static", v.MemoryManagerPolicy)
	if _, err := topology.ParsePolicy(v.TopologyManagerPolicy); err != nil {
		v.fail(true, "topologyManagerPolicy: %w", err)
	}
	if _, err := topology.ParseScope(v.TopologyManagerScope); err != nil {
		v.fail(true, "topologyManagerScope: %w", err)
	}
	cpus, err := topology.ParseSet(v.ReservedSystemCPUs)
	if err != nil {
		v.fail(true, "reservedSystemCPUs: %w", err)
	}
	reserved := reservedCPU(v.KubeletConfiguration)
	v.fail(v.CPUManagerPolicy == staticCPUPolicy && err == nil && cpus.Len() == 0 && reserved.Sign() <= 0,
		"cpuManagerPolicy: static needs CPUs on which all others run: reservedSystemCPUs, or cpu of kubeReserved or systemReserved")
}

// tlsConfig returns what the configuration says about TLS.
func tlsConfig(k *v1beta1.KubeletConfiguration) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	var errs []error
	switch k.TLSMinVersion {
	case "", "VersionTLS12":
	case "VersionTLS13":
		cfg.MinVersion = tls.VersionTLS13
	default:
		errs = append(errs, fmt.Errorf("tlsMinVersion: %q must be VersionTLS12 or VersionTLS13", k.TLSMinVersion))
	}
	for _, name := range k.TLSCipherSuites {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("tlsCipherSuites: %q is unknown or insecure; remove it", name))
			continue
		}
		cfg.CipherSuites = append(cfg.CipherSuites, tls.CipherSuites()[i].ID)
	}
	for _, id := range k.TLSCurvePreferences {
		if id < 1 || id > 1<<16-1 {
			errs = append(errs, fmt.Errorf("tlsCurvePreferences: %d is no id of a group", id))
			continue
		}
		cfg.CurvePreferences = append(cfg.CurvePreferences, tls.CurveID(id))
	}
	return cfg, errors.Join(errs...)
}

func deref(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}
