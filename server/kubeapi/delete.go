package kubeapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sublet-dev/agent/podspec"
)

// delete terminates a pod of the Store, or restarts a static one.
func (a *API) delete(r *request) error {
	if _, err := r.form(); err != nil {
		return err
	}
	opts, err := r.deleteOptions()
	if err != nil {
		return err
	}
	o, err := a.requested(r)
	if err != nil {
		return err
	}
	deleted, err := a.deletePod(r, o, opts)
	if err != nil {
		return err
	}
	return r.respondObject(http.StatusOK, deleted)
}

// deleteAll deletes the pods that the selectors choose, and returns them as they were.
func (a *API) deleteAll(r *request) error {
	as, err := r.form() // before a pod is deleted
	if err != nil {
		return err
	}
	opts, err := r.deleteOptions()
	if err != nil {
		return err
	}
	which, err := r.listOptions(false)
	if err != nil {
		return err
	}
	if _, err := parseVersion(which.ResourceVersion); err != nil {
		return err
	}
	sel, err := r.selector(which)
	if err != nil {
		return err
	}
	if err := a.refreshNow(r.Context(), r.resource); err != nil {
		return err
	}
	all, _, version := r.resource.collection.list()
	deleted := []object{}
	for _, o := range all {
		if !sel.matches(o) {
			continue
		}
		if which.Limit > 0 && int64(len(deleted)) == which.Limit {
			break
		}
		if _, err := a.deletePod(r, o, opts); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		deleted = append(deleted, o)
	}
	return r.respondList(as, deleted, version)
}

// deleteOptions returns those of the body, which the query supplements.
func (r *request) deleteOptions() (metav1.DeleteOptions, error) {
	var opts metav1.DeleteOptions
	body, err := r.body(&metav1.DeleteOptions{})
	if err != nil {
		return opts, err
	}
	if err := r.decodeOptions(&opts); err != nil {
		return opts, err
	}
	dryRun := opts.DryRun
	if len(body) > 0 {
		if r.path.name == "" {
			opts.Preconditions = nil // the version is that of the list
		}
		if err := json.Unmarshal(body, &opts); err != nil {
			return opts, apierrors.NewBadRequest("decode DeleteOptions: " + err.Error())
		}
		if opts.Kind != "" && opts.Kind != "DeleteOptions" {
			return opts, apierrors.NewBadRequest("the object is a " + opts.Kind + ", and DeleteOptions are expected")
		}
		opts.DryRun = append(opts.DryRun, dryRun...)
	}
	if opts.GracePeriodSeconds != nil && *opts.GracePeriodSeconds < 0 {
		*opts.GracePeriodSeconds = 1 // as an API server has it
	}
	return opts, checkOptions(&opts, metavalidation.ValidateDeleteOptions)
}

// deletePod deletes a pod that clients see, and returns it as it is then.
func (a *API) deletePod(r *request, o object, opts metav1.DeleteOptions) (object, error) {
	dryRun := len(opts.DryRun) > 0
	visible, ok := o.(*corev1.Pod)
	if !ok {
		return nil, errMethod()
	}
	if err := checkPreconditions(r, visible, opts.Preconditions); err != nil {
		return nil, err
	}
	if a.cfg.Store != nil {
		if stored := a.cfg.Store.get(visible.Namespace, visible.Name); stored != nil && stored.UID == visible.UID {
			return a.deleteStored(r, visible, opts, dryRun)
		}
	}
	return a.deleteStatic(r, visible, dryRun)
}

func checkPreconditions(r *request, visible *corev1.Pod, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	failed := func(what, required, is string) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: r.resource.kind}, visible.Name, conflictError("Precondition failed: "+what+" in precondition: "+required+", "+what+" in object meta: "+is))
	}
	if p.UID != nil && *p.UID != visible.UID {
		return failed("UID", string(*p.UID), string(visible.UID))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != visible.ResourceVersion {
		return failed("ResourceVersion", *p.ResourceVersion, visible.ResourceVersion)
	}
	return nil
}

// deleteStored gives a pod a deletion timestamp: the agent ends it, and then it goes. With
// a grace period of zero, kubectl delete --force, clients see it no more at once.
func (a *API) deleteStored(r *request, visible *corev1.Pod, opts metav1.DeleteOptions, dryRun bool) (object, error) {
	s := a.cfg.Store
	if err := s.writing.acquire(r.Context()); err != nil {
		return nil, err
	}
	defer s.writing.release()
	stored := s.get(visible.Namespace, visible.Name)
	if stored == nil || stored.UID != visible.UID {
		return nil, apierrors.NewNotFound(r.groupResource(), visible.Name)
	}
	// It may have changed while others wrote.
	if err := a.refreshPods(r.Context()); err != nil {
		return nil, err
	}
	if now, ok := a.pods.get(visible.Namespace, visible.Name).(*corev1.Pod); ok && now.UID == visible.UID {
		visible = now
	}
	if err := checkPreconditions(r, visible, opts.Preconditions); err != nil {
		return nil, err
	}
	deleted := terminated(stored, opts.GracePeriodSeconds)
	if dryRun {
		return previewOf(deleted, visible), nil
	}
	put := s.putDeleted
	if opts.GracePeriodSeconds != nil && *opts.GracePeriodSeconds == 0 {
		put = s.hide
	}
	if err := put(deleted); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := a.refreshPods(r.Context()); err != nil {
		return nil, err
	}
	if now := a.pods.get(visible.Namespace, visible.Name); now != nil && now.GetUID() == visible.UID {
		return now, nil
	}
	return previewOf(deleted, visible), nil
}

// terminated returns a pod with a deletion timestamp. A second deletion can only shorten
// the grace period.
func terminated(pod *corev1.Pod, grace *int64) *corev1.Pod {
	deleted := pod.DeepCopy()
	period := int64(podspec.GracePeriod(pod) / time.Second)
	if grace != nil {
		period = *grace
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds <= period {
		return deleted
	}
	if pod.DeletionTimestamp == nil {
		deleted.Generation++
	}
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now().UTC().Add(time.Duration(period) * time.Second).Truncate(seconds)}
	deleted.DeletionGracePeriodSeconds = &period
	return deleted
}

// deleteStatic restarts a pod that its source would create again anyway.
func (a *API) deleteStatic(r *request, visible *corev1.Pod, dryRun bool) (object, error) {
	pod := a.onNode(visible)
	switch {
	case pod == nil:
		return nil, apierrors.NewNotFound(r.groupResource(), visible.Name)
	case a.cfg.Operator == nil:
		return nil, errReadOnly(r, "delete")
	case !podspec.IsStatic(pod):
		return nil, apierrors.NewForbidden(r.groupResource(), visible.Name, errors.New("it belongs to a cluster: delete it through the API server of that"))
	case dryRun:
		return visible, nil
	}
	if a.beginRestart(pod.UID) {
		select {
		case a.restarts <- pod:
		case <-r.Context().Done():
			a.endRestart(pod.UID, r.Context().Err())
			return nil, apierrors.NewServiceUnavailable("the agent is not running")
		}
	}
	if err := a.refreshPods(r.Context()); err != nil {
		return nil, err
	}
	if now := a.pods.get(visible.Namespace, visible.Name); now != nil && now.GetUID() == visible.UID {
		return now, nil
	}
	return visible, nil // restarted already
}
