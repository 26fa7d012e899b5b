package podspec

import "strings"

// Expand replaces each $(NAME) in s by what lookup returns for NAME. A name
// that lookup does not know is left as it is written, $$ stands for one $, so
// that $$(NAME) becomes the text $(NAME), and what was put in is not expanded
// again.
func Expand(s string, lookup func(string) (string, bool)) string {
	if strings.IndexByte(s, '$') < 0 {
		return s
	}
	var b strings.Builder
	last := strings.LastIndexByte(s, ')') // bounds the search below, see rest
	for rest := s; ; {
		i := strings.IndexByte(rest, '$')
		if i < 0 || i+1 == len(rest) {
			b.WriteString(rest)
			return b.String()
		}
		b.WriteString(rest[:i])
		next := rest[i+1]
		// Without a closing parenthesis ahead there is nothing to look for;
		// looking each time would make the whole quadratic.
		closes := len(s)-len(rest)+i+1 < last
		rest = rest[i+2:]
		switch {
		case next == '$':
			b.WriteByte('$')
		case next == '(' && closes:
			name, after, _ := strings.Cut(rest, ")")
			if value, ok := lookup(name); ok {
				b.WriteString(value)
			} else {
				b.WriteString("$(" + name + ")")
			}
			rest = after
		default:
			b.WriteByte('$')
			b.WriteByte(next)
		}
	}
}
