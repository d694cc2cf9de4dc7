package grammar

import (
	"fmt"
	"math/big"
	"math/rand"
	"regexp"
	"strings"
	"testing"
)

var (
	integerText = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,15})$`)
	decimalText = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?$`)
)

// TestNumberRanges compares what a range accepts with the numbers themselves.
func TestNumberRanges(t *testing.T) {
	limits := []string{"", "", "0", "-1", "1", "7", "10", "99", "-100", "105", "1234567", "0.5", "-0.25", "99.99", "-99.9",
		"1.25", "0.0000000000000001", "1.00000000000000005", "-1.00000000000000005", "9999999999999999", "-1e17", "1e-20"}
	r := rand.New(rand.NewSource(5))
	v := testVocab()
	accepted := 0
	for range 400 {
		lo, hi := limits[r.Intn(len(limits))], limits[r.Intn(len(limits))]
		if lo == "" && hi == "" {
			continue
		}
		kind, text := "integer", integerText
		if r.Intn(2) == 0 {
			kind, text = "number", decimalText
		}
		schema := `{"type":"` + kind + `"`
		loKey, hiKey := []string{"minimum", "exclusiveMinimum"}[r.Intn(2)], []string{"maximum", "exclusiveMaximum"}[r.Intn(2)]
		candidates := []string{"0", "-0", "-0.0", "00", "1e1", "10000000000000000", "9999999999999999.9999999999999999"}
		for key, limit := range map[string]string{loKey: lo, hiKey: hi} {
			if limit == "" {
				continue
			}
			schema += fmt.Sprintf(",%q:%s", key, limit)
			x, _ := new(big.Rat).SetString(limit)
			for _, step := range []string{"0", "1", "-1", "0.1", "-0.01", "1e-16", "-1e-16", "1e-17", "10", "-13.5"} {
				d, _ := new(big.Rat).SetString(step)
				near := d.Add(d, x)
				for _, places := range []int{0, 1, 2, 15, 16, 17} {
					candidates = append(candidates, near.FloatString(places))
				}
			}
		}
		g, err := Compile([]byte(schema + "}"))
		if err != nil && !strings.Contains(err.Error(), "allows nothing") {
			t.Fatalf("%s: %v", schema, err)
		}
		for _, c := range candidates {
			x, _ := new(big.Rat).SetString(c)
			want := text.MatchString(c) && !(strings.HasPrefix(c, "-") && x.Sign() == 0)
			if lo != "" {
				limit, _ := new(big.Rat).SetString(lo)
				want = want && (x.Cmp(limit) > 0 || x.Cmp(limit) == 0 && loKey == "minimum")
			}
			if hi != "" {
				limit, _ := new(big.Rat).SetString(hi)
				want = want && (x.Cmp(limit) < 0 || x.Cmp(limit) == 0 && hiKey == "maximum")
			}
			if got := err == nil && accepts(t, g, v, c); got != want {
				t.Errorf("%s}: %q is accepted: %t, want %t", schema, c, got, want)
			}
			if want {
				accepted++
			}
		}
	}
	if accepted < 1000 {
		t.Errorf("only %d of the numbers tried are in range", accepted)
	}
}
