package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns all that is wrong with a pod at once, each fault with the
// path of its field, or nil. The pod should have been defaulted. Environment
// values are never quoted.
func Validate(pod *corev1.Pod) error {
	v := validator{pod: pod}
	v.meta(field.NewPath("metadata"))
	v.spec(field.NewPath("spec"))
	return v.errs.ToAggregate()
}

// validator gathers the faults of one pod.
type validator struct {
	pod  *corev1.Pod
	errs field.ErrorList
}

func (v *validator) add(errs ...*field.Error) { v.errs = append(v.errs, errs...) }

func (v *validator) required(path *field.Path, message string) {
	v.add(field.Required(path, message))
}

func (v *validator) invalid(path *field.Path, value any, message string) {
	v.add(field.Invalid(path, value, message))
}

// check reports whether value passes.
func (v *validator) check(path *field.Path, value string, check func(string) []string) bool {
	errs := invalid(path, value, check)
	v.errs = append(v.errs, errs...)
	return len(errs) == 0
}

// oneOf reports whether value is among the allowed.
func oneOf[T ~string](v *validator, path *field.Path, value T, allowed ...T) bool {
	for _, a := range allowed {
		if a == value {
			return true
		}
	}
	if value == "" {
		v.required(path, "")
	} else {
		v.add(field.NotSupported(path, value, allowed))
	}
	return false
}

func (v *validator) meta(path *field.Path) {
	m := &v.pod.ObjectMeta
	if m.Name == "" {
		v.required(path.Child("name"), "")
	} else {
		v.check(path.Child("name"), m.Name, validation.IsDNS1123Subdomain)
	}
	if m.Namespace != "" {
		v.check(path.Child("namespace"), m.Namespace, validation.IsDNS1123Label)
	}
}

func (v *validator) spec(path *field.Path) {
	spec := &v.pod.Spec
	if len(spec.Containers) == 0 {
		v.required(path.Child("containers"), "a pod has at least one")
	}
	oneOf(v, path.Child("restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
}
