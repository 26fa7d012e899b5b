package runtimetest

import "regexp"

// reason is why fields have no case.
type reason struct{ kind, fields, text string }

// reasons are matched in order: kind is request or response, or empty for both.
func reasons() []reason {
	const request, response = "request", "response"
	return []reason{
		{"", `Windows|\.windows`, "Windows only"},
		{"", `Linux.*\.seccomp_profile_path|\.apparmor_profile$`, "deprecated; kubelets set the structured field"},
		{response, `selinux_relabel`, "reported as it was set"},
		{"", `^PsiStats|^PsiData|\.psi$|IoUsage|\.io$`, "optional: needs a kernel with pressure stall information"},
		{request, `AuthConfig.(identity_token|registry_token)`, "kubelets do not set it: registries that give tokens take a password"},
		{request, `PortMapping.protocol|UserNamespace.mode|IDMapping.container_id`, "the value that is used is the zero value"},
		{request, `cgroup_parent`, "cgroups are the user's to choose: EditPod sets it"},
		{request, `LinuxSandboxSecurityContext\.`, "of the sandbox's own process, which does nothing; containers have it"},
		{request, `ImageSpec\.(annotations|runtime_handler|image_ref)`, "hints that runtimes may ignore"},
		{request, `mount_options`, "alpha, or optional: a runtime may refuse it"},
		{request, `add_ambient_capabilities`, "kubelets do not set it"},
		{request, `pod_cidr`, "would reconfigure the network of the node"},
		{request, `CheckpointPod|RestorePod`, "alpha: that the calls refuse what is not there is tested"},
		{request, `PodSandboxStatsFilter.label_selector`, "kubelets filter by id"},
		{response, `RestorePod|RestoredContainer`, "alpha: no released runtime restores pods"},
		{response, `additional_ips|PodIP`, "single-stack networks have none; what there is must be an address"},
		{response, `NamespaceOption|UserNamespace|IDMapping|HandlerFeatures|RuntimeFeatures|RuntimeHandler.features|StatusResponse.(features|runtime_handlers)`, "the feature is used where it is reported; see the cases of namespaces and volumes"},
		{response, `ContainerStatus.message|RuntimeCondition\.(reason|message)`, "text for people; may be empty"},
		{response, `ImageSpec\.(annotations|runtime_handler|image_ref)|Image\.spec`, "optional"},
		{response, `ImageSpec.user_specified_image`, "kubelets set it and do not read it"},
		{response, `^Mount\.|LinuxContainerResources|HugepageLimit`, "reported as they were set; kubelets read paths, readonly and the tested resources"},
		{response, `^(SwapUsage|ContainerStats.swap)|ContainerStats.swap`, "needs swap on the node"},
		{response, `usage_nano_cores`, "optional: kubelets compute it"},
		{response, `MemoryUsage`, "kubelets decide by working_set_bytes"},
		{response, `NetworkUsage|NetworkInterfaceUsage`, "not of pods on the host's network; the presence of linux.network is tested"},
		{response, `ProcessUsage.timestamp|PodSandboxAttributes|ContainerAttributes.annotations`, "kubelets do not read it"},
		{response, `PodSandboxMetrics|ContainerMetrics|Metric.metric_type`, "either of pod and container may be empty; COUNTER is the zero value"},
		{response, `Metric\.timestamp`, "0 if the metric was gathered live; another one must be recent"},
		{response, `cgroup_driver`, "SYSTEMD is the zero value; unknown values are found"},
		{response, `Image\.(repo_tags|repo_digests)`, "one of both must be there"},
		{response, `Image\.(uid|username|pinned)|Int64Value`, "depend on the image, or on the runtime's configuration"},
		{response, `container_filesystems`, "only of runtimes with a file system of their own for containers"},
	}
}

// reasonFor returns why a field has no case.
func reasonFor(kind string, f field) (string, bool) {
	for _, r := range reasons() {
		if (r.kind == "" || r.kind == kind) && regexp.MustCompile(r.fields).MatchString(string(f)) {
			return r.text, true
		}
	}
	return "", false
}
