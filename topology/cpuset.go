package topology

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxID is the highest number of a CPU or NUMA node: the most that Linux can be built for.
const maxID = 8191

// Set is a set of CPUs or of NUMA nodes. The zero value is empty. Sets are not changed.
type Set struct{ ids []int } // sorted, each once

// NewSet returns the set of these numbers.
func NewSet(ids ...int) Set {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return Set{slices.Compact(ids)}
}

// ParseSet parses the kernel's form of a list, such as 0-3,8. An empty text is the empty set.
// Numbers above 8191 are an error.
func ParseSet(text string) (Set, error) {
	var ids []int
	if text = strings.TrimSpace(text); text == "" {
		return Set{}, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, errFrom := strconv.Atoi(first)
		to, errTo := strconv.Atoi(last)
		if err := errors.Join(errFrom, errTo); err != nil || to < from || to > maxID {
			return Set{}, fmt.Errorf("invalid list %.100q: must be numbers up to %d and ranges, such as 0-3,8", text, maxID)
		}
		for id := from; id <= to; id++ {
			ids = append(ids, id)
		}
		if len(ids) > 2*maxID {
			ids = NewSet(ids...).ids // a list may repeat itself
		}
	}
	return NewSet(ids...), nil
}

// String returns the kernel's form of the list.
func (s Set) String() string {
	var b strings.Builder
	for i := 0; i < len(s.ids); i++ {
		first := i
		for i+1 < len(s.ids) && s.ids[i+1] == s.ids[i]+1 {
			i++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s.ids[first]))
		if i > first {
			b.WriteString("-" + strconv.Itoa(s.ids[i]))
		}
	}
	return b.String()
}

// MarshalText implements encoding.TextMarshaler with String.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseSet.
func (s *Set) UnmarshalText(text []byte) error {
	parsed, err := ParseSet(string(text))
	*s = parsed
	return err
}

// IDs returns the numbers in ascending order. The caller owns the result.
func (s Set) IDs() []int { return slices.Clone(s.ids) }

// Len returns how many there are.
func (s Set) Len() int { return len(s.ids) }

// Contains reports whether the number is in the set.
func (s Set) Contains(id int) bool {
	_, found := slices.BinarySearch(s.ids, id)
	return found
}

// Equal reports whether both sets have the same numbers.
func (s Set) Equal(other Set) bool { return slices.Equal(s.ids, other.ids) }

// Union returns what is in either set.
func (s Set) Union(other Set) Set { return NewSet(slices.Concat(s.ids, other.ids)...) }

// Intersect returns what is in both sets.
func (s Set) Intersect(other Set) Set { return s.filter(other.Contains) }

// Intersects reports whether anything is in both sets.
func (s Set) Intersects(other Set) bool { return slices.ContainsFunc(s.ids, other.Contains) }

// Minus returns what is in s and not in other.
func (s Set) Minus(other Set) Set {
	return s.filter(func(id int) bool { return !other.Contains(id) })
}

// IsSubset reports whether all of s is in other.
func (s Set) IsSubset(other Set) bool { return s.Minus(other).Len() == 0 }

func (s Set) filter(keep func(id int) bool) Set {
	var ids []int
	for _, id := range s.ids {
		if keep(id) {
			ids = append(ids, id)
		}
	}
	return Set{ids}
}
