package kubeletconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

const (
	// maxFileBytes bounds a file: what is larger is not a configuration.
	maxFileBytes = 1 << 20
	// maxDropIns bounds the files of a drop-in directory.
	maxDropIns = 1000
)

// Load reads file, merges the drop-in files of dir into it, and sets the defaults of a kubelet. Both
// names may be empty. Drop-in files are those below dir that end in .conf, in the order of their
// paths. A later file replaces single fields, lists as a whole, and keys of maps, also those of the default
// evictionHard; null sets a field back to its default (RFC 7386, as a kubelet merges).
//
// Files are YAML or JSON with apiVersion kubelet.config.k8s.io/v1beta1 and kind
// KubeletConfiguration. A field that this version does not know, or that is given twice in a file, is
// an error. Relative paths in a file are relative to its directory.
//
// What the values mean is not checked: see Validate.
func Load(file, dir string) (*Config, error) {
	files, err := dropIns(dir)
	if err != nil {
		return nil, err
	}
	if file != "" {
		files = slices.Insert(files, 0, file)
	}
	merged, given := map[string]any{}, map[string]any{}
	for i, name := range files {
		object, err := readFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		merge(merged, object)
		merge(given, object)
		if file != "" && i == 0 {
			if err := setBaseDefaults(merged); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	c := &Config{given: map[string]bool{}}
	if err := decode(merged, &c.kubelet, true); err != nil {
		return nil, err
	}
	for _, path := range leafPaths() {
		c.given[path] = has(given, path)
	}
	c.setDefaults()
	return c, nil
}

// setBaseDefaults sets the defaults of a file that drop-in files are merged into, where they are not those of the merged
// configuration: a drop-in file with one threshold of evictionHard keeps the others, and one with
// nodeStatusUpdateFrequency does not change nodeStatusReportFrequency.
func setBaseDefaults(object map[string]any) error {
	base := &Config{}
	if err := decode(object, &base.kubelet, true); err != nil {
		return err
	}
	base.setDefaults()
	hard := map[string]any{}
	for signal, threshold := range base.kubelet.EvictionHard {
		hard[signal] = threshold
	}
	object["evictionHard"] = hard
	object["nodeStatusReportFrequency"] = base.kubelet.NodeStatusReportFrequency.Duration.String()
	return nil
}

// dropIns returns the names of the drop-in files below dir.
func dropIns(dir string) ([]string, error) {
	if dir == "" {
		return nil, nil
	}
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() && filepath.Ext(path) == ".conf" {
			names = append(names, path)
		}
		if len(names) > maxDropIns {
			return fmt.Errorf("%s has more than %d drop-in files", dir, maxDropIns)
		}
		return nil
	})
	return names, err // in lexical order, as WalkDir visits them
}

// readFile reads and checks one file.
func readFile(name string) (map[string]any, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxFileBytes)
	}
	object, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("not a KubeletConfiguration: %w", err)
	}
	if version, kind := object["apiVersion"], object["kind"]; version != v1beta1.SchemeGroupVersion.String() || kind != "KubeletConfiguration" {
		return nil, fmt.Errorf("apiVersion %q and kind %q: must be %s and KubeletConfiguration", orEmpty(version), orEmpty(kind), v1beta1.SchemeGroupVersion)
	}
	if err := checkFields(object); err != nil {
		return nil, err
	}
	return object, resolvePaths(object, filepath.Dir(name))
}

// parse reads YAML or JSON, in which no field is twice.
func parse(text []byte) (map[string]any, error) {
	text, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	return object, json.Unmarshal(text, &object)
}

// checkFields returns an error for all unknown fields, and one for each field of the wrong type. A field is decoded
// alone, because the errors of durations do not name it.
func checkFields(object map[string]any) error {
	var errs []error
	unknown := unknownFields(object, reflect.TypeFor[v1beta1.KubeletConfiguration](), "")
	if len(unknown) > 0 {
		errs = append(errs, fmt.Errorf("unknown fields: %s; names are case-sensitive", strings.Join(unknown, ", ")))
	}
	values := map[string]any{}
	merge(values, object) // without nulls, which have no type
	for _, name := range slices.Sorted(maps.Keys(values)) {
		err := decode(map[string]any{name: values[name]}, &v1beta1.KubeletConfiguration{}, len(unknown) == 0)
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			err = fmt.Errorf("%s: want %s, is %s", wrong.Field, wrong.Type, wrong.Value)
		} else if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func orEmpty(v any) any {
	if v == nil {
		return ""
	}
	return v
}

// unknownFields returns the paths of fields that differ from those of the type, if only by case,
// which package json does not tell apart.
func unknownFields(object map[string]any, t reflect.Type, prefix string) []string {
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(object)) {
		i := fieldNamed(t, name)
		if i < 0 {
			if prefix != "" || name != "apiVersion" && name != "kind" {
				unknown = append(unknown, prefix+name)
			}
			continue
		}
		inner := t.Field(i).Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if next, ok := object[name].(map[string]any); ok && hasOwnFields(inner) {
			unknown = append(unknown, unknownFields(next, inner, prefix+name+".")...)
		}
	}
	return unknown
}

// resolvePaths makes the relative paths in a file absolute.
func resolvePaths(object map[string]any, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, field := range []string{"staticPodPath", "podLogsDir", "tlsCertFile", "tlsPrivateKeyFile", "resolvConf", "authentication.x509.clientCAFile"} {
		parent, last := parentOf(object, field)
		if path, ok := parent[last].(string); ok && path != "" && !filepath.IsAbs(path) {
			parent[last] = filepath.Join(dir, path)
		}
	}
	return nil
}

// parentOf returns the object that has the field at path, nil if there is none, and the name of the field in it.
func parentOf(object map[string]any, path string) (map[string]any, string) {
	for {
		name, rest, nested := strings.Cut(path, ".")
		if !nested {
			return object, name
		}
		object, _ = object[name].(map[string]any)
		path = rest
	}
}

// has reports whether the field at path is there.
func has(object map[string]any, path string) bool {
	parent, last := parentOf(object, path)
	return parent[last] != nil
}

// merge merges patch into object (RFC 7386).
func merge(object, patch map[string]any) {
	for name, value := range patch {
		next, isObject := value.(map[string]any)
		old, wasObject := object[name].(map[string]any)
		switch {
		case value == nil:
			delete(object, name)
		case !isObject:
			object[name] = value
		case !wasObject:
			fresh := map[string]any{}
			merge(fresh, next) // without its nulls
			object[name] = fresh
		default:
			merge(old, next)
		}
	}
}

// decode decodes an object whose fields, if strict, are all known.
func decode(object map[string]any, into *v1beta1.KubeletConfiguration, strict bool) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if strict {
		d.DisallowUnknownFields()
	}
	return d.Decode(into)
}
