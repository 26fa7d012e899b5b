package kubeapi

import (
	"bufio"
	"bytes"
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
		include, err := r.includeObject()
		if err != nil {
			return err
		}
		table := metav1.Table{TypeMeta: tableType(), ListMeta: meta, ColumnDefinitions: r.resource.table.columns, Rows: []metav1.TableRow{}}
		return r.sendList(table, objects, func(o object) any { return r.row(o, include) })
	case asPartial:
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: metaVersion, Kind: "PartialObjectMetadataList"}, ListMeta: meta, Items: []metav1.PartialObjectMetadata{}}
		return r.sendList(list, objects, func(o object) any { return partial(o) })
	}
	list := listOf{TypeMeta: metav1.TypeMeta{APIVersion: r.resource.apiVersion(), Kind: r.resource.kind + "List"}, ListMeta: meta, Items: []object{}}
	return r.sendList(list, objects, func(o object) any { return o })
}

// sendList sends an empty list, whose last field has the elements, with the elements of objects. It encodes one at a time: a list
// may have many megabytes, which clients that read slowly would keep in memory.
func (r *request) sendList(empty any, objects []object, element func(object) any) error {
	list, err := json.Marshal(empty)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	before, between, after, pretty := "", ",", "", r.isPretty()
	if pretty {
		list, before, between, after = indent(list, ""), "\n    ", ",\n    ", "\n  "
	}
	place := bytes.LastIndexByte(list, ']')
	r.begin(http.StatusOK)
	out := bufio.NewWriterSize(r.w, maxChunk)
	_, _ = out.Write(list[:place]) // each error is that of the last write, too
	for i, o := range objects {
		b, err := json.Marshal(element(o))
		if err != nil {
			return nil //nolint:nilerr // the status is sent: a list that is cut off is none for the client
		}
		if pretty {
			b = indent(b, "    ")
		}
		if i > 0 {
			before = between
		}
		_, _ = out.WriteString(before)
		if _, err := out.Write(b); err != nil {
			return nil //nolint:nilerr // the client has gone
		}
	}
	if len(objects) > 0 {
		_, _ = out.WriteString(after)
	}
	_, _ = out.Write(append(list[place:], '\n'))
	_ = out.Flush()
	return nil
}

// maxChunk is how much of a list is sent at a time.
const maxChunk = 16 << 10

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
		return r.tableOf(o, header)
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

func tableType() metav1.TypeMeta { return metav1.TypeMeta{APIVersion: metaVersion, Kind: "Table"} }

// tableOf returns an object as a table.
func (r *request) tableOf(o object, header bool) (*metav1.Table, error) {
	include, err := r.includeObject()
	if err != nil {
		return nil, err
	}
	t := &metav1.Table{TypeMeta: tableType(), ListMeta: metav1.ListMeta{ResourceVersion: o.GetResourceVersion()}, Rows: []metav1.TableRow{r.row(o, include)}}
	if header {
		t.ColumnDefinitions = r.resource.table.columns
	}
	return t, nil
}

// row returns an object as a row of a table.
func (r *request) row(o object, include metav1.IncludeObjectPolicy) metav1.TableRow {
	row := r.resource.table.row(o)
	switch include {
	case metav1.IncludeNone:
	case metav1.IncludeObject:
		row.Object = runtime.RawExtension{Object: o}
	case metav1.IncludeMetadata:
		row.Object = runtime.RawExtension{Object: partial(o)}
	}
	return row
}
