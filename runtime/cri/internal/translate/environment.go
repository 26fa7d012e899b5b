package translate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/sublet-dev/agent/podspec"
	"github.com/sublet-dev/agent/runtime"
)

// EnvVar is one resolved variable.
type EnvVar struct{ name, value string }

// Environment resolves a container's variables, in the order in which they
// first appear; of one name the last value counts. ips are the pod's addresses.
//
// Errors name objects and keys, never values.
func (tr *Translator) Environment(ctx context.Context, spec *corev1.Container, ips []string) ([]EnvVar, error) {
	e := environment{tr: tr, at: make(map[string]int), facts: tr.withStatus(ips)}
	errs := []error{e.services(ctx)}
	for _, from := range spec.EnvFrom {
		errs = append(errs, e.from(ctx, from))
	}
	for i := range spec.Env {
		errs = append(errs, e.add(ctx, spec, &spec.Env[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return e.vars, nil
}

// withStatus returns a view of the pod with what only the node knows of it.
func (tr *Translator) withStatus(ips []string) *corev1.Pod {
	view := *tr.Pod
	if tr.Options.NodeName != "" {
		view.Spec.NodeName = tr.Options.NodeName
	}
	view.Status.HostIPs, view.Status.PodIPs = nil, nil
	for _, ip := range tr.Options.HostIPs {
		view.Status.HostIPs = append(view.Status.HostIPs, corev1.HostIP{IP: ip})
	}
	for _, ip := range ips {
		view.Status.PodIPs = append(view.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	view.Status.HostIP, view.Status.PodIP = cmp.Or(tr.Options.HostIPs...), cmp.Or(ips...)
	return &view
}

type environment struct {
	tr    *Translator
	facts *corev1.Pod
	vars  []EnvVar
	at    map[string]int // index in vars
}

func (e *environment) set(name, value string) {
	if i, ok := e.at[name]; ok {
		e.vars[i].value = value
		return
	}
	e.at[name] = len(e.vars)
	e.vars = append(e.vars, EnvVar{name, value})
}

func (e *environment) lookup(name string) (string, bool) {
	if i, ok := e.at[name]; ok {
		return e.vars[i].value, true
	}
	return "", false
}

// services sets the variables of services first, so that those of the spec replace them.
func (e *environment) services(ctx context.Context) error {
	places, ok := e.tr.Options.Objects.(podspec.Services)
	if !ok {
		return nil
	}
	vars, err := places.ServiceEnv(ctx, e.tr.Pod)
	if err != nil {
		return fmt.Errorf("variables of services: %w", err)
	}
	for _, v := range vars {
		e.set(v.Name, v.Value)
	}
	return nil
}

// from takes over all of an object's keys that can be variables' names. The binaryData of a ConfigMap is
// left out, as by a kubelet.
func (e *environment) from(ctx context.Context, from corev1.EnvFromSource) error {
	var ref podspec.Ref
	var optional *bool
	switch {
	case from.ConfigMapRef != nil:
		ref, optional = podspec.Ref{Kind: podspec.ConfigMap, Name: from.ConfigMapRef.Name}, from.ConfigMapRef.Optional
	case from.SecretRef != nil:
		ref, optional = podspec.Ref{Kind: podspec.Secret, Name: from.SecretRef.Name}, from.SecretRef.Optional
	default:
		return fmt.Errorf("envFrom names no source: %w", runtime.ErrInvalid)
	}
	object, found, err := e.object(ctx, ref, optional)
	if err != nil || !found {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		if isBinary(ref.Kind, &object, key) {
			continue
		}
		if name := from.Prefix + key; isEnvName(name) {
			e.set(name, string(object.Data[key]))
		}
	}
	return nil
}

// isBinary reports whether a key is of the binaryData of a ConfigMap. Objects of other makers do not
// tell: what cannot be the value of a variable is binary.
func isBinary(kind string, o *podspec.Object, key string) bool {
	value := o.Data[key]
	return kind == podspec.ConfigMap && (o.BinaryKeys[key] || !utf8.Valid(value) || bytes.Contains(value, []byte{0}))
}

// isEnvName reports whether name can be a variable: printable ASCII, no '='.
func isEnvName(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool { return r <= ' ' && r != ' ' || r > '~' || r == '=' }) < 0
}

func (e *environment) add(ctx context.Context, spec *corev1.Container, v *corev1.EnvVar) error {
	if v.ValueFrom == nil {
		e.set(v.Name, podspec.Expand(v.Value, e.lookup))
		return nil
	}
	value, found, err := e.value(ctx, spec, v.ValueFrom)
	if err != nil {
		return fmt.Errorf("env %s: %w", v.Name, err)
	}
	if found {
		e.set(v.Name, value)
	}
	return nil
}

func (e *environment) value(ctx context.Context, spec *corev1.Container, from *corev1.EnvVarSource) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		value, ok := podspec.FieldValue(e.facts, from.FieldRef.FieldPath)
		if !ok {
			return "", false, fmt.Errorf("fieldRef %s: there is no such field: %w", from.FieldRef.FieldPath, runtime.ErrInvalid)
		}
		return value, true, nil
	case from.ResourceFieldRef != nil:
		value, err := podspec.ResourceValue(e.tr.Pod, spec, from.ResourceFieldRef, e.tr.Options.Allocatable)
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		return e.key(ctx, podspec.Ref{Kind: podspec.ConfigMap, Name: r.Name}, r.Key, r.Optional)
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		return e.key(ctx, podspec.Ref{Kind: podspec.Secret, Name: r.Name}, r.Key, r.Optional)
	case from.FileKeyRef != nil:
		return e.tr.fileKey(from.FileKeyRef)
	}
	return "", false, fmt.Errorf("valueFrom names no source: %w", runtime.ErrInvalid)
}

func (e *environment) key(ctx context.Context, ref podspec.Ref, key string, optional *bool) (string, bool, error) {
	object, found, err := e.object(ctx, ref, optional)
	if err != nil || !found {
		return "", false, err
	}
	value, ok := object.Data[key]
	why := ""
	if ok && isBinary(ref.Kind, &object, key) {
		value, ok, why = nil, false, " but in its binaryData"
	}
	if !ok && (optional == nil || !*optional) {
		return "", false, fmt.Errorf("couldn't find key %q in %s %s/%s%s: %w", key, ref.Kind, e.tr.Pod.Namespace, ref.Name, why, runtime.ErrNotFound)
	}
	return string(value), ok, nil
}

// object looks an object of the pod's namespace up. One that is missing is no
// error if it is optional.
func (e *environment) object(ctx context.Context, ref podspec.Ref, optional *bool) (podspec.Object, bool, error) {
	ref.Namespace = e.tr.Pod.Namespace
	err := podspec.ErrObjectNotFound
	var object podspec.Object
	if e.tr.Options.Objects != nil {
		object, err = e.tr.Options.Objects.Object(ctx, ref)
	}
	switch {
	case err == nil:
		return object, true, nil
	case errors.Is(err, podspec.ErrObjectNotFound) && optional != nil && *optional:
		return podspec.Object{}, false, nil
	}
	return podspec.Object{}, false, fmt.Errorf("%s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err)
}

// expandAll expands $(NAME) in command and args.
func expandAll(words []string, env []EnvVar) []string {
	if len(words) == 0 {
		return nil
	}
	lookup := lookupIn(env)
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = podspec.Expand(w, lookup)
	}
	return out
}

func lookupIn(env []EnvVar) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, e := range env {
			if e.name == name {
				return e.value, true
			}
		}
		return "", false
	}
}
