package priority_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/internal/priority"
)

func Example() {
	q := priority.New(cmp.Less[int])
	five := q.Push(5)
	three := q.Push(3)
	q.Push(4)
	five.Value = 1
	q.Fix(five)
	q.Remove(three)
	q.Remove(three) // ignored
	fmt.Println("first:", q.First())
	for q.Len() > 0 {
		fmt.Println(q.Pop())
	}
	// Output:
	// first: 1
	// 1
	// 4
}

// A queue does what a sorted list does.
func TestQueue(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		q := priority.New(cmp.Less[int])
		var items []*priority.Item[int]
		sorted := func() (values []int) {
			for _, it := range items {
				values = append(values, it.Value)
			}
			slices.Sort(values)
			return values
		}
		for range 300 {
			switch op := rng.IntN(6); {
			case op < 3 || len(items) == 0:
				items = append(items, q.Push(rng.IntN(20)))
			case op == 3:
				it := items[rng.IntN(len(items))]
				it.Value = rng.IntN(20)
				q.Fix(it)
			case op == 4:
				i := rng.IntN(len(items))
				q.Remove(items[i])
				q.Remove(items[i])
				items = slices.Delete(items, i, i+1)
			default:
				// Of equal values any may be first, so all of them are removed.
				want := sorted()[0]
				require.Equal(t, want, q.First(), "seed %d", seed)
				require.Equal(t, want, q.Pop(), "seed %d", seed)
				items = slices.DeleteFunc(items, func(it *priority.Item[int]) bool { return it.Value == want })
				for slices.Contains(slices.Collect(q.All()), want) {
					require.Equal(t, want, q.Pop(), "seed %d", seed)
				}
			}
			require.Equal(t, len(items), q.Len(), "seed %d", seed)
			require.Equal(t, sorted(), slices.Sorted(q.All()), "seed %d", seed)
		}
		for range q.All() {
			break // an iteration can be left
		}
		var popped []int
		for q.Len() > 0 {
			popped = append(popped, q.Pop())
		}
		assert.Equal(t, sorted(), popped, "seed %d", seed)
	}
}
