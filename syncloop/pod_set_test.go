package syncloop

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func TestPodSet_MatchesMap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	var r podSet
	naive := map[types.UID]string{}
	for i := range 2000 {
		uid := types.UID(fmt.Sprint(rnd.IntN(30)))
		switch rnd.IntN(5) {
		case 0, 1, 2:
			pod := newPod(string(uid))
			pod.Name = fmt.Sprint(i)
			r.put(pod)
			naive[uid] = pod.Name
		case 3:
			r.drop(uid)
			delete(naive, uid)
		case 4:
			if rnd.IntN(10) == 0 {
				r.keep(func(p *Pod) bool { return p.UID != uid && p.UID < "2" })
				for u := range naive {
					if u == uid || u >= "2" {
						delete(naive, u)
					}
				}
			}
		}
		require.Len(t, r.pods, len(naive))
		for _, p := range r.pods {
			require.Equal(t, naive[p.UID], p.Name)
		}
	}
}
