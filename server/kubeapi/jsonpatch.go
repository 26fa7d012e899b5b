package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// apply returns the document after the operation. It may change doc. What it copies is taken from
// copyable, which is in bytes.
func (op operation) apply(doc any, copyable *int) (any, error) {
	if op.Path == nil {
		return nil, errors.New("path required")
	}
	to, err := pointer(*op.Path)
	if err != nil {
		return nil, err
	}
	switch op.Op {
	case "remove":
		return remove(doc, to)
	case "move", "copy":
		return op.transfer(doc, to, copyable)
	case "add", "replace", "test":
	default:
		return nil, fmt.Errorf("op %q is not known", op.Op)
	}
	var value any // without one null, as in an API server
	if op.Value != nil {
		if err := decode(op.Value, &value); err != nil {
			return nil, err
		}
	}
	switch op.Op {
	case "add":
		return add(doc, to, value)
	case "replace":
		return replace(doc, to, value)
	}
	found, err := lookup(doc, to)
	if err != nil && value == nil && isMissing(doc, to) {
		return doc, nil
	}
	if err != nil || !reflect.DeepEqual(found, value) {
		return nil, fmt.Errorf("testing value %s failed", *op.Path)
	}
	return doc, nil
}

// isMissing reports whether only the last part of a path is missing, in an object. As in an API server, not as in the
// RFC, that is null in a test.
func isMissing(doc any, path []string) bool {
	if len(path) == 0 {
		return false
	}
	parent, err := lookup(doc, path[:len(path)-1])
	object, ok := parent.(map[string]any)
	if err != nil || !ok {
		return false
	}
	_, exists := object[path[len(path)-1]]
	return !exists
}

// transfer moves or copies a value.
func (op operation) transfer(doc any, to []string, copyable *int) (any, error) {
	if op.From == nil {
		return nil, errors.New("from required")
	}
	from, err := pointer(*op.From)
	if err != nil {
		return nil, err
	}
	if op.Op == "move" && len(from) < len(to) && slices.Equal(from, to[:len(from)]) {
		return nil, errors.New("a value cannot be moved into itself")
	}
	value, err := lookup(doc, from)
	if err != nil {
		return nil, err
	}
	if op.Op == "copy" {
		b, err := json.Marshal(value) // a copy of its own
		if err != nil {
			return nil, err
		}
		if *copyable -= len(b); *copyable < 0 {
			return nil, fmt.Errorf("the patch copies more than %d bytes", maxCopied)
		}
		if err := decode(b, &value); err != nil {
			return nil, err
		}
	} else if doc, err = remove(doc, from); err != nil {
		return nil, err
	}
	return add(doc, to, value)
}

// pointer splits a JSON pointer, RFC 6901.
func pointer(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	if !strings.HasPrefix(text, "/") {
		return nil, fmt.Errorf("path %q: must begin with /", text)
	}
	parts := strings.Split(text[1:], "/")
	for i := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[i])
	}
	return parts, nil
}

// index returns the place in a list of n values. As in an API server, not as in the RFC, a negative number counts from the end.
func index(text string, n int) (int, error) {
	i, err := strconv.Atoi(text)
	if i < 0 {
		i += n
	}
	if err != nil || i < 0 || i >= n {
		return 0, fmt.Errorf("index %q of a list with %d values", text, n)
	}
	return i, nil
}

// lookup returns the value at a path.
func lookup(doc any, path []string) (any, error) {
	for _, part := range path {
		switch v := doc.(type) {
		case map[string]any:
			child, ok := v[part]
			if !ok {
				return nil, fmt.Errorf("there is no %q", part)
			}
			doc = child
		case []any:
			i, err := index(part, len(v))
			if err != nil {
				return nil, err
			}
			doc = v[i]
		default:
			return nil, fmt.Errorf("%q is in neither an object nor a list", part)
		}
	}
	return doc, nil
}

// add sets a member of an object or inserts a value into a list.
func add(doc any, path []string, value any) (any, error) {
	return edit(doc, path, func(parent any, last string) (any, error) {
		list, ok := parent.([]any)
		switch {
		case !ok:
			return put(parent, last, value)
		case last == "-":
			return append(list, value), nil
		}
		i, err := index(last, len(list)+1)
		if err != nil {
			return nil, err
		}
		return slices.Insert(list, i, value), nil
	}, value)
}

// replace replaces a value. As in an API server, not as in the RFC, a member of an object may be missing.
func replace(doc any, path []string, value any) (any, error) {
	return edit(doc, path, func(parent any, last string) (any, error) { return put(parent, last, value) }, value)
}

// put sets a member of an object or replaces an element of a list. It returns the parent.
func put(parent any, name string, value any) (any, error) {
	switch p := parent.(type) {
	case map[string]any:
		p[name] = value
	case []any:
		i, err := index(name, len(p))
		if err != nil {
			return nil, err
		}
		p[i] = value
	default:
		return nil, fmt.Errorf("%q is in neither an object nor a list", name)
	}
	return parent, nil
}

// remove removes a value.
func remove(doc any, path []string) (any, error) {
	if _, err := lookup(doc, path); err != nil {
		return nil, err
	}
	return edit(doc, path, func(parent any, last string) (any, error) {
		if list, ok := parent.([]any); ok {
			i, err := index(last, len(list))
			if err != nil {
				return nil, err
			}
			return slices.Delete(list, i, i+1), nil
		}
		if object, ok := parent.(map[string]any); ok {
			delete(object, last)
		}
		return parent, nil
	}, nil)
}

// edit replaces the parent of the value at a path by what change returns. Without a path it
// replaces the document.
func edit(doc any, path []string, change func(parent any, last string) (any, error), replacement any) (any, error) {
	if len(path) == 0 {
		return replacement, nil
	}
	if len(path) == 1 {
		return change(doc, path[0])
	}
	child, err := lookup(doc, path[:1])
	if err != nil {
		return nil, err
	}
	if child, err = edit(child, path[1:], change, replacement); err != nil {
		return nil, err
	}
	return put(doc, path[0], child)
}
