package sample

import "testing"

func TestClamp(t *testing.T) {
	for _, c := range []struct{ n, limit, want int }{{1, 2, 1}, {3, 2, 2}} {
		if got, err := Clamp(c.n, c.limit); got != c.want || err != nil {
			t.Errorf("Clamp(%d, %d) = %d, %v", c.n, c.limit, got, err)
		}
	}
	if _, err := Clamp(-1, 2); err == nil {
		t.Error("a negative number is accepted")
	}
}
