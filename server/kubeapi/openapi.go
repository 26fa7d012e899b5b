package kubeapi

import (
	"encoding/json"
	"reflect"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The OpenAPI document is made of the Go types of the API: their fields, their
// documentation and how patches merge them. kubectl explains fields with it, computes
// patches, and learns that the server validates fields.

const openAPIRoot = "/openapi/v3"

// openAPIPaths lists the documents.
func (a *API) openAPIPaths() any {
	paths := node{}
	for path := range a.openAPI() {
		paths[strings.TrimPrefix(path, openAPIRoot+"/")] = node{"serverRelativeURL": path}
	}
	return node{"paths": paths}
}

// documentedTypes returns the types of the API that are documented, by group and kind.
func documentedTypes() map[string]map[string]reflect.Type {
	return map[string]map[string]reflect.Type{
		"": {
			"Pod": reflect.TypeFor[corev1.Pod](), "Node": reflect.TypeFor[corev1.Node](), "Namespace": reflect.TypeFor[corev1.Namespace](),
			"ConfigMap": reflect.TypeFor[corev1.ConfigMap](), "Event": reflect.TypeFor[corev1.Event](), "Secret": reflect.TypeFor[corev1.Secret](),
			"Service":       reflect.TypeFor[corev1.Service](),
			"DeleteOptions": reflect.TypeFor[metav1.DeleteOptions](),
		},
		coordinationv1.GroupName: {"Lease": reflect.TypeFor[coordinationv1.Lease]()},
	}
}

// node is a part of the document.
type node = map[string]any

// schemas collects the schemas of types.
type schemas node

// buildOpenAPIs returns the documents of the groups that are served, by path.
func (a *API) buildOpenAPIs() map[string][]byte {
	all := map[string][]byte{}
	types := documentedTypes()
	for _, gv := range a.groupVersions() {
		if types[gv.group] != nil {
			all[openAPIRoot+gv.path()] = a.buildOpenAPI(gv, types[gv.group])
		}
	}
	return all
}

// buildOpenAPI returns the document of a group.
func (a *API) buildOpenAPI(gv groupVersion, types map[string]reflect.Type) []byte {
	all, paths := schemas{}, node{}
	for kind, t := range types {
		all.ref(t)
		if s, ok := all[schemaName(t)].(node); ok {
			s["x-kubernetes-group-version-kind"] = []node{{"group": gv.group, "version": gv.version, "kind": kind}}
		}
	}
	for _, res := range a.of(gv) {
		path := gv.path() + "/"
		if res.namespaced {
			path += "namespaces/{namespace}/"
		}
		paths[path+res.name+"/{name}"] = operations(res, types[res.kind])
	}
	b, _ := json.Marshal(node{ // it has strings, maps and lists only
		"openapi": "3.0.0", "info": node{"title": "Kubernetes API of a node alone", "version": kubernetesVersion},
		"paths": paths, "components": node{"schemas": all},
	})
	return b
}

// operations returns those of one object that kubectl looks for. A patch is among them even
// where the response is that it is not supported: kubectl validates a manifest by itself
// unless the server says here that it does, needs a document of OpenAPI v2 for that, and
// then reports that there is none instead of what the server has against the change.
func operations(res *resource, t reflect.Type) node {
	gvk := node{"group": res.group, "version": res.version, "kind": res.kind}
	ref := node{"$ref": "#/components/schemas/" + schemaName(t)}
	ok := node{"200": node{"description": "OK", "content": node{"application/json": node{"schema": ref}}}}
	parameter := func(name string) node {
		return node{"name": name, "in": "query", "schema": node{"type": "string", "uniqueItems": true}}
	}
	body, content := node{"schema": node{"type": "object"}}, node{}
	for _, mediaType := range []string{"application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"} {
		content[mediaType] = body
	}
	return node{
		"get": node{"responses": ok, "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": gvk},
		"patch": node{
			"parameters": []node{parameter("dryRun"), parameter("fieldManager"), parameter("fieldValidation")}, "requestBody": node{"content": content},
			"responses": ok, "x-kubernetes-action": "patch", "x-kubernetes-group-version-kind": gvk,
		},
	}
}

// schemaName is that of Kubernetes for a type.
func schemaName(t reflect.Type) string {
	name := strings.NewReplacer("k8s.io/apimachinery/", "io.k8s.apimachinery.", "k8s.io/", "io.k8s.", "/", ".").Replace(t.PkgPath())
	return name + "." + t.Name()
}

// ref returns a reference to the schema of a struct, which it adds if it is new.
func (all schemas) ref(t reflect.Type) node {
	name := schemaName(t)
	if _, ok := all[name]; !ok {
		s := node{"type": "object"}
		all[name] = s // before its fields, which may refer to it
		docs := docsOf(t)
		if docs[""] != "" {
			s["description"] = docs[""]
		}
		properties, required := node{}, []string{}
		all.addFields(t, docs, properties, &required)
		if len(properties) > 0 {
			s["properties"] = properties
		}
		if len(required) > 0 {
			s["required"] = required
		}
	}
	return node{"$ref": "#/components/schemas/" + name}
}

// docsOf returns the documentation that the types of the API have by field.
func docsOf(t reflect.Type) map[string]string {
	if d, ok := reflect.TypeAssert[interface{ SwaggerDoc() map[string]string }](reflect.New(t)); ok {
		return d.SwaggerDoc()
	}
	return nil
}

// addFields adds the fields of a struct, and those of embedded ones.
func (all schemas) addFields(t reflect.Type, docs map[string]string, properties node, required *[]string) {
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous {
			all.addFields(field.Type, docsOf(field.Type), properties, required)
			continue
		}
		if name == "" || name == "-" || !field.IsExported() {
			continue
		}
		s := all.schema(field.Type)
		if _, isRef := s["$ref"]; isRef {
			s = node{"allOf": []node{s}, "default": node{}}
		}
		if docs[name] != "" {
			s["description"] = docs[name]
		}
		if strategy := field.Tag.Get("patchStrategy"); strategy != "" {
			s["x-kubernetes-patch-strategy"] = strategy
		}
		if key := field.Tag.Get("patchMergeKey"); key != "" {
			s["x-kubernetes-patch-merge-key"] = key
		}
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			*required = append(*required, name)
		}
		properties[name] = s
	}
}

// schema returns that of a type.
func (all schemas) schema(t reflect.Type) node {
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return node{"type": "string", "format": "date-time"}
	case reflect.TypeFor[quantity.Quantity]():
		return node{"type": "string"}
	case reflect.TypeFor[intstr.IntOrString]():
		return node{"type": "string", "format": "int-or-string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return all.schema(t.Elem())
	case reflect.Struct:
		return all.ref(t)
	case reflect.Map:
		return node{"type": "object", "additionalProperties": all.schema(t.Elem())}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return node{"type": "string", "format": "byte"}
		}
		return node{"type": "array", "items": all.schema(t.Elem())}
	case reflect.Bool:
		return node{"type": "boolean"}
	case reflect.Int64:
		return node{"type": "integer", "format": "int64"}
	case reflect.Int, reflect.Int32:
		return node{"type": "integer", "format": "int32"}
	default:
		return node{"type": "string"}
	}
}
