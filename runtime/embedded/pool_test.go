package embedded

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPool_AllocatesEachAddressOnce(t *testing.T) {
	p := newPool(netip.MustParsePrefix("10.1.2.0/29")) // eight: less network, gateway and last
	rnd := rand.New(rand.NewPCG(3, 4))
	used := map[string]bool{}
	for range 2000 {
		if rnd.IntN(2) == 0 {
			ip, ok := p.take()
			require.Equal(t, len(used) < 5, ok)
			if ok {
				require.False(t, used[ip], "%s was given twice", ip)
				require.NotContains(t, []string{"10.1.2.0", "10.1.2.1", "10.1.2.7"}, ip)
				used[ip] = true
			}
			continue
		}
		for ip := range used {
			p.put(ip)
			delete(used, ip)
			break
		}
	}
}
