package kubeletconfig

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubelet/config/v1beta1"
)

// errNoFlagForm is returned for a field that only a file can set.
var errNoFlagForm = errors.New("can only be set in a file")

// leafPaths returns the paths of all fields that have no fields themselves, in the order of the type.
// Structures of other packages are leaves, except the configuration of logs.
func leafPaths() []string {
	var paths []string
	var walk func(t reflect.Type, prefix string)
	walk = func(t reflect.Type, prefix string) {
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue // the kind and version
			}
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if hasOwnFields(inner) {
				walk(inner, prefix+name+".")
				continue
			}
			paths = append(paths, prefix+name)
		}
	}
	walk(reflect.TypeFor[v1beta1.KubeletConfiguration](), "")
	return paths
}

func hasOwnFields(t reflect.Type) bool {
	own := t.PkgPath() == reflect.TypeFor[v1beta1.KubeletConfiguration]().PkgPath() || t.Name() == "LoggingConfiguration"
	return own && t.Kind() == reflect.Struct
}

// leaf returns the field at path. Structures on the way to it are made if they are pointers: cfg is
// changed, but not what it means.
func leaf(cfg *v1beta1.KubeletConfiguration, path string) reflect.Value {
	v := reflect.ValueOf(cfg).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(fieldNamed(v.Type(), name))
	}
	return v
}

// valueAt returns the field at path of a copy of cfg.
func valueAt(cfg *v1beta1.KubeletConfiguration, path string) reflect.Value {
	return leaf(cfg.DeepCopy(), path)
}

func fieldNamed(t reflect.Type, name string) int {
	for i := range t.NumField() {
		if n, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); n == name {
			return i
		}
	}
	return -1
}

// setText sets v to the value that a flag would give it. Lists and maps are replaced.
func setText(v reflect.Value, text string) error {
	if v.Kind() == reflect.Pointer {
		next := reflect.New(v.Type().Elem())
		if err := setText(next.Elem(), text); err != nil {
			return err
		}
		v.Set(next)
		return nil
	}
	switch p := v.Addr().Interface().(type) {
	case *metav1.Duration:
		d, err := time.ParseDuration(text)
		p.Duration = d
		return err
	case *map[string]bool:
		return setMap(p, text, strconv.ParseBool)
	case *map[string]string:
		return setMap(p, text, func(s string) (string, error) { return s, nil })
	case *map[string][]string:
		return setHeader(p, text)
	case *[]string:
		*p = list(text)
		return nil
	case *[]corev1.Taint:
		taints, err := parseTaints(text)
		*p = taints
		return err
	case *[]v1beta1.MemoryReservation:
		reserved, err := parseReservedMemory(text)
		*p = reserved
		return err
	}
	return setBasic(v, text)
}

func setBasic(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q must be true or false", text)
		}
		v.SetBool(b)
	case reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q must be a whole number", text)
		}
		v.SetInt(n)
	case reflect.Uint32: // the verbosity of logs
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q must be a whole number from 0", text)
		}
		v.SetUint(n)
	case reflect.Struct:
		if d := v.FieldByName("Duration"); d.IsValid() { // that of logs has two forms in JSON
			return setText(d, text)
		}
		return errNoFlagForm
	default:
		return errNoFlagForm
	}
	return nil
}

// list splits at commas. It is empty but not nil for "".
func list(text string) []string {
	if text == "" {
		return []string{}
	}
	return strings.Split(text, ",")
}

// setMap reads key=value,key=value, or key<value and key>value as in thresholds of eviction. As for a kubelet,
// entries can be empty: a list may end in a comma.
func setMap[T any](m *map[string]T, text string, parse func(string) (T, error)) error {
	result := map[string]T{}
	if text == "none" { // as package eviction reads it
		text = ""
	}
	for _, entry := range list(text) {
		if entry == "" {
			continue
		}
		i := strings.IndexAny(entry, "=<>")
		if i < 1 {
			return fmt.Errorf("entry %q must be name=value", entry)
		}
		value, err := parse(strings.TrimSpace(entry[i+1:]))
		if err != nil {
			return fmt.Errorf("entry %q: %w", entry, err)
		}
		result[strings.TrimSpace(entry[:i])] = value
	}
	*m = result
	return nil
}

// setHeader reads name:value,name:value. The error does not contain values, which may be credentials.
func setHeader(m *map[string][]string, text string) error {
	result := map[string][]string{}
	for i, entry := range list(text) {
		if entry == "" {
			continue
		}
		name, value, ok := strings.Cut(entry, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return fmt.Errorf("entry %d must be name:value", i+1)
		}
		result[name] = append(result[name], strings.TrimSpace(value))
	}
	*m = result
	return nil
}

// parseTaints reads key=value:effect,key:effect.
func parseTaints(text string) ([]corev1.Taint, error) {
	var taints []corev1.Taint
	for _, entry := range list(text) {
		name, effect, _ := strings.Cut(entry, ":")
		key, value, _ := strings.Cut(name, "=")
		t := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
		if err := checkTaint(t); err != nil {
			return nil, fmt.Errorf("%q must be key=value:effect: %w", entry, err)
		}
		taints = append(taints, t)
	}
	return taints, nil
}

func checkTaint(t corev1.Taint) error {
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	badKey, badValue := validation.IsQualifiedName(t.Key), validation.IsValidLabelValue(t.Value)
	switch {
	case t.Key == "":
		return errors.New("the key is empty")
	case len(badKey) > 0:
		return fmt.Errorf("the key: %s", badKey[0])
	case len(badValue) > 0:
		return fmt.Errorf("the value: %s", badValue[0])
	case !slices.Contains(effects, t.Effect):
		return fmt.Errorf("effect %q is none of %v", t.Effect, effects)
	case t.TimeAdded != nil:
		return errors.New("timeAdded is set by the cluster")
	}
	return nil
}

// text is the form of a value in messages and in the table of fields.
func text(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct && v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0 {
		return zeroText(v)
	}
	switch p := v.Interface().(type) {
	case metav1.Duration:
		return p.Duration.String()
	case map[string]string:
		return join(p, "=")
	case map[string]bool:
		return join(p, "=")
	case map[string][]string:
		var entries []string
		for _, name := range slices.Sorted(maps.Keys(p)) {
			for _, value := range p[name] {
				entries = append(entries, name+":"+value)
			}
		}
		return strings.Join(entries, ",")
	case []corev1.Taint:
		entries := make([]string, 0, len(p))
		for _, t := range p {
			entries = append(entries, t.ToString())
		}
		return strings.Join(entries, ",")
	case []string:
		return strings.Join(p, ",")
	case []v1beta1.MemoryReservation:
		return joinReservedMemory(p)
	}
	if v.Kind() == reflect.Struct && v.FieldByName("Duration").IsValid() {
		return text(v.FieldByName("Duration"))
	}
	return fmt.Sprint(v.Interface())
}

func zeroText(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Bool, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Float64:
		return fmt.Sprint(v.Interface())
	default:
		return ""
	}
}

func isBool(t reflect.Type) bool {
	return t.Kind() == reflect.Bool || t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Bool
}

func isList(t reflect.Type) bool { return t.Kind() == reflect.Slice || t.Kind() == reflect.Map }
