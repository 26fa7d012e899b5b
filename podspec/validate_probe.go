package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (v *validator) probe(path *field.Path, p *corev1.Probe, readiness bool) {
	if p == nil {
		return
	}
	v.handlers(path, p.Exec, p.HTTPGet, p.TCPSocket, []bool{p.GRPC != nil})
	if p.GRPC != nil {
		v.portNumber(path.Child("grpc", "port"), p.GRPC.Port)
	}
	for _, f := range []struct {
		name string
		n    int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds},
		{"timeoutSeconds", p.TimeoutSeconds},
		{"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold},
		{"failureThreshold", p.FailureThreshold},
	} {
		atLeast(v, path.Child(f.name), &f.n, 0)
	}
	if !readiness && p.SuccessThreshold > 1 {
		v.invalid(path.Child("successThreshold"), p.SuccessThreshold, "must be 1")
	}
	if readiness && p.TerminationGracePeriodSeconds != nil {
		v.forbidden(path.Child("terminationGracePeriodSeconds"), "a readiness probe ends nothing")
	}
	atLeast(v, path.Child("terminationGracePeriodSeconds"), p.TerminationGracePeriodSeconds, 1)
}

func (v *validator) hook(path *field.Path, h *corev1.LifecycleHandler) {
	if h == nil {
		return
	}
	v.handlers(path, h.Exec, h.HTTPGet, h.TCPSocket, []bool{h.Sleep != nil})
	if h.Sleep != nil {
		atLeast(v, path.Child("sleep", "seconds"), &h.Sleep.Seconds, 0)
		// Not GracePeriod: a pod that is deleted at once stays valid.
		grace := int64(DefaultGracePeriod.Seconds())
		if seconds := v.pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
			grace = *seconds
		}
		if h.Sleep.Seconds > grace {
			v.invalid(path.Child("sleep", "seconds"), h.Sleep.Seconds, "must not be longer than the pod's terminationGracePeriodSeconds")
		}
	}
}

// handlers checks the handlers that probes and hooks have in common. others are the further
// ones that are set.
func (v *validator) handlers(path *field.Path, e *corev1.ExecAction, get *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction, others []bool) {
	set := append(others, e != nil, get != nil, tcp != nil)
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	if n == 0 {
		v.required(path, "a handler: exec, httpGet, tcpSocket, ...")
	} else if n > 1 {
		v.forbidden(path, "more than one handler")
	}
	if e != nil && len(e.Command) == 0 {
		v.required(path.Child("exec", "command"), "")
	}
	if tcp != nil {
		v.port(path.Child("tcpSocket", "port"), tcp.Port)
	}
	if get == nil {
		return
	}
	at := path.Child("httpGet")
	v.need(at.Child("path"), get.Path, nil)
	v.port(at.Child("port"), get.Port)
	oneOf(v, at.Child("scheme"), get.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for i, h := range get.HTTPHeaders {
		v.check(at.Child("httpHeaders").Index(i).Child("name"), h.Name, validation.IsHTTPHeaderName)
	}
}

// port checks the number or the name of a port.
func (v *validator) port(path *field.Path, p intstr.IntOrString) {
	if p.Type == intstr.Int {
		v.portNumber(path, p.IntVal)
	} else {
		v.check(path, p.StrVal, validation.IsValidPortName)
	}
}
