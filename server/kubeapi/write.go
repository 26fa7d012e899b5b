package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/podspec"
)

// create stores a new pod.
func (a *API) create(r *request) error {
	if a.cfg.Store == nil {
		return errReadOnly(r, "create")
	}
	if _, err := r.form(); err != nil {
		return err
	}
	var opts metav1.CreateOptions
	if err := queryOptions(r, &opts, metavalidation.ValidateCreateOptions); err != nil {
		return err
	}
	body, err := r.body(&corev1.Pod{})
	if err != nil {
		return err
	}
	pod, err := r.decodePod(body)
	if err != nil {
		return err
	}
	if err := a.prepareNew(r, pod); err != nil {
		return err
	}
	view, err := a.store(r.Context(), len(opts.DryRun) > 0, func() (*corev1.Pod, error) {
		if a.pods.get(pod.Namespace, pod.Name) != nil {
			return nil, apierrors.NewAlreadyExists(r.groupResource(), pod.Name)
		}
		return pod, nil
	})
	if err != nil {
		return err
	}
	return r.respondObject(http.StatusCreated, view)
}

// identityAnnotations are set by the agent alone.
var identityAnnotations = []string{podspec.AnnotationMirror, podspec.AnnotationHash, podspec.AnnotationSource, podspec.AnnotationFirstSeen, podspec.AnnotationStatic} //nolint:gochecknoglobals // read-only

// prepareNew completes and validates a pod as an API server does.
func (a *API) prepareNew(r *request, pod *corev1.Pod) error {
	if pod.Namespace == "" {
		pod.Namespace = r.path.namespace
	}
	switch {
	case pod.Namespace != r.path.namespace:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	case pod.ResourceVersion != "":
		return apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if pod.Name == "" && pod.GenerateName != "" {
		pod.Name = pod.GenerateName[:min(len(pod.GenerateName), maxGenerateName)] + utilrand.String(generatedSuffix)
	}
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, GenerateName: pod.GenerateName, Namespace: pod.Namespace, Labels: pod.Labels, Annotations: pod.Annotations,
		OwnerReferences: pod.OwnerReferences, Finalizers: pod.Finalizers,
		UID: uuid.NewUUID(), CreationTimestamp: metav1.Time{Time: time.Now().UTC().Truncate(seconds)}, Generation: 1,
	}
	for _, key := range identityAnnotations {
		delete(pod.Annotations, key)
	}
	pod.Status = corev1.PodStatus{}
	if pod.Spec.NodeName == "" {
		pod.Spec.NodeName = a.cfg.NodeName
	}
	errs := a.validate(pod)
	if pod.GenerateName != "" {
		for _, text := range apivalidation.NameIsDNSSubdomain(pod.GenerateName, true) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "generateName"), pod.GenerateName, text))
		}
	}
	if len(pod.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "cannot be set on create"))
	}
	return errInvalid(pod.Name, errs)
}

// A generated name is as long as a host name at most, as in an API server.
const (
	generatedSuffix = 5
	maxGenerateName = 63 - generatedSuffix
)

// validate sets the defaults of a pod and returns all that is wrong with it.
func (a *API) validate(pod *corev1.Pod) field.ErrorList {
	podspec.Default(pod)
	var errs field.ErrorList
	if err := podspec.Validate(pod); err != nil {
		errs = fieldErrors(err)
	} else {
		errs = podspec.Unsupported(pod)
	}
	errs = append(errs, apivalidation.ValidateOwnerReferences(pod.OwnerReferences, field.NewPath("metadata", "ownerReferences"))...)
	if pod.Spec.NodeName != a.cfg.NodeName {
		errs = append(errs, field.Invalid(field.NewPath("spec", "nodeName"), pod.Spec.NodeName, "this node is "+a.cfg.NodeName))
	}
	if len(pod.Finalizers) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "finalizers"), "not supported by a node alone"))
	}
	return errs
}

// fieldErrors returns the errors that podspec.Validate has joined.
func fieldErrors(err error) (all field.ErrorList) {
	errs := []error{err}
	if joined, ok := errors.AsType[utilerrors.Aggregate](err); ok {
		errs = joined.Errors()
	}
	for _, e := range errs {
		known, ok := errors.AsType[*field.Error](e)
		if !ok {
			known = &field.Error{Type: field.ErrorTypeInvalid, BadValue: field.OmitValueType{}, Detail: e.Error()}
		}
		all = append(all, known)
	}
	return all
}

// store runs change, which returns the new pod, and stores that. It returns the pod as
// clients see it. Only one change runs at a time.
func (a *API) store(ctx context.Context, dryRun bool, change func() (*corev1.Pod, error)) (object, error) {
	s := a.cfg.Store
	if err := s.writing.acquire(ctx); err != nil {
		return nil, err
	}
	defer s.writing.release()
	if !s.loaded {
		return nil, apierrors.NewServiceUnavailable(errNotLoaded.Error())
	}
	if err := a.refreshPods(ctx); err != nil {
		return nil, err
	}
	pod, err := change()
	if err != nil {
		return nil, err
	}
	if dryRun {
		visible, ok := a.pods.get(pod.Namespace, pod.Name).(*corev1.Pod)
		if !ok {
			visible = &corev1.Pod{}
		}
		return previewOf(pod, visible), nil
	}
	if pod.Size() > maxPod {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a pod may have %d bytes", maxPod))
	}
	if err := s.put(pod); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := a.refreshPods(ctx); err != nil {
		return nil, err
	}
	return a.pods.get(pod.Namespace, pod.Name), nil
}

// maxPod bounds a stored pod, in protobuf, as etcd does for an API server: without it, patches that each add something
// make a pod that fills the memory, and whose file is too large to be read again.
const maxPod = 3 << 19

// update replaces a pod of the Store by the one in the body.
func (a *API) update(r *request, subresource string) error {
	body, err := r.body(&corev1.Pod{})
	if err != nil {
		return err
	}
	pod, err := r.decodePod(body)
	if err != nil {
		return err
	}
	if pod.Name != r.path.name || pod.Namespace != "" && pod.Namespace != r.path.namespace {
		return apierrors.NewBadRequest("the name of the object (" + pod.Namespace + "/" + pod.Name + ") does not match the name on the URL (" + r.path.namespace + "/" + r.path.name + ")")
	}
	var opts metav1.UpdateOptions
	if err := queryOptions(r, &opts, metavalidation.ValidateUpdateOptions); err != nil {
		return err
	}
	return a.change(r, subresource, opts.DryRun, func(*corev1.Pod) (*corev1.Pod, error) { return pod, nil })
}

// patch changes a pod of the Store by the patch in the body.
func (a *API) patch(r *request, subresource string) error {
	body, err := r.body(&corev1.Pod{})
	if err != nil {
		return err
	}
	apply, err := patcher(r.Header.Get("Content-Type"), body)
	if err != nil {
		return err
	}
	var opts metav1.PatchOptions
	if err := queryOptions(r, &opts, func(o *metav1.PatchOptions) field.ErrorList { return metavalidation.ValidatePatchOptions(o, "") }); err != nil {
		return err
	}
	return a.change(r, subresource, opts.DryRun, func(visible *corev1.Pod) (*corev1.Pod, error) {
		patched, err := apply(visible)
		if err != nil {
			return nil, err
		}
		return r.decodePod(patched)
	})
}

// change stores what desired makes of a pod that clients see.
func (a *API) change(r *request, subresource string, dryRun []string, desired func(visible *corev1.Pod) (*corev1.Pod, error)) error {
	if a.cfg.Store == nil {
		return errReadOnly(r, "update")
	}
	if _, err := r.form(); err != nil {
		return err
	}
	view, err := a.store(r.Context(), len(dryRun) > 0, func() (*corev1.Pod, error) {
		visible, ok := a.pods.get(r.path.namespace, r.path.name).(*corev1.Pod)
		if !ok {
			return nil, apierrors.NewNotFound(r.groupResource(), r.path.name)
		}
		stored := a.cfg.Store.get(r.path.namespace, r.path.name)
		if stored == nil || stored.UID != visible.UID {
			return nil, errNotStored(r, visible)
		}
		pod, err := desired(visible.DeepCopy())
		if err != nil {
			return nil, err
		}
		return a.merge(r, subresource, stored, visible, pod)
	})
	if err != nil {
		return err
	}
	return r.respondObject(http.StatusOK, view)
}

// errNotStored is the error for a change of a pod that has another source.
func errNotStored(r *request, pod *corev1.Pod) error {
	return apierrors.NewForbidden(r.groupResource(), pod.Name, errOtherSource{pod.Annotations[podspec.AnnotationSource]})
}

// errOtherSource says where a pod can be changed.
type errOtherSource struct{ source string }

// Error implements error.
func (e errOtherSource) Error() string {
	return "it comes from the source \"" + e.source + "\" of this node: change it there"
}

// merge returns the stored pod with what a request may change of it.
func (a *API) merge(r *request, subresource string, stored, visible, pod *corev1.Pod) (*corev1.Pod, error) {
	conflict := func(text string) error {
		return apierrors.NewConflict(r.groupResource(), visible.Name, conflictError(text))
	}
	switch {
	case pod.UID != "" && pod.UID != visible.UID && r.Method == http.MethodPut: // a patch is not valid: see metaErrors
		return nil, conflict("Precondition failed: UID in precondition: " + string(pod.UID) + ", UID in object meta: " + string(visible.UID))
	case pod.ResourceVersion != "" && pod.ResourceVersion != "0" && pod.ResourceVersion != visible.ResourceVersion:
		return nil, conflict("the object has been modified; please apply your changes to the latest version and try again")
	case pod.Name != visible.Name || pod.Namespace != "" && pod.Namespace != visible.Namespace:
		return nil, apierrors.NewBadRequest("the name and the namespace of an object cannot be changed")
	}
	changed := stored.DeepCopy()
	changed.Labels, changed.Annotations, changed.OwnerReferences, changed.Finalizers = pod.Labels, pod.Annotations, pod.OwnerReferences, pod.Finalizers
	for _, key := range identityAnnotations {
		delete(changed.Annotations, key)
	}
	if subresource != "" { // which changes nothing but its part of the spec
		changed.Labels, changed.Annotations, changed.OwnerReferences = stored.Labels, stored.Annotations, stored.OwnerReferences
	}
	changed.Spec = pod.Spec
	if subresource == "" { // a manifest does not have what was added later
		if len(changed.Spec.EphemeralContainers) == 0 {
			changed.Spec.EphemeralContainers = stored.Spec.EphemeralContainers
		}
		if changed.Spec.NodeName == "" {
			changed.Spec.NodeName = stored.Spec.NodeName
		}
	}
	errs := a.validate(changed)
	errs = append(errs, metaErrors(pod, visible)...)
	errs = append(errs, checkSpecChange(subresource, stored, changed)...)
	if len(errs) > 0 {
		return nil, errInvalid(visible.Name, errs)
	}
	if !sameSpec(&stored.Spec, &changed.Spec) {
		changed.Generation++
	}
	return changed, nil
}

// metaErrors returns what a request wants to change of a pod's metadata and cannot. What it leaves out stays.
func metaErrors(want, is *corev1.Pod) (errs field.ErrorList) {
	at := field.NewPath("metadata")
	if want.UID != "" {
		errs = append(errs, apivalidation.ValidateImmutableField(want.UID, is.UID, at.Child("uid"))...)
	}
	if is.DeletionTimestamp == nil { // else it stays, whatever the request has
		errs = append(errs, apivalidation.ValidateImmutableField(want.DeletionTimestamp, is.DeletionTimestamp, at.Child("deletionTimestamp"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(want.DeletionGracePeriodSeconds, is.DeletionGracePeriodSeconds, at.Child("deletionGracePeriodSeconds"))...)
	}
	return errs
}

// conflictError is the text of a conflict.
type conflictError string

// Error implements error.
func (e conflictError) Error() string { return string(e) }
