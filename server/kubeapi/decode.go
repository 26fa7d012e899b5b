package kubeapi

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/sublet-dev/agent/podspec"
)

// maxYAML bounds a body in YAML with what its aliases stand for: as much as a body may have.
const maxYAML = 3 << 20

// protobufType is the media type of typed clients.
const protobufType = runtime.ContentTypeProtobuf

// message is an object that can be sent as protobuf.
type message interface{ Unmarshal(b []byte) error }

// body reads the body as JSON, or as the patch that it is. into has the type of an object
// that clients may send as protobuf.
func (r *request) body(into message) ([]byte, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	contentType := r.Header.Get("Content-Type")
	if len(b) == 0 || contentType == "" {
		return b, nil
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
		return nil, errMediaType("Content-Type: %v", err)
	case mediaType == "application/json", r.Method == http.MethodPatch:
		return b, nil
	case mediaType == "application/yaml":
		if err = podspec.CheckAliases(b, maxYAML); err == nil {
			b, err = r.yamlToJSON(b)
		}
	case mediaType == protobufType:
		b, err = protobufToJSON(b, into)
	default:
		return nil, errMediaType("the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, %s", protobufType)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest("decode " + mediaType + ": " + err.Error())
	}
	return b, nil
}

// yamlToJSON converts YAML. Keys that are there twice are for fieldValidation.
func (r *request) yamlToJSON(b []byte) ([]byte, error) {
	converted, twice := yaml.YAMLToJSONStrict(b)
	if twice == nil {
		return converted, nil
	}
	r.strict = append(r.strict, twice)
	return yaml.YAMLToJSON(b)
}

// protobufPrefix begins each object in protobuf.
const protobufPrefix = "k8s\x00"

// protobufToJSON decodes an object in its envelope.
func protobufToJSON(b []byte, into message) ([]byte, error) {
	raw, ok := strings.CutPrefix(string(b), protobufPrefix)
	if !ok {
		return nil, errors.New("not an object of Kubernetes")
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal([]byte(raw)); err != nil {
		return nil, err
	}
	if err := into.Unmarshal(envelope.Raw); err != nil {
		return nil, err
	}
	fields, err := json.Marshal(into)
	if err != nil {
		return nil, err
	}
	// The type is in the envelope alone.
	kind, err := json.Marshal(envelope.TypeMeta)
	if err != nil {
		return nil, err
	}
	return mergePatch(fields, kind)
}

// decodePod decodes a pod. Fields that are unknown or given twice are an error or a warning,
// as the client wants.
func (r *request) decodePod(b []byte) (*corev1.Pod, error) {
	if err := r.checkKind(b, "v1", "Pod"); err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	strict, err := strictjson.UnmarshalStrict(b, pod)
	if err != nil {
		return nil, errDecode(r, err)
	}
	return pod, r.handleStrict(append(r.strict, strict...))
}

// maxWarnings bounds the bytes of warnings, which are headers, about as an API server does.
const maxWarnings = 4 << 10

// checkKind returns an error for an object that says it is another one than expected.
func (r *request) checkKind(b []byte, apiVersion, kind string) error {
	var is metav1.TypeMeta
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(b, &is); err != nil {
		return errDecode(r, err)
	}
	if is.Kind != "" && is.Kind != kind || is.APIVersion != "" && is.APIVersion != apiVersion {
		return errDecode(r, errors.New("the object is a "+is.APIVersion+" "+is.Kind+", and a "+apiVersion+" "+kind+" is expected"))
	}
	return nil
}

// errDecode is the error for what is no pod. A patch that could be applied to one is well-formed, but not valid.
func errDecode(r *request, err error) error {
	if r.Method == http.MethodPatch {
		return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), field.OmitValueType{}, err.Error())})
	}
	return apierrors.NewBadRequest("decode the object: " + err.Error())
}

// handleStrict applies the query parameter fieldValidation.
func (r *request) handleStrict(found []error) error {
	level := r.query.Get("fieldValidation")
	if len(found) == 0 || level == metav1.FieldValidationIgnore {
		return nil
	}
	texts := make([]string, len(found))
	for i, err := range found {
		texts[i] = err.Error()
	}
	if level == metav1.FieldValidationStrict {
		return errDecode(r, errors.New("strict decoding error: "+strings.Join(texts, ", ")))
	}
	left := maxWarnings
	for _, text := range texts {
		if left -= len(text); left < 0 {
			text = text[:max(0, left+len(text))] + "… (further warnings are left out)"
		}
		r.w.Header().Add("Warning", `299 - "`+strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(strings.ToValidUTF8(text, ""))+`"`)
		if left < 0 {
			break
		}
	}
	return nil
}
