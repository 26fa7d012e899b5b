package topology_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sublet-dev/agent/topology"
)

func set(t testing.TB, text string) topology.Set {
	t.Helper()
	s, err := topology.ParseSet(text)
	require.NoError(t, err)
	return s
}

func TestParseSet(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, " \n": nil, "0": {0}, "3,1,1": {1, 3}, "0-3,8\n": {0, 1, 2, 3, 8}, "2-2": {2}, "0-2,1-4": {0, 1, 2, 3, 4}, "8191": {8191}, "1, 2": {1, 2},
	} {
		require.Equal(t, want, set(t, text).IDs(), text)
	}
	for _, text := range []string{"a", "-1", "1-", "3-1", "8192", "0-8192", "1,,2", "0x1", "1-2-3", "99999999999999999999"} {
		_, err := topology.ParseSet(text)
		require.ErrorContains(t, err, "invalid list", text)
	}
}

func TestNewSet_CopiesItsArguments(t *testing.T) {
	ids := []int{3, 1, 3}
	require.Equal(t, "1,3", topology.NewSet(ids...).String())
	require.Equal(t, []int{3, 1, 3}, ids)
}

func TestSet_String(t *testing.T) {
	for ids, want := range map[*[]int]string{
		{}: "", {5}: "5", {1, 0}: "0-1", {0, 1, 2, 4, 6, 7}: "0-2,4,6-7",
	} {
		require.Equal(t, want, topology.NewSet(*ids...).String())
	}
}

func TestSet_JSON(t *testing.T) {
	text, err := json.Marshal(map[string]topology.Set{"a": topology.NewSet(0, 1, 2, 5)})
	require.NoError(t, err)
	require.JSONEq(t, `{"a":"0-2,5"}`, string(text))
	var back map[string]topology.Set
	require.NoError(t, json.Unmarshal(text, &back))
	require.True(t, back["a"].Equal(topology.NewSet(0, 1, 2, 5)))
	require.ErrorContains(t, json.Unmarshal([]byte(`{"a":"0-"}`), &back), "invalid list")
}

func TestSet_Operations(t *testing.T) {
	a, b := set(t, "0-3"), set(t, "2-5")
	require.Equal(t, "0-5", a.Union(b).String())
	require.Equal(t, "2-3", a.Intersect(b).String())
	require.True(t, a.Intersects(b))
	require.False(t, a.Intersects(a.Minus(a)))
	require.False(t, a.Minus(b).Intersects(b))
	require.Equal(t, "0-1", a.Minus(b).String())
	require.False(t, a.IsSubset(b))
	require.True(t, a.Intersect(b).IsSubset(b))
	require.True(t, topology.Set{}.IsSubset(b))
	require.True(t, a.Contains(3))
	require.False(t, a.Contains(4))
	require.False(t, a.Equal(b))
	require.Equal(t, 4, a.Len())
	ids := a.IDs()
	ids[0] = 9
	require.Equal(t, "0-3", a.String(), "the caller owns the numbers")
}

// What is parsed is written back in the same meaning.
func FuzzParseSet(f *testing.F) {
	for _, text := range []string{"0-3,8", "", "1,,2", "8191", "0-8191,0-8191,0-8191"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := topology.ParseSet(text)
		if err != nil {
			return
		}
		require.True(t, set(t, s.String()).Equal(s))
		require.LessOrEqual(t, s.Len(), 8192)
	})
}
