package podspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A resource.Quantity with an exponent like that of 1e999999999 costs nothing to read, but gigabytes and minutes to
// compare with another one, and one like 1e-999999999 to read. Neither is an amount of anything.
var (
	// hugeNumber matches the numbers that are rejected as quantities: an exponent of more than three digits, or far more
	// digits than a quantity can keep.
	hugeNumber = regexp.MustCompile(`^[+-]?([0-9.]+[eE][+-]?[0-9]{4}|[0-9.]{100})`)
	// hugeAnywhere matches what may contain one.
	hugeAnywhere = regexp.MustCompile(`[0-9.][eE][+-]?[0-9]{4}|[0-9.]{100}`)
)

// maxExponent is the largest power of ten that a quantity may be scaled by, in both directions.
const maxExponent = 999

// hugeQuantity is the error of a number that hugeNumber matches. It does not have the number, which may be long.
const hugeQuantity = "must be a quantity of less than 100 digits and an exponent of at most three"

// checkQuantities rejects the JSON of an object with a quantity that must not be parsed.
func checkQuantities(raw []byte) error {
	if !hugeAnywhere.Match(raw) {
		return nil
	}
	var object any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if dec.Decode(&object) == nil {
		return checkQuantity(object, "", false)
	}
	return nil // the typed decoder says what is wrong
}

// checkQuantity walks a value. isQuantity says that it is one if it is a number or string.
func checkQuantity(value any, at string, isQuantity bool) error {
	text := ""
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			_, isMap := v[key].(map[string]any)
			if err := checkQuantity(v[key], strings.TrimPrefix(at+"."+key, "."), hasQuantities(at) || !isMap && isQuantityField(key)); err != nil {
				return err
			}
		}
	case []any:
		for i := range v {
			if err := checkQuantity(v[i], fmt.Sprintf("%s[%d]", at, i), false); err != nil {
				return err
			}
		}
	case string:
		text = v
	case json.Number:
		text = v.String()
	}
	if isQuantity && hugeNumber.MatchString(text) {
		return fmt.Errorf("%s: %s", at, hugeQuantity)
	}
	return nil
}

// hasQuantities reports whether the field at the end of a path is a ResourceList.
func hasQuantities(at string) bool {
	switch at[strings.LastIndexByte(at, '.')+1:] {
	case "limits", "requests", "overhead", "capacity", "allocatable", "allocated", "allocatedResources":
		return true
	}
	return false
}

// isQuantityField reports whether a field is a Quantity by itself.
func isQuantityField(name string) bool { return name == "sizeLimit" || name == "divisor" }

// computable reports whether arithmetic with a quantity ends soon.
func computable(q resource.Quantity) bool {
	scale := q.AsDec().Scale() // q is a copy, and this computes nothing
	return scale >= -maxExponent && scale <= maxExponent
}

// amounts reports quantities that nothing must be computed with. Those of a pod from Decode are none.
func (v *validator) amounts(path *field.Path) {
	check := func(at *field.Path, q resource.Quantity) {
		if !computable(q) {
			v.invalid(at, field.OmitValueType{}, hugeQuantity)
		}
	}
	list := func(at *field.Path, amounts corev1.ResourceList) {
		for _, name := range sortedNames(amounts) {
			if hugeNumber.MatchString(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix)) {
				v.invalid(at.Key(string(name)), field.OmitValueType{}, hugeQuantity)
			}
			check(at.Key(string(name)), amounts[name])
		}
	}
	for c := range Containers(v.pod) {
		at := path.Child("containers").Key(c.Name)
		list(at.Child("resources", "limits"), c.Resources.Limits)
		list(at.Child("resources", "requests"), c.Resources.Requests)
		for i := range c.Env {
			if from := c.Env[i].ValueFrom; from != nil && from.ResourceFieldRef != nil {
				check(at.Child("env").Index(i).Child("valueFrom", "resourceFieldRef", "divisor"), from.ResourceFieldRef.Divisor)
			}
		}
	}
	spec := &v.pod.Spec
	if r := spec.Resources; r != nil {
		list(path.Child("resources", "limits"), r.Limits)
		list(path.Child("resources", "requests"), r.Requests)
	}
	list(path.Child("overhead"), spec.Overhead)
	for i := range spec.Volumes {
		if e := spec.Volumes[i].EmptyDir; e != nil && e.SizeLimit != nil {
			check(path.Child("volumes").Index(i).Child("emptyDir", "sizeLimit"), *e.SizeLimit)
		}
	}
}
