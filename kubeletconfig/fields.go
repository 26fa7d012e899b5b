package kubeletconfig

import (
	"slices"
)

// Treatment says what becomes of a field.
type Treatment string

// What can become of a field.
const (
	Honoured    Treatment = "honoured"      // it does what it does for a kubelet
	Unsupported Treatment = "not supported" // any value that the agent does not already act upon is an error of Validate
	NoMeaning   Treatment = "no meaning"    // accepted, and listed by Notices; nothing here depends on it
)

// Field describes one field of a KubeletConfiguration.
type Field struct {
	Path      string // as in the file, from its top: authentication.anonymous.enabled
	Flag      string // that sets the field, without dashes: the kubelet's, or a name in its style; "" if there is none
	Default   string // the kubelet's, in the form of a flag; "" if it is the zero value
	Treatment Treatment
	Note      string // what an honoured field decides; why another is not honoured, and what to do instead
	// Accepts has the values of an unsupported field that are accepted, besides zero and Default, and those of one without
	// meaning that say what happens anyway.
	Accepts []string
}

// Fields returns all fields of a KubeletConfiguration that are not structures themselves, in the
// order of the type. The caller owns the result.
func Fields() []Field {
	all := slices.Concat(sourceFields(), serverFields(), imageFields(), resourceFields(), managerFields(), clusterFields(), otherFields())
	position := map[string]int{}
	for i, path := range leafPaths() {
		position[path] = i
	}
	slices.SortStableFunc(all, func(a, b Field) int { return position[a.Path] - position[b.Path] })
	return all
}

// fieldOfFlag returns the field that a flag of the kubelet sets.
func fieldOfFlag(name string) (Field, bool) {
	for _, f := range Fields() {
		if f.Flag == name && name != "" {
			return f, true
		}
	}
	return Field{}, false
}

func honoured(path, flag, def, note string) Field {
	return Field{Path: path, Flag: flag, Default: def, Treatment: Honoured, Note: note}
}

func noMeaning(path, flag, def, note string, accepts ...string) Field {
	return Field{Path: path, Flag: flag, Default: def, Treatment: NoMeaning, Note: note, Accepts: accepts}
}

func unsupported(path, flag, def, note string, accepts ...string) Field {
	return Field{Path: path, Flag: flag, Default: def, Treatment: Unsupported, Note: note, Accepts: accepts}
}
