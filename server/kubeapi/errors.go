package kubeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// errAuthorization hides the details, which are in the server's log.
var errAuthorization = errors.New("the authorizer failed; the request is denied")

// status returns an error that is sent as a Status.
func status(code int, reason metav1.StatusReason, format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: fmt.Sprintf(format, args...),
	}}
}

func errUnauthorized() error {
	return status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
}

func errForbidden(format string, args ...any) error {
	return status(http.StatusForbidden, metav1.StatusReasonForbidden, format, args...)
}

func errNoPath() error {
	return status(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

func errNotAcceptable() error {
	return status(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "only application/json is served, also as Table and PartialObjectMetadata of meta.k8s.io/v1")
}

func errMediaType(format string, args ...any) error {
	return status(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, format, args...)
}

func errMethod() error {
	return status(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the server does not allow this method on the requested resource")
}

func errExpired(format string, args ...any) error {
	return status(http.StatusGone, metav1.StatusReasonExpired, format, args...)
}

// errTooLargeVersion is the error for a version that there is not yet. Clients list again
// without it by the cause: it is that of another process.
func errTooLargeVersion(want, version uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", want, version), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// errInvalid is the error for a pod with fields that are not valid, or nil.
func errInvalid(pod string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, pod, errs)
}

// errReadOnly is the error for changes of what cannot be changed.
func errReadOnly(r *request, verb string) error {
	why := "a node alone serves them read-only"
	if r.resource.name == "pods" {
		why = "the pods of this node come from its own configuration and cannot be changed by kubectl; a writable store is not enabled"
	}
	return status(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "%s of %s is not supported: %s", verb, r.groupResource(), why)
}

// errNotAllowed is the error for a user without a right, as an API server words it.
func errNotAllowed(user *authenticationv1.UserInfo, a *authorizationv1.ResourceAttributes) error {
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	where := "at the cluster scope"
	if a.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", a.Namespace)
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name,
		fmt.Errorf("user %q cannot %s resource %q in API group %q %s", user.Username, a.Verb, resource, a.Group, where))
}

// statusOf returns an error as a Status.
func statusOf(err error) metav1.Status {
	st := apierrors.NewInternalError(err).Status()
	if known, ok := errors.AsType[*apierrors.StatusError](err); ok {
		st = known.Status()
	}
	st.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return st
}

// fail responds with an error.
func (r *request) fail(err error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", tooLarge.Limit))
	}
	st := statusOf(err)
	if st.Code == http.StatusUnauthorized {
		r.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	b, _ := json.Marshal(st) // it has strings and numbers only
	r.send(int(st.Code), append(b, '\n'))
}

// indent formats JSON for people. All lines but the first begin with prefix.
func indent(b []byte, prefix string) []byte {
	var out bytes.Buffer
	if json.Indent(&out, b, prefix, "  ") != nil {
		return b
	}
	return out.Bytes()
}
