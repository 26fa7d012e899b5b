package kubeletconfig

import "github.com/sublet-dev/agent/eviction"

// The defaults below are the kubelet's, from the comments of the API type.

func sourceFields() []Field {
	return []Field{
		honoured("staticPodPath", "pod-manifest-path", "", "directory (or file) of pod manifests"),
		honoured("staticPodURL", "manifest-url", "", "URL of pod manifests"),
		honoured("staticPodURLHeader", "manifest-url-header", "", "headers of requests to staticPodURL"),
		honoured("fileCheckFrequency", "file-check-frequency", "20s", "period of reading manifests again without a notification"),
		honoured("httpCheckFrequency", "http-check-frequency", "20s", "period of requests to staticPodURL"),
		honoured("syncFrequency", "sync-frequency", "1m0s", "period of pod resyncs; five times as long for pods that need none"),
		honoured("podLogsDir", "pod-logs-dir", "/var/log/pods", "directory of container logs"),
		unsupported("runOnce", "runonce", "", "the agent runs until it is stopped; remove it"),
	}
}

func serverFields() []Field {
	return []Field{
		honoured("enableServer", "enable-server", "true", "serve the kubelet's API"),
		honoured("address", "address", "0.0.0.0", "address of the kubelet's API"),
		honoured("port", "port", "10250", "port of the kubelet's API"),
		unsupported("readOnlyPort", "read-only-port", "", "what other machines can reach is served to authenticated clients alone; remove it"),
		honoured("healthzPort", "healthz-port", "10248", "port of /healthz without authentication; 0: none"),
		honoured("healthzBindAddress", "healthz-bind-address", "127.0.0.1", "address of /healthz without authentication, a loopback address"),
		honoured("tlsCertFile", "tls-cert-file", "", "certificate of the kubelet's API, PEM"),
		honoured("tlsPrivateKeyFile", "tls-private-key-file", "", "private key of tlsCertFile, PEM"),
		honoured("tlsCipherSuites", "tls-cipher-suites", "", "cipher suites of TLS 1.2, by their IANA names"),
		honoured("tlsCurvePreferences", "", "", "ids of the groups for the key exchange of TLS, most preferred first"),
		honoured("tlsMinVersion", "tls-min-version", "", "VersionTLS12 or VersionTLS13"),
		noMeaning("serverTLSBootstrap", "rotate-server-certificates", "", "without tlsCertFile, a node of a cluster always requests its serving certificate from it", "true"),
		honoured("authentication.x509.clientCAFile", "client-ca-file", "", "CA certificates, PEM: clients with a certificate that one of them signed are authenticated"),
		honoured("authentication.webhook.enabled", "authentication-token-webhook", "true", "have the cluster review bearer tokens"),
		honoured("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl", "2m0s", "how long a review of a token holds"),
		unsupported("authentication.anonymous.enabled", "anonymous-auth", "false", "every client needs a certificate or a token; set it to false"),
		honoured("authorization.mode", "authorization-mode", "Webhook", "Webhook: the cluster decides what clients may do; AlwaysAllow: every authenticated client may do everything"),
		honoured("authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl", "5m0s", "how long a granted right holds"),
		honoured("authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl", "30s", "how long a denied right holds"),
		honoured("enableDebuggingHandlers", "enable-debugging-handlers", "true", "serve logs, exec, attach, port-forward and run"),
		honoured("enableProfilingHandler", "enable-profiling-handler", "", "serve /debug/pprof/; off by default, unlike a kubelet's"),
		noMeaning("enableContentionProfiling", "contention-profiling", "", "no profile of lock contention is taken"),
		noMeaning("enableDebugFlagsHandler", "", "true", "the verbosity of the log cannot be changed over the network"),
		honoured("enableSystemLogHandler", "enable-system-log-handler", "", "serve the files of /var/log at /logs/; off by default, unlike a kubelet's"),
		honoured("enableSystemLogQuery", "enable-system-log-query", "", "let queries of /logs/ read the journal of systemd; needs enableSystemLogHandler"),
		honoured("streamingConnectionIdleTimeout", "streaming-connection-idle-timeout", "4h0m0s", "how long a stream of exec, attach or port-forward may be idle"),
		noMeaning("showHiddenMetricsForVersion", "show-hidden-metrics-for-version", "", "no metric is hidden"),
	}
}

func imageFields() []Field {
	return []Field{
		honoured("registryPullQPS", "registry-qps", "5", "image pulls per second; 0: no limit"),
		honoured("registryBurst", "registry-burst", "10", "burst of image pulls above registryPullQPS"),
		honoured("serializeImagePulls", "serialize-image-pulls", "", "pull one image at a time; default: two, or maxParallelImagePulls"),
		honoured("maxParallelImagePulls", "max-parallel-image-pulls", "", "images pulled in parallel"),
		honoured("imagePullCredentialsVerificationPolicy", "image-pull-credentials-verification-policy", "NeverVerifyPreloadedImages", "for which images on the node a pod needs the credentials to pull them"),
		honoured("preloadedImagesVerificationAllowlist", "preloaded-images-verification-allowlist", "", "repositories for NeverVerifyAllowlistedImages"),
		honoured("imageMinimumGCAge", "minimum-image-ttl-duration", "2m0s", "minimum age of an image that is removed"),
		honoured("imageMaximumGCAge", "maximum-image-ttl-duration", "", "how long an image may be unused; 0: indefinitely"),
		honoured("imageGCHighThresholdPercent", "image-gc-high-threshold", "85", "percent of the image disk in use at which unused images are removed; 100: never"),
		honoured("imageGCLowThresholdPercent", "image-gc-low-threshold", "80", "percent of the image disk in use down to which they are removed"),
		honoured("containerRuntimeEndpoint", "container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "CRI socket, unix:///path"),
		honoured("imageServiceEndpoint", "image-service-endpoint", "", "CRI socket of the image service; default: containerRuntimeEndpoint"),
		honoured("runtimeRequestTimeout", "runtime-request-timeout", "2m0s", "deadline of calls of the runtime that have no better one of their own"),
		honoured("containerLogMaxSize", "container-log-max-size", "10Mi", "size at which a container's log is rotated; negative: never"),
		honoured("containerLogMaxFiles", "container-log-max-files", "5", "log files to keep of a container, at least 2"),
		honoured("containerLogMaxWorkers", "", "1", "logs that are rotated at once"),
		honoured("containerLogMonitorInterval", "", "10s", "longest interval between two measurements of a log"),
		honoured("crashLoopBackOff.maxContainerRestartPeriod", "max-container-restart-period", "5m0s", "longest back-off of a container that keeps exiting"),
		honoured("seccompDefault", "seccomp-default", "false", "use the runtime's seccomp profile for containers that set none"),
	}
}

func resourceFields() []Field {
	return []Field{
		honoured("maxPods", "max-pods", "110", "pods that run on this node at once"),
		honoured("podsPerCore", "pods-per-core", "", "pods that run on this node at once, per CPU, up to maxPods; 0: no such bound"),
		honoured("podPidsLimit", "pod-max-pids", "-1", "processes of each pod; -1 or 0: no bound"),
		honoured("cpuCFSQuota", "cpu-cfs-quota", "true", "enforce CPU limits of containers"),
		honoured("cpuCFSQuotaPeriod", "cpu-cfs-quota-period", "100ms", "period of CPU limits, 1ms to 1s"),
		honoured("kubeReserved", "kube-reserved", "", "resources kept for the agent and the runtime"),
		honoured("systemReserved", "system-reserved", "", "resources kept for other processes of the system"),
		honoured("enforceNodeAllocatable", "enforce-node-allocatable", "pods", "pods: the cgroup of all pods is limited; none: it has what the machine has. The cgroups of others are never changed"),
		noMeaning("systemReservedCgroup", "system-reserved-cgroup", "", "only the cgroups of pods are limited"),
		noMeaning("kubeReservedCgroup", "kube-reserved-cgroup", "", "only the cgroups of pods are limited"),
		honoured("evictionHard", "eviction-hard", eviction.DefaultHardThresholds, "thresholds at which pods are evicted at once"),
		honoured("evictionSoft", "eviction-soft", "", "thresholds at which pods are evicted after evictionSoftGracePeriod"),
		honoured("evictionSoftGracePeriod", "eviction-soft-grace-period", "", "how long each soft threshold must be met"),
		honoured("evictionMinimumReclaim", "eviction-minimum-reclaim", "", "how much more than its threshold to free of a resource"),
		honoured("evictionPressureTransitionPeriod", "eviction-pressure-transition-period", "5m0s", "how long a condition stays true after its threshold was last met"),
		honoured("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", "", "longest grace period, in seconds, of pods evicted for a soft threshold; negative: their own"),
		honoured("mergeDefaultEvictionSettings", "", "false", "the default of evictionHard holds for each signal that it does not name"),
		noMeaning("kernelMemcgNotification", "kernel-memcg-notification", "", "the kernel always notifies about memory, where it can"),
		unsupported("localStorageCapacityIsolation", "local-storage-capacity-isolation", "true", "limits on local storage are always enforced; set it to true"),
		honoured("cgroupRoot", "cgroup-root", "", "cgroup below which pods are created"),
		honoured("cgroupDriver", "cgroup-driver", "", "cgroupfs or systemd, as for the runtime; default: what the runtime reports, else systemd where it owns the cgroups, else cgroupfs"),
		honoured("cgroupsPerQOS", "cgroups-per-qos", "true", "create a cgroup for each pod, below those of the QoS classes; false: leave cgroups to the runtime"),
		noMeaning("kubeletCgroups", "kubelet-cgroups", "", "the agent stays in the cgroup that it was started in"),
		unsupported("systemCgroups", "system-cgroups", "", "processes of others are not moved; remove it, and place them by their systemd units"),
		noMeaning("failCgroupV1", "fail-cgroupv1", "true", "the agent runs with both versions of cgroups", "false"),
		noMeaning("failSwapOn", "fail-swap-on", "true", "the agent starts on a node with swap; memorySwap says who may use it", "false"),
		honoured("memorySwap.swapBehavior", "", "", "NoSwap, the default, or LimitedSwap: burstable containers may swap in proportion to their memory request"),
		honoured("singleProcessOOMKill", "", "", "true: a process that runs out of memory ends alone; default: with cgroup v2 its container ends as a whole"),
		honoured("memoryThrottlingFactor", "", "", "with cgroup v2, memory of containers is throttled at this part of the way from request to limit (memory.high); default: it is not"),
		honoured("memoryReservationPolicy", "", "None", "None or TieredReservation: with cgroup v2, requested memory is not reclaimed (memory.min, memory.low)"),
		honoured("allowedUnsafeSysctls", "allowed-unsafe-sysctls", "", "kernel parameters that pods may set besides the safe ones; * at the end is a wildcard"),
		unsupported("defaultPodSysctls", "", "", "set the sysctls of the securityContext of pods instead"),
	}
}

// managerFields are those of the managers of CPUs, memory and topology.
func managerFields() []Field {
	return []Field{
		honoured("cpuManagerPolicy", "cpu-manager-policy", "none", "none, or static: containers of Guaranteed pods that request whole CPUs have these for themselves"),
		honoured("cpuManagerPolicyOptions", "cpu-manager-policy-options", "", "options of the static policy, option=true,…: full-pcpus-only, strict-cpu-reservation, distribute-cpus-across-numa, prefer-align-cpus-by-uncorecache; those that are alpha in Kubernetes are errors"),
		honoured("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", "10s", "how often the CPUs of running containers are compared with their assignments"),
		honoured("reservedSystemCPUs", "reserved-cpus", "", "CPUs for the system and for containers that share, such as 0-1; default with cpuManagerPolicy static: as many as kubeReserved and systemReserved have, rounded up"),
		honoured("memoryManagerPolicy", "memory-manager-policy", "None", "None, or Static: containers with CPUs for themselves have memory and huge pages of the same NUMA nodes, as far as these suffice"),
		honoured("reservedMemory", "reserved-memory", "", "memory and huge pages of NUMA nodes that memoryManagerPolicy Static gives no container: 0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi. The memory of all nodes is as much as kubeReserved, systemReserved and the hard threshold of memory.available"),
		honoured("topologyManagerPolicy", "topology-manager-policy", "none", "where CPUs, memory and devices of a container come from: none, best-effort, restricted or single-numa-node"),
		honoured("topologyManagerScope", "topology-manager-scope", "container", "what is to be close to each other: the resources of each container, or with pod those of all containers of a pod"),
		honoured("topologyManagerPolicyOptions", "topology-manager-policy-options", "", "options of topologyManagerPolicy, option=value,…: prefer-closest-numa-nodes, max-allowable-numa-nodes, of which at most 16 can be combined"),
		unsupported("qosReserved", "qos-reserved", "", "memory of QoS classes is not reserved; remove it"),
		unsupported("userNamespaces.idsPerPod", "", "", "each pod has 65536 ids", "65536"),
	}
}

func clusterFields() []Field {
	return []Field{
		honoured("clusterDNS", "cluster-dns", "", "name servers of pods with dnsPolicy ClusterFirst"),
		honoured("clusterDomain", "cluster-domain", "", "domain of the cluster"),
		honoured("resolvConf", "resolv-conf", "/etc/resolv.conf", "resolver configuration of the node, which must not be empty"),
		honoured("registerNode", "register-node", "true", "create the Node object if it does not exist"),
		honoured("registerWithTaints", "register-with-taints", "", "taints of the Node when it is registered: key=value:effect,…"),
		noMeaning("rotateCertificates", "rotate-certificates", "", "a certificate that was requested with a bootstrap kubeconfig is always renewed", "true"),
		honoured("providerID", "provider-id", "", "id of the machine at its cloud, for the Node when it is registered"),
		noMeaning("podCIDR", "pod-cidr", "", "the network configuration of the runtime decides about addresses of pods"),
		honoured("nodeStatusUpdateFrequency", "node-status-update-frequency", "10s", "how soon the status of the Node has a change, at least 1s; conditions are sent within a second"),
		honoured("nodeStatusReportFrequency", "", "5m0s", "how often the status of the Node is sent if nothing changes, at least 1s; default: nodeStatusUpdateFrequency if a file has that"),
		honoured("nodeStatusMaxImages", "node-status-max-images", "50", "images that the status of the Node has, largest first; -1: all"),
		honoured("nodeLeaseDurationSeconds", "", "40", "how long the lease of the Node holds, which is renewed four times in it"),
		honoured("kubeAPIQPS", "kube-api-qps", "50", "requests to the API server per second"),
		honoured("kubeAPIBurst", "kube-api-burst", "100", "burst of requests to the API server"),
		noMeaning("eventRecordQPS", "event-qps", "50", "events are aggregated and have a limit of their own"),
		noMeaning("eventBurst", "event-burst", "100", "events are aggregated and have a limit of their own"),
		noMeaning("contentType", "kube-api-content-type", "application/vnd.kubernetes.protobuf", "the client of the API server chooses"),
		noMeaning("configMapAndSecretChangeDetectionStrategy", "", "Watch", "ConfigMaps and Secrets of pods are watched"),
		unsupported("enableControllerAttachDetach", "enable-controller-attach-detach", "true", "volumes are attached by the controller of the cluster; set it to true"),
		noMeaning("hairpinMode", "hairpin-mode", "promiscuous-bridge", "the network of pods is the runtime's"),
		noMeaning("makeIPTablesUtilChains", "make-iptables-util-chains", "true", "the agent does not change iptables"),
		noMeaning("iptablesMasqueradeBit", "", "14", "the agent does not change iptables"),
		noMeaning("iptablesDropBit", "", "15", "the agent does not change iptables"),
	}
}

func otherFields() []Field {
	return []Field{
		honoured("oomScoreAdj", "oom-score-adj", "-999", "oom_score_adj of the process, -1000 to 1000"),
		noMeaning("maxOpenFiles", "", "1000000", "the limit of the process is that of its systemd unit (LimitNOFILE)"),
		noMeaning("protectKernelDefaults", "protect-kernel-defaults", "", "kernel parameters of the node are never changed"),
		noMeaning("volumePluginDir", "volume-plugin-dir", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", "there are no FlexVolumes"),
		noMeaning("volumeStatsAggPeriod", "volume-stats-agg-period", "1m0s", "volumes are measured when their usage is asked for"),
		honoured("featureGates", "feature-gates", "", "gates by name, such as MemoryQoS=true; kubeletconfig/FIELDS.md lists those that have an effect"),
		honoured("logging.format", "logging-format", "text", "text or json"),
		honoured("logging.verbosity", "v", "", "0 to 3: info; 4 and more: debug"),
		noMeaning("logging.flushFrequency", "log-flush-frequency", "5s", "each line is written at once"),
		noMeaning("logging.vmodule", "vmodule", "", "verbosity is that of the whole process"),
		noMeaning("logging.options", "", "", "lines are not buffered"),
		honoured("shutdownGracePeriod", "shutdown-grace-period", "", "time for pods to terminate when the machine shuts down; 0: pods are not terminated by the agent"),
		honoured("shutdownGracePeriodCriticalPods", "shutdown-grace-period-critical-pods", "", "the part of it that is for critical pods, which are terminated last"),
		honoured("shutdownGracePeriodByPodPriority", "", "", "the same by priority, instead of both"),
		unsupported("tracing", "", "", "package otel makes spans; remove it"),
	}
}
