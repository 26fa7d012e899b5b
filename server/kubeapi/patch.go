package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	strictjson "sigs.k8s.io/json"
)

// patcher returns the function that applies a patch of a media type to a pod. It returns
// JSON.
func patcher(contentType string, patch []byte) (func(*corev1.Pod) ([]byte, error), error) {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, errMediaType("Content-Type: %v", err)
	}
	var apply func(original []byte) ([]byte, error)
	switch types.PatchType(mediaType) {
	case types.StrategicMergePatchType:
		apply = func(original []byte) ([]byte, error) { return strategicPatch(original, patch) }
	case types.MergePatchType:
		apply = func(original []byte) ([]byte, error) { return mergePatch(original, patch) }
	case types.JSONPatchType:
		apply = func(original []byte) ([]byte, error) { return jsonPatch(original, patch) }
	case types.ApplyYAMLPatchType, types.ApplyCBORPatchType:
		return nil, errMediaType("server-side apply is not supported by a node alone: use kubectl apply without --server-side")
	default:
		return nil, errMediaType("patches of type %q are not supported", mediaType)
	}
	return func(pod *corev1.Pod) ([]byte, error) {
		original, err := json.Marshal(pod)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		patched, err := apply(original)
		if _, decided := errors.AsType[*apierrors.StatusError](err); err != nil && !decided {
			err = apierrors.NewBadRequest("apply the patch: " + err.Error())
		}
		return patched, err
	}, nil
}

// strategicPatch applies a strategic merge patch to a pod. The library panics if what identifies an element of a
// list, as the name of a container, is a list or an object.
func strategicPatch(original, patch []byte) (patched []byte, err error) {
	var is, doc any
	if errors.Join(decode(original, &is), decode(patch, &doc)) == nil {
		if n := elements(doc); n*(n+elements(is)) > maxElements*maxElements {
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the lists of a strategic merge patch may have %d elements, and fewer for a pod that has many itself", maxElements))
		}
	}
	defer func() {
		if recover() != nil {
			patched, err = nil, errors.New("a value has another type than in the pod")
		}
	}()
	return strategicpatch.StrategicMergePatch(original, patch, corev1.Pod{})
}

// maxElements bounds the elements of the lists in a strategic merge patch: each is searched for among all others and those of
// the pod, so that those of a patch as long as a request may be take minutes, for which nothing else could be changed.
const maxElements = 5_000

// elements counts those of all lists in a document.
func elements(doc any) (n int) {
	switch v := doc.(type) {
	case map[string]any:
		for _, value := range v {
			n += elements(value)
		}
	case []any:
		n = len(v)
		for _, value := range v {
			n += elements(value)
		}
	}
	return n
}

// decode decodes JSON of any form. Integers stay what they are: as floating-point numbers, large ones would become
// others.
func decode(b []byte, to *any) error { return strictjson.UnmarshalCaseSensitivePreserveInts(b, to) }

// mergePatch applies a JSON merge patch, RFC 7386.
func mergePatch(original, patch []byte) ([]byte, error) {
	var to, from any
	if err := errors.Join(decode(original, &to), decode(patch, &from)); err != nil {
		return nil, err
	}
	if _, ok := from.(map[string]any); !ok {
		return nil, errors.New("a merge patch must be an object")
	}
	return json.Marshal(mergeValue(to, from))
}

func mergeValue(to, from any) any {
	changes, ok := from.(map[string]any)
	if !ok {
		return from
	}
	object, ok := to.(map[string]any)
	if !ok {
		object = map[string]any{}
	}
	for key, value := range changes {
		if value == nil {
			delete(object, key)
			continue
		}
		object[key] = mergeValue(object[key], value)
	}
	return object
}

// maxOperations bounds a JSON patch, as an API server does.
const maxOperations = 10_000

// maxCopied bounds what the operations of a JSON patch copy together, as an API server does: each
// copy of a document into itself doubles it.
const maxCopied = 3 << 20

// operation is one of a JSON patch, RFC 6902.
type operation struct {
	Op    string          `json:"op"`
	Path  *string         `json:"path"`
	From  *string         `json:"from"`
	Value json.RawMessage `json:"value"`
}

// jsonPatch applies a JSON patch, RFC 6902.
func jsonPatch(original, patch []byte) ([]byte, error) {
	var doc any
	var operations []operation
	if err := errors.Join(decode(original, &doc), strictjson.UnmarshalCaseSensitivePreserveInts(patch, &operations)); err != nil {
		return nil, err
	}
	if len(operations) > maxOperations {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a JSON patch may have %d operations", maxOperations))
	}
	copyable := maxCopied
	for i, op := range operations {
		var err error
		if doc, err = op.apply(doc, &copyable); err != nil {
			return nil, status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "operation %d: %v", i, err)
		}
	}
	return json.Marshal(doc)
}
