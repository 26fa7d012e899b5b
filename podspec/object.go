package podspec

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FromConfigMap returns a ConfigMap as an Object: data and binaryData of all keys. An empty
// namespace becomes "default".
func FromConfigMap(cm *corev1.ConfigMap) Object {
	o := newObject(ConfigMap, cm.Namespace, cm.Name, len(cm.Data)+len(cm.BinaryData))
	for key, value := range cm.BinaryData {
		if o.BinaryKeys == nil {
			o.BinaryKeys = make(map[string]bool, len(cm.BinaryData))
		}
		o.Data[key], o.BinaryKeys[key] = value, true
	}
	for key, value := range cm.Data {
		o.Data[key] = []byte(value)
		delete(o.BinaryKeys, key)
	}
	o.Version = version(&o)
	return o
}

// FromSecret returns a Secret as an Object. stringData overrides data, as in an API server.
// An empty namespace becomes "default".
func FromSecret(s *corev1.Secret) Object {
	o := newObject(Secret, s.Namespace, s.Name, len(s.Data)+len(s.StringData))
	if o.Type = s.Type; o.Type == "" {
		o.Type = corev1.SecretTypeOpaque
	}
	maps.Copy(o.Data, s.Data)
	for key, value := range s.StringData {
		o.Data[key] = []byte(value)
	}
	o.Version = version(&o)
	return o
}

func newObject(kind, namespace, name string, keys int) Object {
	if namespace == "" {
		namespace = corev1.NamespaceDefault
	}
	return Object{Ref: Ref{Kind: kind, Namespace: namespace, Name: name}, Data: make(map[string][]byte, keys)}
}

// version returns a hash of type, data and binary keys. The lengths of the parts are included, so
// that different contents never have the same input.
func version(o *Object) string {
	hash := sha256.New()
	part := func(b []byte) {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		hash.Write(b)
	}
	part([]byte(o.Type))
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		part([]byte(key))
		part(o.Data[key])
	}
	for _, key := range slices.Sorted(maps.Keys(o.BinaryKeys)) { // none is after the last one of the data
		part([]byte(key))
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

// keep adds a valid object to the result.
func (d *decoder) keep(o Object) error {
	err := ValidateObject(o)
	if err == nil {
		d.objects = append(d.objects, o)
	}
	return err
}

// ValidateObject returns all errors of an object, joined, or nil. They do not contain its
// data.
func ValidateObject(o Object) error {
	var errs field.ErrorList
	meta := field.NewPath("metadata")
	if o.Name == "" {
		errs = append(errs, field.Required(meta.Child("name"), ""))
	} else {
		errs = append(errs, invalid(meta.Child("name"), o.Name, validation.IsDNS1123Subdomain)...)
	}
	errs = append(errs, invalid(meta.Child("namespace"), o.Namespace, validation.IsDNS1123Label)...)
	total := 0
	for _, key := range slices.Sorted(maps.Keys(o.Data)) {
		errs = append(errs, invalid(field.NewPath("data").Key(key), key, validation.IsConfigMapKey)...)
		total += len(o.Data[key])
	}
	if total > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath("data"), nil, corev1.MaxSecretSize))
	}
	return errs.ToAggregate()
}

// invalid converts the messages of a check of a string to errors of a field.
func invalid(path *field.Path, value string, check func(string) []string) field.ErrorList {
	var errs field.ErrorList
	for _, message := range check(value) {
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}
