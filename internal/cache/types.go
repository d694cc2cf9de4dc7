package cache

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"strobe/internal/quant"
)

// Types are the types in which a model keeps keys and values. The zero value is F16 for all.
type Types struct {
	chosen     bool
	key, value quant.Type
	layers     map[int][2]quant.Type
}

// Uniform is one type for everything.
func Uniform(t quant.Type) Types { return Types{chosen: true, key: t, value: t} }

// ParseTypes reads a type for keys and values, others for one of the two, and exceptions for single layers, such as
// "0=f16,4-7=q8_0/turbo4" (keys and values). An empty text leaves things as they are.
func ParseTypes(both, key, value, layers string) (Types, error) {
	t := Uniform(quant.F16)
	read := func(s string, to ...*quant.Type) error {
		if s == "" {
			return nil
		}
		v, err := quant.ParseCacheType(s)
		for _, p := range to {
			*p = v
		}
		return err
	}
	for _, err := range []error{read(both, &t.key, &t.value), read(key, &t.key), read(value, &t.value)} {
		if err != nil {
			return t, err
		}
	}
	for part := range strings.SplitSeq(layers, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		which, types, ok := strings.Cut(part, "=")
		from, to, span := strings.Cut(which, "-")
		if !span {
			to = from
		}
		a, err1 := strconv.ParseUint(from, 10, 12)
		b, err2 := strconv.ParseUint(to, 10, 12)
		if !ok || err1 != nil || err2 != nil || a > b {
			return t, fmt.Errorf("cache types of layers %q: want such as 0=f16 or 4-7=q8_0/turbo4", part)
		}
		var kv [2]quant.Type
		k, v, two := strings.Cut(types, "/")
		if !two {
			v = k
		}
		for i, s := range []string{k, v} {
			if kv[i], err1 = quant.ParseCacheType(s); err1 != nil {
				return t, err1
			}
		}
		if t.layers == nil {
			t.layers = map[int][2]quant.Type{}
		}
		for l := a; l <= b; l++ {
			t.layers[int(l)] = kv
		}
	}
	return t, nil
}

// Check says what is wrong with exceptions for layers that a model of so many does not have.
func (t Types) Check(layers int) error {
	last := 0
	for l := range t.layers {
		last = max(last, l)
	}
	if last >= layers {
		return fmt.Errorf("cache types of layer %d: the model has layers 0 to %d", last, layers-1)
	}
	return nil
}

// Of returns the types of a layer, counted as the model counts.
func (t Types) Of(layer int) (key, value quant.Type) {
	if kv, ok := t.layers[layer]; ok {
		return kv[0], kv[1]
	}
	if !t.chosen {
		return quant.F16, quant.F16
	}
	return t.key, t.value
}

// Types names the types that the layers keep keys and values in, as "q8_0/turbo3", most common first.
func (m *Memory) Types() []string {
	var names []string
	count := map[string]int{}
	for _, l := range m.spec.Layers {
		s := strings.ToLower(l.Key.String())
		if l.Key != l.Value {
			s += "/" + strings.ToLower(l.Value.String())
		}
		if count[s]++; count[s] == 1 {
			names = append(names, s)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return count[b] - count[a] })
	return names
}
