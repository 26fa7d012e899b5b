package runtime

import "net/netip"

// PodIPs returns the addresses that are reported of a pod, of all that its network has given it: the
// first of each family, which is all that an API server accepts, with the family of the node's
// primary address in front. What is no address is left out. It is pure.
func PodIPs(ips, nodeIPs []string) []string {
	var primary, secondary string
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip)
		if a = a.Unmap(); err != nil || a.Zone() != "" {
			continue
		}
		of := &secondary
		if a.Is6() == prefersIPv6(nodeIPs) {
			of = &primary
		}
		if *of == "" {
			*of = a.String()
		}
	}
	var out []string
	for _, ip := range []string{primary, secondary} {
		if ip != "" {
			out = append(out, ip)
		}
	}
	return out
}

func prefersIPv6(nodeIPs []string) bool {
	if len(nodeIPs) == 0 {
		return false
	}
	a, err := netip.ParseAddr(nodeIPs[0])
	return err == nil && a.Unmap().Is6()
}
