package sample_test

import (
	"testing"

	"example.com/sample"
)

func Test(t *testing.T) {
	if n := sample.Size; int(n) < 0 {
		t.Fatal(n)
	}
}
