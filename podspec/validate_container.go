package podspec

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (v *validator) containerLists(path *field.Path) {
	spec := &v.pod.Spec
	names, hostPorts := make(map[string]bool), make(map[string]bool)
	for i := range spec.InitContainers {
		c, at := &spec.InitContainers[i], path.Child("initContainers").Index(i)
		v.container(at, c, names)
		v.ports(at.Child("ports"), c.Ports, make(map[string]bool)) // as in an API server, also of a sidecar
		if IsSidecar(c) {
			v.sidecarOrRegular(at, c)
		} else {
			v.runsToItsEnd(at, c, "not for init containers without restartPolicy Always")
		}
	}
	if len(spec.Containers) == 0 {
		v.required(path.Child("containers"), "a pod has at least one")
	}
	for i := range spec.Containers {
		c, at := &spec.Containers[i], path.Child("containers").Index(i)
		v.container(at, c, names)
		v.ports(at.Child("ports"), c.Ports, hostPorts)
		v.hostNetworkPorts(at.Child("ports"), c.Ports)
		v.sidecarOrRegular(at, c)
	}
	v.ephemeralList(path.Child("ephemeralContainers"), names)
}

// container checks the fields that all types of container have.
func (v *validator) container(path *field.Path, c *corev1.Container, names map[string]bool) {
	v.need(path.Child("name"), c.Name, validation.IsDNS1123Label)
	v.unique(path.Child("name"), c.Name, names)
	v.need(path.Child("image"), c.Image, isTrimmed)
	oneOf(v, path.Child("imagePullPolicy"), c.ImagePullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	oneOf(v, path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	v.env(path, c)
	v.mounts(path, c)
	v.resources(path.Child("resources"), &c.Resources)
	v.resizePolicy(path.Child("resizePolicy"), c.ResizePolicy)
	v.restartPolicy(path, c)
	if c.SecurityContext != nil {
		v.containerSecurity(path.Child("securityContext"), c.SecurityContext)
	}
}

func isTrimmed(s string) []string {
	if strings.TrimSpace(s) != s {
		return []string{"must not have leading or trailing whitespace"}
	}
	return nil
}

func (v *validator) sidecarOrRegular(path *field.Path, c *corev1.Container) {
	v.probe(path.Child("livenessProbe"), c.LivenessProbe, false)
	v.probe(path.Child("readinessProbe"), c.ReadinessProbe, true)
	v.probe(path.Child("startupProbe"), c.StartupProbe, false)
	if c.Lifecycle == nil {
		return
	}
	at := path.Child("lifecycle")
	v.hook(at.Child("postStart"), c.Lifecycle.PostStart)
	v.hook(at.Child("preStop"), c.Lifecycle.PreStop)
	if s := c.Lifecycle.StopSignal; s != nil && !isSignal(string(*s)) {
		v.invalid(at.Child("stopSignal"), *s, "must be the name of a signal, such as SIGTERM")
	}
}

// signals are the signals of the API without SIG, except those above RTMIN and below RTMAX.
const signals = "ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT " +
	"RTMAX RTMIN SEGV STKFLT STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ"

func isSignal(s string) bool {
	name, ok := strings.CutPrefix(s, "SIG")
	if above, found := strings.CutPrefix(name, "RTMIN+"); ok && found {
		return isNumberUpTo(above, 15)
	}
	if below, found := strings.CutPrefix(name, "RTMAX-"); ok && found {
		return isNumberUpTo(below, 14)
	}
	return ok && slices.Contains(strings.Fields(signals), name)
}

func isNumberUpTo(s string, most int) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1 && n <= most && strconv.Itoa(n) == s
}

// runsToItsEnd checks an ephemeral container, or an init container that is not a sidecar: it has no probes and no hooks.
func (v *validator) runsToItsEnd(path *field.Path, c *corev1.Container, why string) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"lifecycle", c.Lifecycle != nil},
		{"livenessProbe", c.LivenessProbe != nil},
		{"readinessProbe", c.ReadinessProbe != nil},
		{"startupProbe", c.StartupProbe != nil},
	} {
		if f.set {
			v.forbidden(path.Child(f.name), why)
		}
	}
}

func (v *validator) ephemeralList(path *field.Path, names map[string]bool) {
	targets := make(map[string]bool)
	for c := range Containers(v.pod) {
		targets[c.Name] = true
	}
	for i := range v.pod.Spec.EphemeralContainers {
		e, at := &v.pod.Spec.EphemeralContainers[i], path.Index(i)
		c := (*corev1.Container)(&e.EphemeralContainerCommon)
		v.container(at, c, names)
		v.runsToItsEnd(at, c, "not for ephemeral containers")
		if e.TargetContainerName != "" && (!targets[e.TargetContainerName] || e.TargetContainerName == e.Name) {
			v.errs = append(v.errs, field.NotFound(at.Child("targetContainerName"), e.TargetContainerName))
		}
		if len(c.Ports) > 0 {
			v.forbidden(at.Child("ports"), "not for ephemeral containers")
		}
		if len(c.Resources.Limits)+len(c.Resources.Requests) > 0 {
			v.forbidden(at.Child("resources"), "not for ephemeral containers")
		}
		if c.RestartPolicy != nil {
			v.forbidden(at.Child("restartPolicy"), "not for ephemeral containers")
		}
	}
}

const maxPort = 65535

// ports checks the ports of one container. hostPorts are those of the containers before it whose
// host ports must differ. As in an API server, hostIP can be anything: it is the runtime's to use, and
// means nothing without a host port and on the host network.
func (v *validator) ports(path *field.Path, ports []corev1.ContainerPort, hostPorts map[string]bool) {
	names := make(map[string]bool)
	for i := range ports {
		p, at := &ports[i], path.Index(i)
		if p.Name != "" {
			v.check(at.Child("name"), p.Name, validation.IsValidPortName)
			v.unique(at.Child("name"), p.Name, names)
		}
		v.portNumber(at.Child("containerPort"), p.ContainerPort)
		oneOf(v, at.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		if p.HostPort == 0 {
			continue
		}
		v.portNumber(at.Child("hostPort"), p.HostPort)
		v.unique(at.Child("hostPort"), hostPortKey(p), hostPorts)
	}
}

// hostNetworkPorts checks that the ports of a regular container are those of the host if the pod has
// its network.
func (v *validator) hostNetworkPorts(path *field.Path, ports []corev1.ContainerPort) {
	for i := range ports {
		if p := &ports[i]; v.pod.Spec.HostNetwork && p.HostPort != 0 && p.HostPort != p.ContainerPort {
			v.invalid(path.Index(i).Child("hostPort"), p.HostPort, "must be the containerPort on the host network")
		}
	}
}

func (v *validator) portNumber(path *field.Path, n int32) {
	if n < 1 || n > maxPort {
		v.invalid(path, n, "must be between 1 and 65535")
	}
}

func (v *validator) restartPolicy(path *field.Path, c *corev1.Container) {
	at := path.Child("restartPolicyRules")
	if c.RestartPolicy != nil {
		oneOf(v, path.Child("restartPolicy"), *c.RestartPolicy, corev1.ContainerRestartPolicyAlways,
			corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever)
	} else if len(c.RestartPolicyRules) > 0 {
		v.required(path.Child("restartPolicy"), "with restartPolicyRules")
	}
	if len(c.RestartPolicyRules) > 20 {
		v.errs = append(v.errs, field.TooMany(at, len(c.RestartPolicyRules), 20))
	}
	for i, rule := range c.RestartPolicyRules {
		oneOf(v, at.Index(i).Child("action"), rule.Action,
			corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		codes := at.Index(i).Child("exitCodes")
		if rule.ExitCodes == nil {
			v.required(codes, "")
			continue
		}
		oneOf(v, codes.Child("operator"), rule.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if n := len(rule.ExitCodes.Values); n > 255 {
			v.errs = append(v.errs, field.TooMany(codes.Child("values"), n, 255))
		}
	}
}
