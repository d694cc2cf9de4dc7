package model

import (
	"slices"
	"testing"
)

// TestDonors: on the shape of Gemma 4 31B (60 layers, every sixth sees all tokens) three sliding layers and a full
// one read the keys of layers 58, 58, 58 and 59: the last of their kind, not those at some distance from the end.
func TestDonors(t *testing.T) {
	target := make([]bool, 60)
	for i := range target {
		target[i] = (i+1)%6 != 0
	}
	drafter := []bool{true, true, true, false}
	if got := donors(drafter, target); !slices.Equal(got, []int{58, 58, 58, 59}) {
		t.Errorf("donors %v", got)
	}
	if got := donors(drafter, []bool{true, false, true, true}); !slices.Equal(got, []int{3, 3, 3, 1}) {
		t.Errorf("donors %v", got)
	}
	if got := donors(drafter, []bool{true}); !slices.Equal(got, []int{0, 0, 0, -1}) {
		t.Errorf("donors %v", got)
	}
}
