// Package settings stores what options give to a constructor: at most one value of each
// type, usually the Config of a component. Several options can contribute to one value.
// It knows none of the types.
package settings

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Store has the values. Its zero value is empty.
type Store struct {
	entries []*entry
}

type entry struct {
	options []string      // that contributed to the value
	value   reflect.Value // addressable
	used    bool
}

// checker is a value that knows what is wrong with it.
type checker interface{ Check() error }

// Add merges v into the value of its type: lists are appended, and a field of any other
// kind must not have another value yet. An empty v, and one with a nil in a list, is an
// error: the option was given nil. If v has a method Check() error, that has to accept it.
func Add[T any](s *Store, option string, v T) error {
	if hasNil(reflect.ValueOf(v)) {
		return fmt.Errorf("%s: nil or empty", option)
	}
	return s.add(option, reflect.ValueOf(v))
}

// Set is Add for an option that can be given once and whose value may be empty.
func Set[T any](s *Store, option string, v T) error {
	rv := reflect.ValueOf(v)
	if e := s.find(rv.Type()); e != nil && slices.Contains(e.options, option) {
		return fmt.Errorf("%s: set twice", option)
	}
	return s.add(option, rv)
}

func (s *Store) add(option string, v reflect.Value) error {
	e := s.find(v.Type())
	if e == nil {
		e = &entry{value: reflect.New(v.Type()).Elem()}
		s.entries = append(s.entries, e)
	}
	e.options = append(e.options, option)
	errs := merge(e.value, v, "", func(_, old, next string) error {
		if old == "" {
			return fmt.Errorf("%s: set twice", option)
		}
		return fmt.Errorf("%s: set to %s and to %s", option, old, next)
	})
	if c, ok := reflect.TypeAssert[checker](v); ok {
		errs = append(errs, c.Check())
	}
	return errors.Join(errs...)
}

// Get returns the value of its type, and whether an option gave one. It counts as used.
func Get[T any](s *Store) (v T, given bool) {
	if e := s.find(reflect.TypeFor[T]()); e != nil {
		e.used = true
	}
	return Peek[T](s)
}

// Peek is Get for a caller after which the value still counts as unused.
func Peek[T any](s *Store) (v T, given bool) {
	e := s.find(reflect.TypeFor[T]())
	if e == nil {
		return v, false
	}
	return reflect.TypeAssert[T](e.value)
}

// Value is Peek for a caller to whom no value is the zero value.
func Value[T any](s *Store) T {
	v, _ := Peek[T](s)
	return v
}

// Has tells whether an option gave a value of the type.
func Has[T any](s *Store) bool { return s.find(reflect.TypeFor[T]()) != nil }

// Complete returns own with what options gave for its type: lists are appended to those of
// own. A field that both have is an error. The value counts as used.
func Complete[T any](s *Store, own T) (T, error) {
	given, ok := Get[T](s)
	if !ok {
		return own, nil
	}
	v := reflect.ValueOf(&own).Elem()
	errs := merge(v, reflect.ValueOf(given), "", func(field, _, _ string) error {
		return fmt.Errorf("%s.%s: the agent sets it; remove it", v.Type(), field)
	})
	return own, errors.Join(errs...)
}

// Unused returns the options all of whose values nothing has used.
func (s *Store) Unused() (options []string) {
	for _, e := range s.entries {
		if !e.used {
			options = append(options, e.options...)
		}
	}
	slices.Sort(options)
	return slices.Compact(options)
}

// Each calls visit with each value and the options that gave it, and joins its errors.
func (s *Store) Each(visit func(options []string, v any) error) error {
	var errs []error
	for _, e := range s.entries {
		errs = append(errs, visit(e.options, e.value.Interface()))
	}
	return errors.Join(errs...)
}

func (s *Store) find(t reflect.Type) *entry {
	for _, e := range s.entries {
		if e.value.Type() == t {
			return e
		}
	}
	return nil
}

// merge sets the fields of into that from has, and calls conflict for those that both have with different values.
func merge(into, from reflect.Value, path string, conflict func(field, old, next string) error) (errs []error) {
	for i := range from.NumField() {
		field, value, name := into.Field(i), from.Field(i), path+from.Type().Field(i).Name
		switch {
		case value.IsZero():
		case value.Kind() == reflect.Slice:
			all := reflect.MakeSlice(value.Type(), 0, field.Len()+value.Len())
			field.Set(reflect.AppendSlice(reflect.AppendSlice(all, field), value))
		case field.IsZero():
			field.Set(cloned(value))
		case value.Kind() == reflect.Struct && isOpen(value.Type()):
			errs = append(errs, merge(field, value, name+".", conflict)...)
		case value.Kind() == reflect.String && field.String() != value.String():
			errs = append(errs, conflict(name, fmt.Sprintf("%q", field), fmt.Sprintf("%q", value)))
		case !value.Comparable() || isReference(value.Kind()) || !field.Equal(value):
			errs = append(errs, conflict(name, "", ""))
		}
	}
	return errs
}

// cloned returns v, with a copy of what it refers to if it is a map or a struct of lists.
func cloned(v reflect.Value) reflect.Value {
	switch {
	case v.Kind() == reflect.Map:
		m := reflect.MakeMapWithSize(v.Type(), v.Len())
		for it := v.MapRange(); it.Next(); {
			m.SetMapIndex(it.Key(), it.Value())
		}
		return m
	case v.Kind() == reflect.Struct && isOpen(v.Type()):
		c := reflect.New(v.Type()).Elem()
		merge(c, v, "", nil) // c is empty
		return c
	}
	return v
}

// isOpen tells whether all fields of a struct are exported.
func isOpen(t reflect.Type) bool {
	for f := range t.Fields() {
		if !f.IsExported() {
			return false
		}
	}
	return true
}

// isReference tells whether equal values of a kind may still be two settings.
func isReference(k reflect.Kind) bool {
	return k == reflect.Interface || k == reflect.Pointer || k == reflect.Func
}

// hasNil tells whether v is empty or one of its lists has a nil.
func hasNil(v reflect.Value) bool {
	for _, f := range v.Fields() {
		if f.Kind() == reflect.Slice {
			for j := range f.Len() {
				if isReference(f.Index(j).Kind()) && f.Index(j).IsNil() {
					return true
				}
			}
		}
	}
	return v.IsZero()
}
