package kubeapi

import (
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	listvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sublet-dev/agent/internal/logoptions"
)

// decodeOptions reads options from the query.
func (r *request) decodeOptions(into runtime.Object) error {
	if err := scheme.ParameterCodec.DecodeParameters(r.query, metav1.SchemeGroupVersion, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// checkOptions returns an error for options that are not valid.
func checkOptions[P runtime.Object](options P, validate func(P) field.ErrorList) error {
	if errs := validate(options); len(errs) > 0 {
		kind := reflect.TypeOf(options).Elem().Name()
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
	}
	return nil
}

// queryOptions reads valid options from the query.
func queryOptions[P runtime.Object](r *request, into P, validate func(P) field.ErrorList) error {
	if err := r.decodeOptions(into); err != nil {
		return err
	}
	return checkOptions(into, validate)
}

// listOptions returns those of a list, a watch or a deletion of many.
func (r *request) listOptions(watch bool) (*internalversion.ListOptions, error) {
	opts := &internalversion.ListOptions{}
	err := queryOptions(r, opts, func(o *internalversion.ListOptions) field.ErrorList {
		o.Watch = watch
		internalversion.SetListOptionsDefaults(o, true)
		return listvalidation.ValidateListOptions(o, true)
	})
	if err == nil && !watch && opts.Continue != "" { // lists are complete, so that there are no tokens
		err = errExpired("the continue token is not one of this server: list again without it")
	}
	return opts, err
}

// checkLogOptions returns an error for options of a log that are not valid. The node has the same rules, but does not name
// the options at fault.
func (r *request) checkLogOptions() error {
	opts, err := logoptions.Parse(r.query)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if errs := logoptions.Validate(opts); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, r.path.name, errs)
	}
	return nil
}

// checkTimeout returns an error for a timeout that is none. It is for requests that do not last; a client that waits no longer ends
// its request itself.
func (r *request) checkTimeout(p path) error {
	lasts := p.isOldWatch || r.isTrue("watch") || slices.Contains([]string{"attach", "exec", "log", "portforward", proxy}, p.subresource)
	if timeout := r.query.Get("timeout"); timeout != "" && !lasts {
		if _, err := time.ParseDuration(timeout); err != nil {
			return apierrors.NewBadRequest("timeout: " + err.Error())
		}
	}
	return nil
}
