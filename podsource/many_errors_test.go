package podsource_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/podsource"
)

// countedError counts how often errors are written.
type countedError struct {
	n     int
	count *atomic.Int64
}

func (e countedError) Error() string {
	e.count.Add(1)
	return fmt.Sprintf("invalid pod %d", e.n)
}

// SR-4: what many invalid manifests cost depends on their number alone, and not on its square.
func TestMux_ManyErrors(t *testing.T) {
	const manifests, sets = 1000, 3
	bubble(t, func(t *testing.T) {
		var written atomic.Int64
		r := start(t, sourceFunc(func(ctx context.Context, deliver func(podsource.Set)) error {
			for i := range sets {
				if i > 0 {
					time.Sleep(time.Minute)
				}
				var set podsource.Set
				for n := range manifests {
					set.Errors = append(set.Errors, podsource.SourceError{Location: "m/x.yaml", Err: countedError{n, &written}})
				}
				deliver(set)
			}
			<-ctx.Done()
			return nil
		}))
		synctest.Wait()
		first := r.mux.Errors()
		require.Len(t, first, manifests)
		written.Store(0)
		time.Sleep((sets - 1) * time.Minute)
		synctest.Wait()
		assert.Less(t, written.Load(), int64(10*sets*manifests))
		for _, e := range r.mux.Errors() {
			require.Equal(t, first[0].Since, e.Since)
		}
	})
}
