package kubeapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// refreshNow updates a resource before it is read.
func (a *API) refreshNow(ctx context.Context, res *resource) error {
	if err := res.refresh(ctx); err != nil {
		return apierrors.NewInternalError(err)
	}
	return nil
}

// get responds with one object.
func (a *API) get(r *request) error {
	o, err := a.requested(r)
	if err != nil {
		return err
	}
	return r.respondObject(http.StatusOK, o)
}

// requested returns the object that the path names.
func (a *API) requested(r *request) (object, error) {
	if err := a.refreshNow(r.Context(), r.resource); err != nil {
		return nil, err
	}
	o := r.resource.collection.get(r.path.namespace, r.path.name)
	if o == nil {
		return nil, apierrors.NewNotFound(r.groupResource(), r.path.name)
	}
	return o, nil
}

// list responds with the objects that the selectors choose. It returns all at once: limit
// is an upper bound that a server may exceed if it sends no continue token.
func (a *API) list(r *request) error {
	opts, err := r.listOptions(false)
	if err != nil {
		return err
	}
	sel, err := r.selector(opts)
	if err != nil {
		return err
	}
	as, err := r.form()
	if err != nil {
		return err
	}
	want, err := parseVersion(opts.ResourceVersion) // 0: any
	if err != nil {
		return err
	}
	exact := opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact // else that one or a later one
	if err := a.refreshNow(r.Context(), r.resource); err != nil {
		return err
	}
	all, changed, version := r.resource.collection.list()
	switch {
	case want > version:
		return errTooLargeVersion(want, version)
	case exact && want < changed:
		return errExpired("The resourceVersion for the provided list is too old.")
	case exact:
		version = want
	}
	chosen := make([]object, 0, len(all))
	for _, o := range all {
		if sel.matches(o) {
			chosen = append(chosen, o)
		}
	}
	return r.respondList(as, chosen, version)
}

// parseVersion parses the resource version of a list or a watch; "" is 0.
func parseVersion(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest("resourceVersion: invalid value " + strconv.Quote(text))
	}
	return version, nil
}

// respondList sends a list of objects in a form.
func (r *request) respondList(as form, objects []object, version uint64) error {
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}
	switch as {
	case asObject:
	case asTable:
		t, err := r.tableOf(objects, true)
		if err != nil {
			return err
		}
		t.ListMeta = meta
		return r.respond(http.StatusOK, t)
	case asPartial:
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: metaVersion, Kind: "PartialObjectMetadataList"}, ListMeta: meta, Items: []metav1.PartialObjectMetadata{}}
		for _, o := range objects {
			list.Items = append(list.Items, *partial(o))
		}
		return r.respond(http.StatusOK, list)
	}
	return r.respond(http.StatusOK, listOf{TypeMeta: metav1.TypeMeta{APIVersion: r.resource.apiVersion(), Kind: r.resource.kind + "List"}, ListMeta: meta, Items: objects})
}

// metaVersion is the version of tables and of metadata without objects.
const metaVersion = "meta.k8s.io/v1"

// listOf is a list of any resource.
type listOf struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []object `json:"items"`
}

// partial returns the metadata of an object.
func partial(o object) *metav1.PartialObjectMetadata {
	p := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: metaVersion, Kind: "PartialObjectMetadata"}}
	if accessor, ok := o.(metav1.ObjectMetaAccessor); ok {
		if m, ok := accessor.GetObjectMeta().(*metav1.ObjectMeta); ok {
			p.ObjectMeta = *m
		}
	}
	return p
}

// respondObject sends an object in the form that the client accepts.
func (r *request) respondObject(code int, o object) error {
	as, err := r.form()
	if err != nil {
		return err
	}
	v, err := r.as(as, o, true)
	if err != nil {
		return err
	}
	return r.respond(code, v)
}

// as returns an object in a form. header adds the columns to a table.
func (r *request) as(f form, o object, header bool) (any, error) {
	switch f {
	case asObject:
	case asTable:
		t, err := r.tableOf([]object{o}, header)
		if err != nil {
			return nil, err
		}
		t.ResourceVersion = o.GetResourceVersion()
		return t, nil
	case asPartial:
		return partial(o), nil
	}
	return o, nil
}

// includeObject returns what a table has of its objects.
func (r *request) includeObject() (metav1.IncludeObjectPolicy, error) {
	switch policy := metav1.IncludeObjectPolicy(r.query.Get("includeObject")); policy {
	case "":
		return metav1.IncludeMetadata, nil
	case metav1.IncludeNone, metav1.IncludeObject, metav1.IncludeMetadata:
		return policy, nil
	}
	return "", apierrors.NewBadRequest("includeObject must be None, Metadata or Object")
}

// tableOf returns objects as a table.
func (r *request) tableOf(objects []object, header bool) (*metav1.Table, error) {
	include, err := r.includeObject()
	if err != nil {
		return nil, err
	}
	t := &metav1.Table{TypeMeta: metav1.TypeMeta{APIVersion: metaVersion, Kind: "Table"}, Rows: []metav1.TableRow{}}
	if header {
		t.ColumnDefinitions = r.resource.table.columns
	}
	for _, o := range objects {
		row := r.resource.table.row(o)
		switch include {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			row.Object = runtime.RawExtension{Object: o}
		case metav1.IncludeMetadata:
			row.Object = runtime.RawExtension{Object: partial(o)}
		}
		raw, err := json.Marshal(row.Object.Object)
		if err != nil {
			return nil, err
		}
		row.Object = runtime.RawExtension{Raw: raw}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}
