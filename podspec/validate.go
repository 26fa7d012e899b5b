package podspec

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns all errors of a pod, each (up to a hundred) a *field.Error with the
// path of its field, or nil. The pod should have been defaulted. Values of environment
// variables are never quoted.
//
// It rejects pods that cannot run on any node. Unsupported returns the fields that this
// kind of node does not support.
func Validate(pod *corev1.Pod) error {
	v := validator{pod: pod, volumes: make(map[string]*corev1.Volume, len(pod.Spec.Volumes))}
	v.amounts(field.NewPath("spec"))
	if len(v.errs) == 0 { // else checks that compare them would not end
		v.meta(field.NewPath("metadata"))
		v.spec(field.NewPath("spec"))
	}
	return v.all()
}

// maxFieldErrors is the maximum number of errors that Validate returns for one pod.
const maxFieldErrors = 100

func (v *validator) all() error {
	more := len(v.errs) - maxFieldErrors
	if more <= 0 {
		return v.errs.ToAggregate()
	}
	reported := v.errs[:maxFieldErrors:maxFieldErrors].ToAggregate().Errors()
	return utilerrors.NewAggregate(append(reported, fmt.Errorf("and %d more errors", more)))
}

// validator collects the errors of one pod.
type validator struct {
	pod     *corev1.Pod
	volumes map[string]*corev1.Volume // by name, after volumeList
	errs    field.ErrorList
}

func (v *validator) required(path *field.Path, message string) {
	v.errs = append(v.errs, field.Required(path, message))
}

func (v *validator) invalid(path *field.Path, value any, message string) {
	v.errs = append(v.errs, field.Invalid(path, value, message))
}

func (v *validator) forbidden(path *field.Path, message string) {
	v.errs = append(v.errs, field.Forbidden(path, message))
}

func (v *validator) check(path *field.Path, value string, check func(string) []string) {
	v.errs = append(v.errs, invalid(path, value, check)...)
}

// need is like check, for a required string.
func (v *validator) need(path *field.Path, value string, check func(string) []string) {
	if value == "" {
		v.required(path, "")
	} else if check != nil {
		v.check(path, value, check)
	}
}

// atLeast checks an optional number.
func atLeast[T int32 | int64](v *validator, path *field.Path, n *T, least T) {
	if n != nil && *n < least {
		v.invalid(path, *n, fmt.Sprintf("must be at least %d", least))
	}
}

// oneOf checks that value is one of those allowed.
func oneOf[T ~string](v *validator, path *field.Path, value T, allowed ...T) {
	switch {
	case slices.Contains(allowed, value):
	case value == "":
		v.required(path, "")
	default:
		v.errs = append(v.errs, field.NotSupported(path, value, allowed))
	}
}

// unique adds name to names and reports an error if it is a duplicate.
func (v *validator) unique(path *field.Path, name string, names map[string]bool) {
	if names[name] && name != "" {
		v.errs = append(v.errs, field.Duplicate(path, name))
	}
	names[name] = true
}

// maxFileName is the maximum length of <namespace>_<name>_<uid>, the name of log
// directories and status files. With suffixes the limit of file systems is 255 bytes.
const maxFileName = 240

func (v *validator) meta(path *field.Path) {
	m := &v.pod.ObjectMeta
	v.need(path.Child("name"), m.Name, validation.IsDNS1123Subdomain)
	if m.Namespace != "" {
		v.check(path.Child("namespace"), m.Namespace, validation.IsDNS1123Label)
	}
	if m.UID != "" {
		v.check(path.Child("uid"), string(m.UID), isUID)
	}
	if n := len(m.Namespace) + len(m.Name) + len(m.UID) + 2; n > maxFileName && len(m.Name) <= validation.DNS1123SubdomainMaxLength {
		v.invalid(path.Child("name"), m.Name, fmt.Sprintf("with namespace and uid it has %d bytes, more than the %d allowed in the name of the log directory", n, maxFileName))
	}
	v.errs = append(v.errs, metavalidation.ValidateLabels(m.Labels, path.Child("labels"))...)
	v.errs = append(v.errs, apivalidation.ValidateAnnotations(m.Annotations, path.Child("annotations"))...)
	atLeast(v, path.Child("deletionGracePeriodSeconds"), m.DeletionGracePeriodSeconds, 0)
}

// isUID reports whether a UID is safe as the name of a directory.
func isUID(uid string) []string {
	for i := range len(uid) {
		c := uid[i]
		word := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !word && (i == 0 || c != '-' && c != '_' && c != '.') {
			return []string{"must be letters, digits, '-', '_' and '.', and begin with a letter or digit"}
		}
	}
	if len(uid) > 128 {
		return []string{"must be no more than 128 bytes"}
	}
	return nil
}

func (v *validator) spec(path *field.Path) {
	spec := &v.pod.Spec
	v.volumeList(path.Child("volumes")) // first: containers refer to them
	v.containerLists(path)
	oneOf(v, path.Child("restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	atLeast(v, path.Child("terminationGracePeriodSeconds"), spec.TerminationGracePeriodSeconds, 0)
	if s := spec.ActiveDeadlineSeconds; s != nil && (*s < 1 || *s > math.MaxInt32) {
		v.invalid(path.Child("activeDeadlineSeconds"), *s, "must be between 1 and 2147483647")
	}
	v.network(path)
	v.placement(path)
	v.podSecurity(path)
	v.podResources(path)
	for i, g := range spec.ReadinessGates {
		v.check(path.Child("readinessGates").Index(i).Child("conditionType"), string(g.ConditionType), validation.IsQualifiedName)
	}
}
