package leaktest

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { Main(m) }

// A goroutine may take long to end on a busy machine, but not without end.
func TestAwait(t *testing.T) {
	leaked := errors.New("found unexpected goroutines")
	for name, tc := range map[string]struct {
		lasts time.Duration
		want  error
	}{
		"none is left":            {0, nil},
		"one ends late":           {50 * time.Second, nil},
		"one does not end at all": {time.Hour, leaked},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				require.ErrorIs(t, await(func() error {
					if time.Since(start) < tc.lasts {
						return leaked
					}
					return nil
				}), tc.want)
			})
		})
	}
}
