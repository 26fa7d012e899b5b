package podspec

import "strings"

// SysctlName returns the name of a kernel parameter in the form of sysctl(8), with dots:
// net.ipv4.conf.eth0/1.forwarding for net/ipv4/conf/eth0.1/forwarding. The first separator
// in name, a dot or a slash, determines the form in which name is written.
func SysctlName(name string) string {
	if first := strings.IndexAny(name, "./"); first < 0 || name[first] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '/':
			return '.'
		case '.':
			return '/'
		}
		return r
	}, name)
}
