package podspec

import "strings"

// Expand replaces each $(NAME) in s by the value that lookup returns for NAME, by the rules
// for command, args and env of a container: a reference to an unknown name is kept, $$ is
// replaced by $, so that $$(NAME) gives the text $(NAME), and values are not expanded again.
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
		// Without a closing parenthesis ahead there is no reference. Searching for one each
		// time would take quadratic time.
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
