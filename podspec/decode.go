package podspec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// DefaultMaxBytes is the default of DecodeOptions.MaxBytes.
const DefaultMaxBytes = 10 << 20

// DecodeOptions are the options of Decode. The zero value is strict.
type DecodeOptions struct {
	// Lenient ignores unknown and duplicate fields. By default they are errors.
	Lenient bool
	// MaxBytes bounds the size of the input, and of each document with expanded YAML
	// aliases. Default: DefaultMaxBytes.
	MaxBytes int
}

// Limits of one input, against malicious input.
const (
	maxDocuments = 10_000 // and objects, including those in lists
	maxErrors    = 20     // reported; further ones are counted
	maxNesting   = 8      // of lists in lists
)

// Decode decodes manifests: YAML with any number of documents, or a sequence of JSON
// values. Each is a v1 Pod, ConfigMap or Secret, a typed list of them, or a List. It
// neither defaults nor validates. Objects of DecodeStorage are checked and left out.
//
// An invalid document is reported in a *DocumentError with its number and line. All
// errors are joined, and the other documents are returned nevertheless. Errors contain
// names of fields but no values, which may be secret.
func Decode(data []byte, opt DecodeOptions) ([]*corev1.Pod, []Object, error) {
	d := decoder{opt: opt}
	err := d.decode(data)
	return d.pods, d.objects, err
}

func (d *decoder) decode(data []byte) error {
	if d.opt.MaxBytes <= 0 {
		d.opt.MaxBytes = DefaultMaxBytes
	}
	if err := checkText(data, d.opt.MaxBytes); err != nil {
		return err
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	split := splitYAML
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' && jsonFirst(trimmed) {
		split = splitJSON
	}
	split(data, d.document)
	if d.documents == 0 && d.errs == nil {
		return ErrNoDocument
	}
	if more := d.failed - len(d.errs); more > 0 {
		d.errs = append(d.errs, fmt.Errorf("and %d more documents", more))
	}
	if d.endless {
		d.errs = append(d.errs, fmt.Errorf("more than %d documents: %w", maxDocuments, ErrTooLarge))
	}
	return errors.Join(d.errs...)
}

func checkText(data []byte, limit int) error {
	if len(data) > limit {
		return fmt.Errorf("%d bytes exceed the limit of %d: %w", len(data), limit, ErrTooLarge)
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return fmt.Errorf("input contains a zero byte at offset %d", i)
	}
	if !utf8.Valid(data) {
		return errors.New("input is not UTF-8")
	}
	return nil
}

// DocumentError is the error of one document of an input.
type DocumentError struct {
	Number int    // of the document in the input, from 1
	Line   int    // first line of the document, from 1
	Object string // kind and name, as far as they could be read; may be empty
	Err    error
}

// Error returns the document and its error.
func (e *DocumentError) Error() string {
	what := ""
	if e.Object != "" {
		what = ", " + e.Object
	}
	return fmt.Sprintf("document %d (line %d%s): %v", e.Number, e.Line, what, e.Err)
}

// Unwrap returns Err.
func (e *DocumentError) Unwrap() error { return e.Err }

type decoder struct {
	opt         DecodeOptions
	pods        []*corev1.Pod
	objects     []Object
	storage     StorageObjects
	documents   int
	objectCount int  // including lists
	endless     bool // there are more than maxDocuments
	failed      int  // invalid documents
	errs        []error
}

// document reads one document, YAML or JSON, that begins at line. It returns
// false when no more should be read.
func (d *decoder) document(raw []byte, line int, isJSON bool, err error) bool {
	d.documents++
	if d.documents > maxDocuments {
		d.endless = true
		return false
	}
	what := ""
	if err == nil {
		what, err = d.read(raw, line, isJSON)
	}
	if err == nil {
		return true
	}
	if d.failed++; d.failed <= maxErrors {
		d.errs = append(d.errs, &DocumentError{Number: d.documents, Line: line, Object: what, Err: err})
	}
	return true
}

func (d *decoder) read(raw []byte, line int, isJSON bool) (what string, err error) {
	if !isJSON {
		if err := CheckAliases(raw, d.opt.MaxBytes); err != nil {
			return "", absoluteLines(err, line)
		}
		convert := yaml.YAMLToJSONStrict
		if d.opt.Lenient {
			convert = yaml.YAMLToJSON
		}
		if raw, err = convert(raw); err != nil {
			return "", absoluteLines(err, line)
		}
	}
	return d.object(raw, metav1.TypeMeta{}, maxNesting)
}

// head is the part of an object that is decoded before its kind is known.
type head struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
}

func (h *head) String() string {
	name := h.Metadata.Name
	if h.Metadata.Namespace != "" {
		name = h.Metadata.Namespace + "/" + name
	}
	return strings.TrimSpace(h.Kind + " " + name)
}

// object decodes one object from JSON. An item of a typed list may omit its type, which
// is then the given one.
func (d *decoder) object(raw []byte, given metav1.TypeMeta, depth int) (what string, err error) {
	if d.objectCount++; d.objectCount > 2*maxDocuments { // a list counts, too
		return "", fmt.Errorf("more than %d objects: %w", maxDocuments, ErrTooLarge)
	}
	if !startsObject(raw) {
		return "", errors.New("not a Kubernetes object: apiVersion, kind and metadata required")
	}
	var h head
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		return "", withoutValue(err)
	}
	if h.APIVersion == "" && h.Kind == "" {
		h.TypeMeta = given
	}
	what = h.String()
	switch {
	case h.Kind == "":
		return what, errors.New("kind: required")
	case h.APIVersion == "":
		return what, errors.New("apiVersion: required")
	}
	if h.Kind != ConfigMap && h.Kind != Secret {
		if err := checkQuantities(raw); err != nil {
			return what, err
		}
	}
	if known, err := d.storageObject(raw, h.TypeMeta); known {
		return what, err
	}
	if h.APIVersion != "v1" {
		return what, unknownKind(h.TypeMeta)
	}
	switch h.Kind {
	case "Pod":
		pod := &corev1.Pod{}
		if err := d.into(raw, pod); err != nil {
			return what, err
		}
		pod.TypeMeta = h.TypeMeta
		d.pods = append(d.pods, pod)
	case ConfigMap:
		cm := &corev1.ConfigMap{}
		err = errors.Join(d.into(raw, cm), d.keep(FromConfigMap(cm)))
	case Secret:
		s := &corev1.Secret{}
		err = errors.Join(d.into(raw, s), d.keep(FromSecret(s)))
	case "List", "PodList", "ConfigMapList", "SecretList", "PersistentVolumeList", "PersistentVolumeClaimList":
		err = d.list(raw, h.Kind, depth)
	default:
		err = unknownKind(h.TypeMeta)
	}
	return what, err
}

func unknownKind(t metav1.TypeMeta) error {
	return fmt.Errorf("unsupported kind %s of %s: must be Pod, ConfigMap, Secret, PersistentVolume, PersistentVolumeClaim or List of v1",
		t.Kind, t.APIVersion)
}

func (d *decoder) list(raw []byte, kind string, depth int) error {
	if depth == 0 {
		return fmt.Errorf("lists in lists more than %d deep: %w", maxNesting, ErrTooLarge)
	}
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta        `json:"metadata"`
		Items           []runtime.RawExtension `json:"items"`
	}
	if err := d.into(raw, &list); err != nil {
		return err
	}
	given := metav1.TypeMeta{}
	if kind != "List" {
		given = metav1.TypeMeta{APIVersion: "v1", Kind: strings.TrimSuffix(kind, "List")}
	}
	var errs []error
	for i := range list.Items {
		if what, err := d.object(list.Items[i].Raw, given, depth-1); err != nil {
			errs = append(errs, fmt.Errorf("items[%d] %s: %w", i, what, err))
			if len(errs) == maxErrors {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// into decodes JSON into a typed object; in strict mode every unknown or
// repeated field is an error.
func (d *decoder) into(raw []byte, v any) error {
	if d.opt.Lenient {
		return withoutValue(kjson.UnmarshalCaseSensitivePreserveInts(raw, v))
	}
	strictErrs, err := kjson.UnmarshalStrict(raw, v)
	if err != nil {
		return withoutValue(err)
	}
	return errors.Join(strictErrs...)
}

func startsObject(raw []byte) bool {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	return len(raw) > 0 && raw[0] == '{'
}

// withoutValue removes the value from a type error, which keeps field and type.
func withoutValue(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: want %s, is %s", wrong.Field, wrong.Type, firstWord(wrong.Value))
	}
	return err
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}
