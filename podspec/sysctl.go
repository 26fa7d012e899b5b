package podspec

import "strings"

// SysctlName returns the name of a kernel parameter as sysctl(8) writes it, with
// dots: net/ipv4/conf/eth0.1/forwarding is net.ipv4.conf.eth0/1.forwarding.
// Whichever separator comes first is the one that the name was written with.
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
