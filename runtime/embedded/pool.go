package embedded

import "net/netip"

// pool allocates the addresses of a prefix, each to one pod at a time. It cycles
// through them, so that a released address is not reused at once.
type pool struct {
	prefix netip.Prefix
	next   netip.Addr
	used   map[netip.Addr]struct{}
}

func newPool(p netip.Prefix) *pool {
	p = p.Masked()
	return &pool{prefix: p, next: p.Addr().Next().Next(), used: map[netip.Addr]struct{}{}}
}

// take returns a free address, or false if there is none. The network address, the
// gateway and the last address are never returned.
func (p *pool) take() (string, bool) {
	first := p.prefix.Addr().Next().Next()
	start := p.next
	for {
		a := p.next
		p.next = a.Next()
		if !p.prefix.Contains(p.next) || !p.prefix.Contains(p.next.Next()) {
			p.next = first
		}
		if _, taken := p.used[a]; !taken {
			p.used[a] = struct{}{}
			return a.String(), true
		}
		if p.next == start {
			return "", false
		}
	}
}

func (p *pool) put(s string) {
	if a, err := netip.ParseAddr(s); err == nil {
		delete(p.used, a)
	}
}
