package main

import (
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubeletConfiguration has the fields of a KubeletConfiguration of
// kubelet.config.k8s.io/v1beta1 that this program has, for tools that read /configz. The
// package of that type is not used: it links the global registries of the kubelet.
type kubeletConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	StaticPodPath                          string            `json:"staticPodPath,omitempty"`
	StaticPodURL                           string            `json:"staticPodURL,omitempty"`
	PodLogsDir                             string            `json:"podLogsDir"`
	SyncFrequency                          metav1.Duration   `json:"syncFrequency"`
	FileCheckFrequency                     metav1.Duration   `json:"fileCheckFrequency"`
	HTTPCheckFrequency                     metav1.Duration   `json:"httpCheckFrequency"`
	Address                                string            `json:"address,omitempty"`
	Port                                   int32             `json:"port,omitempty"`
	TLSCertFile                            string            `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile                      string            `json:"tlsPrivateKeyFile,omitempty"`
	Authentication                         authentication    `json:"authentication"`
	RegistryPullQPS                        *int32            `json:"registryPullQPS"`
	RegistryBurst                          int32             `json:"registryBurst"`
	MaxParallelImagePulls                  *int32            `json:"maxParallelImagePulls"`
	SerializeImagePulls                    *bool             `json:"serializeImagePulls"`
	ImagePullCredentialsVerificationPolicy string            `json:"imagePullCredentialsVerificationPolicy"`
	PreloadedImagesVerificationAllowlist   []string          `json:"preloadedImagesVerificationAllowlist,omitempty"`
	ImageMinimumGCAge                      metav1.Duration   `json:"imageMinimumGCAge"`
	ImageMaximumGCAge                      metav1.Duration   `json:"imageMaximumGCAge"`
	ImageGCHighThresholdPercent            *int32            `json:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent             *int32            `json:"imageGCLowThresholdPercent"`
	ClusterDomain                          string            `json:"clusterDomain,omitempty"`
	ClusterDNS                             []string          `json:"clusterDNS,omitempty"`
	ResolverConfig                         *string           `json:"resolvConf"`
	CgroupRoot                             string            `json:"cgroupRoot,omitempty"`
	CgroupDriver                           string            `json:"cgroupDriver,omitempty"`
	MaxPods                                int32             `json:"maxPods"`
	PodsPerCore                            int32             `json:"podsPerCore"`
	PodPidsLimit                           *int64            `json:"podPidsLimit"`
	CPUCFSQuota                            *bool             `json:"cpuCFSQuota"`
	CPUCFSQuotaPeriod                      *metav1.Duration  `json:"cpuCFSQuotaPeriod"`
	SeccompDefault                         *bool             `json:"seccompDefault"`
	AllowedUnsafeSysctls                   []string          `json:"allowedUnsafeSysctls,omitempty"`
	FailSwapOn                             *bool             `json:"failSwapOn"` // false: it starts on a node with swap
	ContainerLogMaxSize                    string            `json:"containerLogMaxSize"`
	ContainerLogMaxFiles                   *int32            `json:"containerLogMaxFiles"`
	EvictionHard                           map[string]string `json:"evictionHard"`
	EvictionSoft                           map[string]string `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod                map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMinimumReclaim                 map[string]string `json:"evictionMinimumReclaim,omitempty"`
	EvictionPressureTransitionPeriod       metav1.Duration   `json:"evictionPressureTransitionPeriod"`
	EvictionMaxPodGracePeriod              int32             `json:"evictionMaxPodGracePeriod"`
	SystemReserved                         map[string]string `json:"systemReserved,omitempty"`
	KubeReserved                           map[string]string `json:"kubeReserved,omitempty"`
	CrashLoopBackOff                       crashLoopBackOff  `json:"crashLoopBackOff"`
	Logging                                logging           `json:"logging"`
	EnableProfilingHandler                 *bool             `json:"enableProfilingHandler"`
	EnableSystemLogHandler                 *bool             `json:"enableSystemLogHandler"`
	RegisterNode                           *bool             `json:"registerNode"`
	ContainerRuntimeEndpoint               string            `json:"containerRuntimeEndpoint"`
	ImageServiceEndpoint                   string            `json:"imageServiceEndpoint,omitempty"`
}

type authentication struct {
	X509 struct {
		ClientCAFile string `json:"clientCAFile,omitempty"`
	} `json:"x509"`
	Webhook struct {
		Enabled *bool `json:"enabled"`
	} `json:"webhook"`
	Anonymous struct {
		Enabled *bool `json:"enabled"`
	} `json:"anonymous"`
}

type crashLoopBackOff struct {
	MaxContainerRestartPeriod *metav1.Duration `json:"maxContainerRestartPeriod"`
}

type logging struct {
	Format    string `json:"format"`
	Verbosity uint32 `json:"verbosity"`
}

// kubeletConfiguration returns what /configz serves. It has no secret.
func (f *flags) kubeletConfiguration() kubeletConfiguration {
	noSwapFailure, noAnonymous, serialPulls := false, false, f.reclaim.parallelPulls == 1
	duration := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	quotaPeriod, restartPeriod := duration(f.node.cpuQuotaPeriod), duration(f.maxRestartPeriod)
	c := kubeletConfiguration{
		TypeMeta:      metav1.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"},
		StaticPodPath: f.manifests, StaticPodURL: withoutPassword(f.manifestURL), PodLogsDir: f.podLogsDir,
		SyncFrequency: duration(f.syncFrequency), FileCheckFrequency: duration(f.fileCheck), HTTPCheckFrequency: duration(f.httpCheck),
		TLSCertFile: f.listen.tlsCert, TLSPrivateKeyFile: f.listen.tlsKey,
		RegistryPullQPS: int32Of(int(f.reclaim.registryQPS)), RegistryBurst: *int32Of(f.reclaim.registryBurst),
		MaxParallelImagePulls: int32Of(f.reclaim.parallelPulls), SerializeImagePulls: &serialPulls,
		ImagePullCredentialsVerificationPolicy: f.imageVerification, PreloadedImagesVerificationAllowlist: split(f.imageAllowlist),
		ImageMinimumGCAge: duration(f.reclaim.imageMinAge), ImageMaximumGCAge: duration(f.reclaim.imageMaxAge),
		ImageGCHighThresholdPercent: int32Of(f.reclaim.imageHigh), ImageGCLowThresholdPercent: int32Of(f.reclaim.imageLow),
		ClusterDomain: f.clusterDomain, ClusterDNS: split(f.clusterDNS), ResolverConfig: &f.resolvConf, CgroupRoot: f.cgroupRoot, CgroupDriver: f.cgroupDriver,
		MaxPods: *int32Of(f.node.maxPods), PodsPerCore: *int32Of(f.node.podsPerCore), PodPidsLimit: &f.node.podMaxPids,
		CPUCFSQuota: &f.node.cpuQuota, CPUCFSQuotaPeriod: &quotaPeriod, SeccompDefault: &f.node.seccompDefault,
		AllowedUnsafeSysctls: split(f.unsafeSysctls), FailSwapOn: &noSwapFailure,
		ContainerLogMaxSize: f.reclaim.logMaxSize, ContainerLogMaxFiles: int32Of(f.reclaim.logMaxFiles),
		EvictionHard: pairs(f.reclaim.evictionHard.text, "<"), EvictionSoft: pairs(f.reclaim.evictionSoft.text, "<"),
		EvictionSoftGracePeriod: pairs(f.reclaim.evictionSoftGrace.text, "="), EvictionMinimumReclaim: pairs(f.reclaim.evictionMinReclaim.text, "="),
		EvictionPressureTransitionPeriod: duration(f.reclaim.evictionTransition), EvictionMaxPodGracePeriod: *int32Of(f.reclaim.evictionMaxPodGrace),
		SystemReserved: pairs(f.node.systemReserved, "="), KubeReserved: pairs(f.node.kubeReserved, "="),
		CrashLoopBackOff: crashLoopBackOff{&restartPeriod}, Logging: logging{f.logFormat, uint32(max(f.verbosity, 0))}, //nolint:gosec // small
		EnableProfilingHandler: &f.debug.profiling, EnableSystemLogHandler: &f.debug.nodeLogs, RegisterNode: &f.kube.register,
		ContainerRuntimeEndpoint: f.runtimeEndpoint, ImageServiceEndpoint: f.imageEndpoint,
	}
	c.Authentication.X509.ClientCAFile = f.listen.clientCA
	c.Authentication.Webhook.Enabled, c.Authentication.Anonymous.Enabled = &f.listen.inCluster, &noAnonymous
	if host, port, err := net.SplitHostPort(f.serverAddr()); err == nil {
		n, _ := strconv.ParseUint(port, 10, 16) // 0: a name of a service
		c.Address, c.Port = host, int32(n)
	}
	return c
}

func int32Of(n int) *int32 {
	v := int32(n) //nolint:gosec // flags are small
	return &v
}

// pairs returns key-separator-value,… as a map.
func pairs(list, separator string) map[string]string {
	all := map[string]string{}
	for _, pair := range split(list) {
		if key, value, ok := strings.Cut(pair, separator); ok {
			all[key] = value
		}
	}
	return all
}

// withoutPassword hides the password of a URL.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Redacted()
}
