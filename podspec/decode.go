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

// DefaultMaxBytes is the size of input that Decode takes unless told otherwise.
const DefaultMaxBytes = 10 << 20

// DecodeOptions says how Decode reads. The zero value is strict.
type DecodeOptions struct {
	// Lenient passes over unknown and repeated fields instead of refusing them.
	Lenient bool
	// MaxBytes bounds the input, and each document after its YAML aliases were
	// put in. The default, for 0, is DefaultMaxBytes.
	MaxBytes int
}

// Bounds of what one input may hold, against input made to be slow.
const (
	maxDocuments = 10_000 // and objects, in lists too
	maxFaults    = 20     // the rest are counted
	maxNesting   = 8      // of lists in lists
)

// Decode reads manifests: YAML of any number of documents, or JSON values one
// after the other, each a v1 Pod, ConfigMap, Secret, a list of one of these, or
// a List of them. It neither defaults nor validates.
//
// A document that cannot be read is told by number and line, in a
// *DocumentError, and does not keep the others from being returned; all of them
// are told at once, joined. Errors quote field names but no values, which may
// be secret.
func Decode(data []byte, opt DecodeOptions) ([]*corev1.Pod, []Object, error) {
	if opt.MaxBytes <= 0 {
		opt.MaxBytes = DefaultMaxBytes
	}
	if err := checkText(data, opt.MaxBytes); err != nil {
		return nil, nil, err
	}
	d := decoder{opt: opt}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	split := splitYAML
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' && jsonFirst(trimmed) {
		split = splitJSON
	}
	split(data, d.document)
	if d.documents == 0 && d.errs == nil {
		return nil, nil, ErrNoDocument
	}
	if more := d.faults - len(d.errs); more > 0 {
		d.errs = append(d.errs, fmt.Errorf("and %d more documents", more))
	}
	if d.endless {
		d.errs = append(d.errs, fmt.Errorf("with more than %d documents %w", maxDocuments, ErrTooLarge))
	}
	return d.pods, d.objects, errors.Join(d.errs...)
}

func checkText(data []byte, most int) error {
	if len(data) > most {
		return fmt.Errorf("%d bytes, more than the %d allowed: %w", len(data), most, ErrTooLarge)
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return fmt.Errorf("is not text: byte 0 at offset %d", i)
	}
	if !utf8.Valid(data) {
		return errors.New("is not text in UTF-8")
	}
	return nil
}

// DocumentError is what is wrong with one document of an input.
type DocumentError struct {
	Number int    // of the document in the input, from 1
	Line   int    // where the document begins, from 1
	Object string // kind and name, as far as they could be read; may be empty
	Err    error
}

// Error names the document, then what is wrong with it.
func (e *DocumentError) Error() string {
	what := ""
	if e.Object != "" {
		what = ", " + e.Object
	}
	return fmt.Sprintf("document %d (line %d%s): %v", e.Number, e.Line, what, e.Err)
}

// Unwrap returns what is wrong.
func (e *DocumentError) Unwrap() error { return e.Err }

type decoder struct {
	opt       DecodeOptions
	pods      []*corev1.Pod
	objects   []Object
	documents int
	seen      int  // objects, lists too
	endless   bool // there are more than maxDocuments
	faults    int
	errs      []error
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
	if d.faults++; d.faults <= maxFaults {
		d.errs = append(d.errs, &DocumentError{Number: d.documents, Line: line, Object: what, Err: err})
	}
	return true
}

func (d *decoder) read(raw []byte, line int, isJSON bool) (what string, err error) {
	if !isJSON {
		if err := checkAliases(raw, d.opt.MaxBytes); err != nil {
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

// head is as much of an object as is read before its kind is known.
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

// object reads one object from JSON. A member of a typed list may leave its
// type away, which is then the given one.
func (d *decoder) object(raw []byte, given metav1.TypeMeta, depth int) (what string, err error) {
	if d.seen++; d.seen > 2*maxDocuments { // a list is one too
		return "", fmt.Errorf("with more than %d objects the input %w", maxDocuments, ErrTooLarge)
	}
	if !startsObject(raw) {
		return "", errors.New("is no object with apiVersion, kind and metadata")
	}
	var h head
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		return "", quiet(err)
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
	case h.APIVersion != "v1":
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
	case "List", "PodList", "ConfigMapList", "SecretList":
		err = d.list(raw, h.Kind, depth)
	default:
		err = unknownKind(h.TypeMeta)
	}
	return what, err
}

func unknownKind(t metav1.TypeMeta) error {
	return fmt.Errorf("kind %s of %s is not one of this agent's: Pod, ConfigMap, Secret, List of v1",
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
			if len(errs) == maxFaults {
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
		return quiet(kjson.UnmarshalCaseSensitivePreserveInts(raw, v))
	}
	faults, err := kjson.UnmarshalStrict(raw, v)
	if err != nil {
		return quiet(err)
	}
	return errors.Join(faults...)
}

func startsObject(raw []byte) bool {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	return len(raw) > 0 && raw[0] == '{'
}

// quiet keeps the value that did not fit out of the error. The field and the
// type that it should have are enough to find it by.
func quiet(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: want %s, is %s", wrong.Field, wrong.Type, firstWord(wrong.Value))
	}
	return err
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}
