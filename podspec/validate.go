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

// Validate returns all that is wrong with a pod at once, each fault (up to a
// hundred) a *field.Error with the path of its field, or nil. The pod should have been defaulted. Environment
// values are never quoted.
//
// It refuses what can never run, whatever the node; what this kind of node
// cannot do is told by Unsupported.
func Validate(pod *corev1.Pod) error {
	v := validator{pod: pod, volumes: make(map[string]*corev1.Volume, len(pod.Spec.Volumes))}
	v.meta(field.NewPath("metadata"))
	v.spec(field.NewPath("spec"))
	return v.all()
}

// maxTold bounds how many faults of one pod are told one by one.
const maxTold = 100

func (v *validator) all() error {
	more := len(v.errs) - maxTold
	if more <= 0 {
		return v.errs.ToAggregate()
	}
	told := v.errs[:maxTold:maxTold].ToAggregate().Errors()
	return utilerrors.NewAggregate(append(told, fmt.Errorf("and %d more faults", more)))
}

// validator gathers the faults of one pod.
type validator struct {
	pod     *corev1.Pod
	volumes map[string]*corev1.Volume // by name, once they have been looked at
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

// need is check for a string that must not be empty.
func (v *validator) need(path *field.Path, value string, check func(string) []string) {
	if value == "" {
		v.required(path, "")
	} else if check != nil {
		v.check(path, value, check)
	}
}

// atLeast checks a number that may be left away.
func atLeast[T int32 | int64](v *validator, path *field.Path, n *T, least T) {
	if n != nil && *n < least {
		v.invalid(path, *n, fmt.Sprintf("must be at least %d", least))
	}
}

// oneOf checks that value is among the allowed.
func oneOf[T ~string](v *validator, path *field.Path, value T, allowed ...T) {
	switch {
	case slices.Contains(allowed, value):
	case value == "":
		v.required(path, "")
	default:
		v.errs = append(v.errs, field.NotSupported(path, value, allowed))
	}
}

// unique notes name in seen and tells when it was there already.
func (v *validator) unique(path *field.Path, name string, seen map[string]bool) {
	if seen[name] && name != "" {
		v.errs = append(v.errs, field.Duplicate(path, name))
	}
	seen[name] = true
}

// maxFileName is what <namespace>_<name>_<uid> may come to: it names log
// folders and status files, and a file system's 255 bytes leave that much
// beside the endings.
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
		v.invalid(path.Child("name"), m.Name, fmt.Sprintf("with namespace and uid it is %d bytes, more than the %d that fit into the name of the log folder", n, maxFileName))
	}
	v.errs = append(v.errs, metavalidation.ValidateLabels(m.Labels, path.Child("labels"))...)
	v.errs = append(v.errs, apivalidation.ValidateAnnotations(m.Annotations, path.Child("annotations"))...)
	atLeast(v, path.Child("deletionGracePeriodSeconds"), m.DeletionGracePeriodSeconds, 0)
}

// isUID accepts what is safe as the name of a folder.
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
