package podspec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// podWith returns a defaulted pod whose spec is the given YAML, indented by two.
func podWith(t *testing.T, spec string) *corev1.Pod {
	t.Helper()
	pod := decodeOne(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"+spec)
	Default(pod)
	return pod
}

// errorPaths returns the field of each fault.
func errorPaths(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	all, ok := errors.AsType[utilerrors.Aggregate](err)
	require.True(t, ok, "%v", err)
	var paths []string
	for _, e := range all.Errors() {
		fault, ok := errors.AsType[*field.Error](e)
		require.True(t, ok, "%v", e)
		paths = append(paths, fault.Field)
	}
	return paths
}

const one = "  containers:\n  - {name: a, image: i}\n"

// with puts fields into the only container.
func with(fields string) string { return "  containers:\n  - {name: a, image: i, " + fields + "}\n" }

// SP-2: what can never run is refused, with the path of each field at fault.
// The grace period of a deletion, which is often shorter than that of the spec, makes no pod
// invalid.
func TestValidate_DeletedPodStaysValid(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 30}}},
	}}}}
	Default(pod)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{}, new(int64(2))
	require.NoError(t, Validate(pod))
	pod.Spec.TerminationGracePeriodSeconds = nil
	require.NoError(t, Validate(pod))
	pod.Spec.TerminationGracePeriodSeconds = new(int64(29))
	require.ErrorContains(t, Validate(pod), "sleep.seconds")
}

func TestValidate(t *testing.T) {
	const (
		c0 = "spec.containers[0]."
		v0 = "spec.volumes[0]."
	)
	vol := func(source string) string { return one + "  volumes:\n  - {name: v, " + source + "}\n" }
	mount := func(m string) string {
		return with("volumeMounts: [{name: v, mountPath: /v, "+m+"}]") + "  volumes: [{name: v}]\n"
	}
	probe := func(p string) string { return with("livenessProbe: {" + p + "}") }
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"a good pod":                  {one, nil},
		"no containers":               {"  restartPolicy: Always\n", []string{"spec.containers"}},
		"an unknown restart":          {one + "  restartPolicy: Sometimes\n", []string{"spec.restartPolicy"}},
		"a deadline that is too long": {one + "  activeDeadlineSeconds: 2147483648\n", []string{"spec.activeDeadlineSeconds"}},
		"huge pages in parts":         {with("resources: {limits: {cpu: 1, hugepages-2Mi: 3Mi, hugepages-x: 1Mi}}"), []string{c0 + "resources.limits[hugepages-2Mi]", c0 + "resources.limits[hugepages-x]", c0 + "resources.requests[hugepages-2Mi]", c0 + "resources.requests[hugepages-x]"}},
		"overhead of huge pages":      {one + "  overhead: {hugepages-2Mi: 1Mi}\n", []string{"spec.overhead[hugepages-2Mi]"}},
		"one named like a quota":      {with("resources: {limits: {requests.kubernetes.io/x: 1}}"), nil},
		"a resource for quotas":       {with("resources: {limits: {requests.example.com/x: 1}}"), []string{c0 + "resources.limits[requests.example.com/x]", c0 + "resources.requests[requests.example.com/x]"}},
		"addresses of two meanings":   {one + "  hostAliases: [{ip: 010.0.0.1}, {ip: '::ffff:1.2.3.4'}, {ip: 10.0.0.1}]\n  dnsConfig: {nameservers: ['::ffff:1.2.3.4'], searches: [a.b_, _a.b]}\n", []string{"spec.hostAliases[0].ip", "spec.hostAliases[1].ip", "spec.dnsConfig.nameservers[0]", "spec.dnsConfig.searches[0]"}},
		"odd kernel parameters":       {one + "  securityContext: {sysctls: [{name: a.b-}, {name: a_b.c-d}], seLinuxChangePolicy: Often, appArmorProfile: {type: Localhost, localhostProfile: ' '}}\n", []string{"S.sysctls[0].name", "S.seLinuxChangePolicy", "S.appArmorProfile.localhostProfile"}},
		"a restart that never comes":  {with("resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}, {resourceName: memory, restartPolicy: NotRequired}]") + "  restartPolicy: Never\n", []string{c0 + "resizePolicy[0].restartPolicy"}},
		"claims of a whole pod":       {one + "  resources: {claims: [{name: a}]}\n", []string{"spec.resources.claims"}},
		"what is odd and valid":       {one + "  imagePullSecrets: [{}, {name: A_B}]\n  securityContext: {appArmorProfile: {type: Localhost, localhostProfile: /usr/bin/../thing}}\n  volumes: [{name: v, configMap: {name: A-B, optional: true, items: [{key: k, path: p}, {key: 'an odd key', path: p}]}}, {name: w, projected: {sources: [{}]}}]\n", nil},
		"negative durations":          {one + "  activeDeadlineSeconds: 0\n", []string{"spec.activeDeadlineSeconds"}},
		"bad names":                   {"  containers:\n  - {name: A_b, image: i}\n  - {name: '', image: i}\n", []string{c0 + "name", "spec.containers[1].name"}},
		"two of one name":             {"  containers:\n  - {name: a, image: i}\n  initContainers:\n  - {name: a, image: i}\n", []string{c0 + "name"}},
		"no image, or blanks":         {"  containers:\n  - {name: a}\n  - {name: b, image: ' i'}\n", []string{c0 + "image", "spec.containers[1].image"}},
		"pull policy":                 {with("imagePullPolicy: Perhaps"), []string{c0 + "imagePullPolicy"}},
		"message policy":              {with("terminationMessagePolicy: Guess"), []string{c0 + "terminationMessagePolicy"}},
		"ports out of range":          {with("ports: [{containerPort: 0}, {containerPort: 65536}, {containerPort: 1, hostPort: -1}]"), []string{c0 + "ports[0].containerPort", c0 + "ports[1].containerPort", c0 + "ports[2].hostPort"}},
		"ports twice":                 {with("ports: [{name: x, containerPort: 1, hostPort: 7}, {name: x, containerPort: 2, hostPort: 7}]"), []string{c0 + "ports[1].name", c0 + "ports[1].hostPort"}},
		"one port, two kinds":         {with("ports: [{containerPort: 1, hostPort: 7}, {containerPort: 2, hostPort: 7, protocol: UDP}]"), nil},
		"a port of two pods":          {"  containers:\n  - {name: a, image: i, ports: [{containerPort: 1, hostPort: 7}]}\n  - {name: b, image: i, ports: [{containerPort: 1, hostPort: 7}]}\n", []string{"spec.containers[1].ports[0].hostPort"}},
		"an init container port":      {with("ports: [{containerPort: 1, hostPort: 7}]") + "  initContainers:\n  - {name: b, image: i, ports: [{containerPort: 1, hostPort: 7}]}\n", nil},
		"a port of a sidecar":         {with("ports: [{containerPort: 1, hostPort: 7}]") + "  initContainers:\n  - {name: b, image: i, restartPolicy: Always, ports: [{containerPort: 2, hostPort: 7}]}\n", nil},
		"a sidecar's ports twice":     {one + "  initContainers:\n  - {name: b, image: i, restartPolicy: Always, ports: [{containerPort: 1, hostPort: 7}, {containerPort: 2, hostPort: 7}]}\n", []string{"spec.initContainers[0].ports[1].hostPort"}},
		"protocol and name":           {with("ports: [{name: Not_ok, containerPort: 1, protocol: HTTP}]"), []string{c0 + "ports[0].name", c0 + "ports[0].protocol"}},
		"any address of the host":     {with("ports: [{containerPort: 1, hostPort: 7, hostIP: localhost}, {containerPort: 2, hostIP: 010.0.0.1}]"), nil},
		"host network, init ports":    {"  hostNetwork: true\n" + one + "  initContainers:\n  - {name: b, image: i, restartPolicy: Always, ports: [{containerPort: 1, hostPort: 2}]}\n", nil},
		"host network ports":          {"  hostNetwork: true\n" + with("ports: [{containerPort: 1, hostPort: 2}]"), []string{c0 + "ports[0].hostPort"}},

		"env names":              {with("env: [{value: x}, {name: 'a=b'}]"), []string{c0 + "env[0].name", c0 + "env[1].name"}},
		"env of two sources":     {with("env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}, secretKeyRef: {name: s, key: k}}}, {name: B, valueFrom: {}}]"), []string{c0 + "env[0].valueFrom", c0 + "env[1].valueFrom"}},
		"env value and source":   {with("env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"), []string{c0 + "env[0].valueFrom"}},
		"env fields":             {with("env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.containers}}}, {name: B, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}, {name: C, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['x']\"}}}]"), []string{c0 + "env[0].valueFrom.fieldRef.fieldPath", c0 + "env[1].valueFrom.fieldRef.fieldPath"}},
		"env keys":               {with("env: [{name: A, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['A.b/c']\"}}}, {name: B, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['A.b/c']\"}}}]"), []string{c0 + "env[1].valueFrom.fieldRef.fieldPath"}},
		"env resources":          {with("env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.love}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 3}}}, {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}]"), []string{c0 + "env[0].valueFrom.resourceFieldRef.resource", c0 + "env[1].valueFrom.resourceFieldRef.divisor"}},
		"env of no object":       {with("envFrom: [{configMapRef: {name: c-}}, {secretRef: {name: s-, optional: true}}, {secretRef: {name: -s}}]"), []string{c0 + "envFrom[2].secretRef.name"}},
		"env references":         {with("env: [{name: A, valueFrom: {configMapKeyRef: {name: c}}}], envFrom: [{}, {prefix: '=', secretRef: {name: ''}}]"), []string{c0 + "env[0].valueFrom.configMapKeyRef.key", c0 + "envFrom[0]", c0 + "envFrom[1].prefix", c0 + "envFrom[1].secretRef.name"}},
		"env files":              {with("env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: a/b, key: K, optional: true}}}, {name: B, valueFrom: {fileKeyRef: {}}}, {name: C, valueFrom: {fileKeyRef: {volumeName: nope, path: a/../../b, key: K=}}}, {name: D, valueFrom: {fileKeyRef: {volumeName: h, path: /b, key: K}}}]") + "  volumes: [{name: v}, {name: h, hostPath: {path: /}}]\n", []string{c0 + "env[1].valueFrom.fileKeyRef.key", c0 + "env[1].valueFrom.fileKeyRef.path", c0 + "env[1].valueFrom.fileKeyRef.volumeName", c0 + "env[2].valueFrom.fileKeyRef.key", c0 + "env[2].valueFrom.fileKeyRef.path", c0 + "env[2].valueFrom.fileKeyRef.volumeName", c0 + "env[3].valueFrom.fileKeyRef.volumeName"}},
		"an undeclared volume":   {with("volumeMounts: [{name: nope, mountPath: /a}]"), []string{c0 + "volumeMounts[0].name"}},
		"mounts at one path":     {with("volumeMounts: [{name: v, mountPath: /a}, {name: v, mountPath: /a}, {name: v}]") + "  volumes: [{name: v}]\n", []string{c0 + "volumeMounts[1].mountPath", c0 + "volumeMounts[2].mountPath"}},
		"an absolute subPath":    {mount("subPath: /etc"), []string{c0 + "volumeMounts[0].subPath"}},
		"a subPath that leaves":  {mount("subPath: a/../../etc"), []string{c0 + "volumeMounts[0].subPath"}},
		"a subPathExpr":          {mount("subPath: a, subPathExpr: ../b"), []string{c0 + "volumeMounts[0].subPathExpr", c0 + "volumeMounts[0].subPathExpr"}},
		"dots that do not leave": {mount("subPath: a..b/..c"), nil},
		"propagation":            {mount("mountPropagation: Bidirectional"), []string{c0 + "volumeMounts[0].mountPropagation"}},
		"bind mount options":     {mount("bindMountOptions: [noexec, suid, noexec]"), []string{c0 + "volumeMounts[0].bindMountOptions[1]", c0 + "volumeMounts[0].bindMountOptions[2]"}},
		"unknown propagation":    {mount("mountPropagation: Both"), []string{c0 + "volumeMounts[0].mountPropagation"}},
		"recursive read-only":    {mount("recursiveReadOnly: Enabled"), []string{c0 + "volumeMounts[0].recursiveReadOnly"}},

		"requests over limits":     {with("resources: {requests: {cpu: 2, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}"), []string{c0 + "resources.requests[cpu]"}},
		"negative quantities":      {with("resources: {limits: {cpu: -1}}"), []string{c0 + "resources.limits[cpu]", c0 + "resources.requests[cpu]"}},
		"resources unknown":        {with("resources: {limits: {gpu: 1, 'example.com/gpu': 1500m}}"), []string{c0 + "resources.limits[example.com/gpu]", c0 + "resources.limits[gpu]", c0 + "resources.requests[example.com/gpu]", c0 + "resources.requests[gpu]"}},
		"devices overcommitted":    {with("resources: {requests: {'example.com/gpu': 1}, limits: {'example.com/gpu': 2}}"), []string{c0 + "resources.requests[example.com/gpu]"}},
		"huge pages alone":         {with("resources: {limits: {hugepages-2Mi: 2Mi}}"), []string{c0 + "resources"}},
		"pod resources":            {with("resources: {requests: {cpu: 2}, limits: {cpu: 4}}") + "  resources: {requests: {cpu: 1}, limits: {cpu: 3, ephemeral-storage: 1}}\n", []string{"spec.resources.limits[ephemeral-storage]", "spec.resources.requests[cpu]", "spec.resources.limits[cpu]"}},
		"init limits over the pod": {one + "  initContainers:\n  - {name: b, image: i, resources: {requests: {cpu: 1}, limits: {cpu: 4}}}\n  - {name: s, image: i, restartPolicy: Always, resources: {requests: {cpu: 1}, limits: {cpu: 4}}}\n  resources: {limits: {cpu: 3}}\n", nil},
		"resize policy":            {with("resizePolicy: [{resourceName: cpu, restartPolicy: Maybe}, {resourceName: cpu, restartPolicy: NotRequired}]"), []string{c0 + "resizePolicy[0].restartPolicy", c0 + "resizePolicy[1].resourceName"}},
		"restart rules":            {with("restartPolicyRules: [{action: Dance}]"), []string{c0 + "restartPolicy", c0 + "restartPolicyRules[0].action", c0 + "restartPolicyRules[0].exitCodes"}},
		"a probe without handler":  {probe("periodSeconds: 1"), []string{c0 + "livenessProbe"}},
		"a probe with two":         {probe("exec: {command: [x]}, tcpSocket: {port: 1}"), []string{c0 + "livenessProbe"}},
		"probe numbers":            {probe("exec: {command: []}, periodSeconds: -1, timeoutSeconds: -1, successThreshold: 2, terminationGracePeriodSeconds: 0"), []string{c0 + "livenessProbe.exec.command", c0 + "livenessProbe.timeoutSeconds", c0 + "livenessProbe.periodSeconds", c0 + "livenessProbe.successThreshold", c0 + "livenessProbe.terminationGracePeriodSeconds"}},
		"probe ports":              {probe("httpGet: {port: 70000, scheme: FTP, httpHeaders: [{name: 'a b'}]}"), []string{c0 + "livenessProbe.httpGet.port", c0 + "livenessProbe.httpGet.scheme", c0 + "livenessProbe.httpGet.httpHeaders[0].name"}},
		"readiness grace":          {with("readinessProbe: {grpc: {port: 0}, successThreshold: 5, terminationGracePeriodSeconds: 5}"), []string{c0 + "readinessProbe.grpc.port", c0 + "readinessProbe.terminationGracePeriodSeconds"}},
		"hooks":                    {with("lifecycle: {postStart: {}, preStop: {sleep: {seconds: 31}}, stopSignal: TERM}"), []string{c0 + "lifecycle.postStart", c0 + "lifecycle.preStop.sleep.seconds", c0 + "lifecycle.stopSignal"}},
		"a signal of the kernel":   {with("lifecycle: {stopSignal: SIGRTMIN+3}"), nil},
		"a signal too high":        {with("lifecycle: {stopSignal: SIGRTMIN+16}"), []string{c0 + "lifecycle.stopSignal"}},
		"an unknown signal":        {with("lifecycle: {stopSignal: SIGFOO}"), []string{c0 + "lifecycle.stopSignal"}},
		"a hook without a port":    {with("lifecycle: {preStop: {tcpSocket: {port: 0}}}"), []string{c0 + "lifecycle.preStop.tcpSocket.port"}},
		"an init with probes":      {one + "  initContainers:\n  - {name: b, image: i, livenessProbe: {exec: {command: [x]}}, lifecycle: {}}\n  - {name: s, image: i, restartPolicy: Always, livenessProbe: {exec: {command: [x]}}, lifecycle: {}}\n", []string{"spec.initContainers[0].lifecycle", "spec.initContainers[0].livenessProbe"}},
		"ephemeral containers":     {one + "  ephemeralContainers:\n  - {name: e, image: i, targetContainerName: z, ports: [{containerPort: 1}], readinessProbe: {exec: {command: [x]}}}\n", []string{"spec.ephemeralContainers[0].readinessProbe", "spec.ephemeralContainers[0].targetContainerName", "spec.ephemeralContainers[0].ports"}},

		"volumes of one name":    {one + "  volumes: [{name: v}, {name: v}, {name: 'V V'}]\n", []string{"spec.volumes[1].name", "spec.volumes[2].name"}},
		"a volume of two kinds":  {vol("emptyDir: {}, hostPath: {path: /a}"), []string{"spec.volumes[0]"}},
		"emptyDir":               {vol("emptyDir: {sizeLimit: -1}"), []string{v0 + "emptyDir.sizeLimit"}},
		"hostPath":               {vol("hostPath: {path: /a/../b, type: Magic}"), []string{v0 + "hostPath.path", v0 + "hostPath.type"}},
		"a secret without name":  {vol("secret: {defaultMode: 512}"), []string{v0 + "secret.secretName", v0 + "secret.defaultMode"}},
		"items that leave":       {vol("configMap: {name: c, items: [{key: a, path: ../x}, {key: '', path: /x}, {key: b, path: ..data}, {key: c, path: q, mode: 4096}, {key: d, path: q}]}"), []string{v0 + "configMap.items[0].path", v0 + "configMap.items[1].key", v0 + "configMap.items[1].path", v0 + "configMap.items[2].path", v0 + "configMap.items[3].mode"}},
		"downward":               {vol("downwardAPI: {items: [{path: a}, {path: b, fieldRef: {fieldPath: status.podIP}}, {path: c, resourceFieldRef: {resource: limits.cpu}}, {path: d, resourceFieldRef: {containerName: z, resource: limits.love}}]}"), []string{v0 + "downwardAPI.items[0]", v0 + "downwardAPI.items[1].fieldRef.fieldPath", v0 + "downwardAPI.items[2].resourceFieldRef.containerName", v0 + "downwardAPI.items[3].resourceFieldRef.resource"}},
		"tokens at one path":     {vol("projected: {sources: [{serviceAccountToken: {path: x}}, {serviceAccountToken: {path: x}}, {configMap: {name: c, items: [{key: k, path: x}]}}]}"), nil},
		"trust bundle paths":     {vol("projected: {sources: [{clusterTrustBundle: {path: ../x}}, {clusterTrustBundle: {path: x}}, {secret: {name: s, items: [{key: k, path: x}]}}]}"), []string{v0 + "projected.sources[0].clusterTrustBundle.path", v0 + "projected.sources[2].secret.items[0].path"}},
		"projected":              {vol("projected: {sources: [{}, {secret: {name: s, items: [{key: k, path: x}]}}, {configMap: {name: c, items: [{key: k, path: x}]}}]}"), []string{v0 + "projected.sources[2].configMap.items[0].path"}},
		"an image without name":  {vol("image: {}"), []string{v0 + "image.reference"}},
		"dns":                    {one + "  dnsPolicy: None\n  dnsConfig: {searches: [ok.example, a b], options: [{}]}\n", []string{"spec.dnsConfig.nameservers", "spec.dnsConfig.searches[1]", "spec.dnsConfig.options[0].name"}},
		"dns servers":            {one + "  dnsPolicy: Best\n  dnsConfig: {nameservers: [1.1.1.1, here, 1.1.1.2, 1.1.1.3]}\n", []string{"spec.dnsPolicy", "spec.dnsConfig.nameservers", "spec.dnsConfig.nameservers[1]"}},
		"host names":             {one + "  hostname: a.b\n  subdomain: A\n  hostAliases: [{ip: x, hostnames: [a, B_]}]\n", []string{"spec.hostname", "spec.subdomain", "spec.hostAliases[0].ip", "spec.hostAliases[0].hostnames[1]"}},
		"a host name overridden": {one + "  hostNetwork: true\n  hostnameOverride: x\n", []string{"spec.hostnameOverride"}},
		"toleration values":      {one + "  tolerations: [{key: a, value: x y}, {key: a, operator: Lt, value: x}, {key: a, operator: Gt, value: '-5'}]\n", []string{"spec.tolerations[0].value", "spec.tolerations[1].value"}},
		"tolerations":            {one + "  tolerations: [{value: x}, {key: a, operator: Exists, value: x}, {key: a, effect: Burn, tolerationSeconds: 1}]\n", []string{"spec.tolerations[0].operator", "spec.tolerations[1].value", "spec.tolerations[2].effect", "spec.tolerations[2].effect"}},
		"node affinity":          {one + "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In}, {key: a, operator: Exists, values: [x]}, {key: a, operator: Gt}, {key: a, operator: Near}], matchFields: [{key: spec.x, operator: In, values: [a]}]}]}}}\n", []string{"A.matchExpressions[0].values", "A.matchExpressions[1].values", "A.matchExpressions[2].values", "A.matchExpressions[3].operator", "A.matchFields[0].key"}},
		"no node terms":          {one + "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}\n", []string{"spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"}},
		"other names":            {one + "  priorityClassName: A\n  runtimeClassName: B_\n  os: {name: plan9}\n  nodeSelector: {'a b': c}\n  imagePullSecrets: [{}]\n  readinessGates: [{conditionType: 'a b'}]\n", []string{"spec.nodeSelector", "spec.priorityClassName", "spec.runtimeClassName", "spec.os.name", "spec.readinessGates[0].conditionType"}},

		"process namespaces":   {one + "  hostPID: true\n  shareProcessNamespace: true\n", []string{"spec.shareProcessNamespace"}},
		"user namespaces":      {one + "  hostUsers: false\n  hostNetwork: true\n  hostIPC: true\n", []string{"spec.hostNetwork", "spec.hostIPC"}},
		"pod security":         {one + "  securityContext: {runAsUser: -1, runAsGroup: 2147483648, fsGroup: -2, supplementalGroups: [1, -1], fsGroupChangePolicy: X, supplementalGroupsPolicy: Z, seccompProfile: {type: Localhost}, appArmorProfile: {type: Q}}\n", []string{"S.runAsUser", "S.runAsGroup", "S.fsGroup", "S.supplementalGroups[1]", "S.fsGroupChangePolicy", "S.supplementalGroupsPolicy", "S.seccompProfile.localhostProfile", "S.appArmorProfile.type"}},
		"profiles that leave":  {one + "  securityContext: {seccompProfile: {type: Localhost, localhostProfile: ../x}, appArmorProfile: {type: Unconfined, localhostProfile: q}}\n", []string{"S.seccompProfile.localhostProfile", "S.appArmorProfile.localhostProfile"}},
		"sysctls":              {one + "  hostNetwork: true\n  hostIPC: true\n  securityContext: {sysctls: [{name: net.a}, {name: kernel.shmmax}, {name: ../x}, {name: vm.a}, {name: vm.a}, {name: A}]}\n", []string{"S.sysctls[0].name", "S.sysctls[1].name", "S.sysctls[2].name", "S.sysctls[4].name", "S.sysctls[5].name"}},
		"privilege escalation": {with("securityContext: {allowPrivilegeEscalation: false, privileged: true, capabilities: {add: [CAP_SYS_ADMIN]}, procMount: Unmasked}"), []string{c0 + "securityContext.procMount", c0 + "securityContext.allowPrivilegeEscalation", c0 + "securityContext.allowPrivilegeEscalation"}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			for _, w := range tc.want {
				w = strings.Replace(w, "A.", "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].", 1)
				want = append(want, strings.Replace(w, "S.", "spec.securityContext.", 1))
			}
			err := Validate(podWith(t, tc.spec))
			assert.ElementsMatch(t, want, errorPaths(t, err), "%v", err)
		})
	}
}

// What an API server accepts is valid, also where it can only fail later or has no effect.
func TestValidate_AcceptsWhatAnAPIServerDoes(t *testing.T) {
	vol := func(source string) string { return one + "  volumes: [{name: v, " + source + "}]\n" }
	for name, spec := range map[string]string{
		"a capability that gives privileges": with("securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [SYS_ADMIN]}}"),
		"a colon in a path":                  with("volumeMounts: [{name: v, mountPath: '/a:b'}]") + "  volumes: [{name: v}]\n",
		"hooks of an old kind":               with("lifecycle: {postStart: {tcpSocket: {port: 1}}, preStop: {tcpSocket: {port: web}}}"),
		"an unknown medium":                  vol("emptyDir: {medium: Floppy}"),
		"a relative path of the host":        vol("hostPath: {path: a/b}"),
		"a part of a native resource":        with("resources: {limits: {a.kubernetes.io/b: 500m}, requests: {a.kubernetes.io/b: 0, kubernetes.io/c: 1}}"),
		"two spellings of one parameter":     one + "  securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}, {name: kernel/shm_rmid_forced, value: '0'}]}\n",
		"a volume of an unknown container":   vol("downwardAPI: {items: [{path: a, resourceFieldRef: {containerName: z, resource: limits.cpu}}]}"),
		"a field by its old name":            with("env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.host}}}]"),
	} {
		t.Run(name, func(t *testing.T) {
			pod := podWith(t, spec)
			assert.NoError(t, Validate(pod))
			assert.Empty(t, Unsupported(pod))
		})
	}
}

// SP-2: names that become directories.
func TestValidate_Identity(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   []string
	}{
		"no name":            {func(p *corev1.Pod) { p.Name = "" }, []string{"metadata.name"}},
		"a name with slash":  {func(p *corev1.Pod) { p.Name = "../x" }, []string{"metadata.name"}},
		"a namespace":        {func(p *corev1.Pod) { p.Namespace = "a.b" }, []string{"metadata.namespace"}},
		"a UID as a path":    {func(p *corev1.Pod) { p.UID = "../../etc" }, []string{"metadata.uid"}},
		"a UID of dots":      {func(p *corev1.Pod) { p.UID = ".." }, []string{"metadata.uid"}},
		"a long UID":         {func(p *corev1.Pod) { p.UID = "a" + "aaaaaaaa" + "-" }, nil},
		"too long for files": {func(p *corev1.Pod) { p.Name = strings.Repeat("a", 245) }, []string{"metadata.name"}},
		"bad labels": {func(p *corev1.Pod) {
			p.Labels, p.Annotations = map[string]string{"a": "b c"}, map[string]string{"-": ""}
		}, []string{"metadata.labels", "metadata.annotations"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podWith(t, one)
			tc.change(pod)
			assert.Equal(t, tc.want, errorPaths(t, Validate(pod)))
		})
	}
}

// SP-2: all errors of a pod are returned together.
func TestValidate_ReturnsAllErrors(t *testing.T) {
	pod := podWith(t, "  restartPolicy: Never ever\n  containers:\n  - name: Bad_Name\n    ports: [{containerPort: 0}]\n    volumeMounts: [{name: none, mountPath: /x}]\n")
	err := Validate(pod)
	assert.Len(t, errorPaths(t, err), 5, "%v", err)
	assert.ErrorContains(t, err, "spec.restartPolicy")
}

// A debug container has no restart policy that would allow it probes.
func TestValidate_SaysWhyAContainerHasNoProbes(t *testing.T) {
	probed := corev1.Container{Name: "x", Image: "i", ReadinessProbe: &corev1.Probe{}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers:      []corev1.Container{probed},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(probed)}},
	}}
	err := Validate(pod)
	require.ErrorContains(t, err, "spec.initContainers[0].readinessProbe: Forbidden: not for init containers without restartPolicy Always")
	require.ErrorContains(t, err, "spec.ephemeralContainers[0].readinessProbe: Forbidden: not for ephemeral containers")
}

// The number of errors is bounded.
func TestValidate_BoundsErrors(t *testing.T) {
	pod := podWith(t, "  containers:\n"+strings.Repeat("  - {name: a, image: i}\n", 5000))
	err := Validate(pod)
	assert.ErrorContains(t, err, "and 4899 more errors")
	assert.Less(t, len(err.Error()), 1<<14)
}

func TestValidate_NeverQuotesValues(t *testing.T) {
	pod := podWith(t, with("env: [{name: 'a=b', value: s3cret}, {name: A, value: s3cret, valueFrom: {}}]"))
	assert.NotContains(t, Validate(pod).Error(), "s3cret")
}

// What needs an API server or a driver is refused by name, and nothing else is.
func TestUnsupported(t *testing.T) {
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"a good pod":      {one + "  serviceAccountName: default\n  automountServiceAccountToken: false\n  os: {name: linux}\n  affinity: {podAffinity: {}}\n  volumes: [{name: a}, {name: b, hostPath: {path: /}}, {name: c, downwardAPI: {}}, {name: d, image: {reference: x}}]\n", nil},
		"claims":          {one + "  volumes: [{name: a, persistentVolumeClaim: {claimName: c}}, {name: b, ephemeral: {}}, {name: c, csi: {driver: d}}, {name: d, nfs: {server: s, path: /}}]\n", []string{"spec.volumes[0].persistentVolumeClaim", "spec.volumes[1].ephemeral", "spec.volumes[2].csi", "spec.volumes[3].nfs"}},
		"tokens":          {one + "  serviceAccountName: sa\n  automountServiceAccountToken: true\n  volumes: [{name: a, projected: {sources: [{configMap: {name: c}}, {serviceAccountToken: {path: t}}, {clusterTrustBundle: {path: t}}]}}]\n", []string{"spec.volumes[0].projected.sources[1].serviceAccountToken", "spec.volumes[0].projected.sources[2].clusterTrustBundle", "spec.serviceAccountName", "spec.automountServiceAccountToken"}},
		"huge pages":      {with("volumeMounts: [{name: a, mountPath: /a}]") + "  volumes: [{name: a, emptyDir: {medium: HugePages-2Mi}}, {name: b, emptyDir: {medium: HugePages}}]\n", []string{"spec.volumes[0].emptyDir.medium"}},
		"resource claims": {with("resources: {claims: [{name: r}]}") + "  resourceClaims: [{name: r}]\n  schedulingGates: [{name: g}]\n", []string{"spec.schedulingGates", "spec.resourceClaims", "spec.containers[0].resources.claims"}},
		"windows":         {with("securityContext: {windowsOptions: {}}") + "  os: {name: windows}\n  securityContext: {windowsOptions: {}}\n", []string{"spec.os.name", "spec.securityContext.windowsOptions", "spec.containers[0].securityContext.windowsOptions"}},
		"block devices":   {with("volumeDevices: [{name: d, devicePath: /dev/x}]"), []string{"spec.containers[0].volumeDevices"}},
		"env files":       {with("env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k}}}]"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range Unsupported(podWith(t, tc.spec)) {
				got = append(got, e.Field)
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

// SP-2: what people really write is not refused.
func TestValidate_ValidManifests(t *testing.T) {
	files, err := filepath.Glob("testdata/good/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			pods, _, err := Decode(data, DecodeOptions{})
			require.NoError(t, err)
			require.Len(t, pods, 1)
			AssignStaticIdentity(pods[0], "node-1", "file", file)
			Default(pods[0])
			assert.NoError(t, Validate(pods[0]))
			assert.Empty(t, Unsupported(pods[0]))
		})
	}
}
