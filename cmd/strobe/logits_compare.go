package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"

	"strobe/internal/safetensors"
)

// Verdicts on outputs: up to sameError they are the same but for the order of float32 sums; up to closeError, and
// closeKL nats between the distributions, they are what another type of weights or of the cache makes of a model.
const (
	sameError  = 1e-4
	closeError = 0.2
	closeKL    = 0.1
)

// referenceTokens are the token ids a reference says its outputs belong to, nil if it does not.
func referenceTokens(path string, f *safetensors.File) ([]int32, error) {
	for _, name := range []string{"tokens", "input_ids"} {
		x := f.Tensor(name)
		if x == nil {
			continue
		}
		size := map[string]int{"I32": 4, "I64": 8}[x.DType]
		if size == 0 {
			return nil, fmt.Errorf("%s: %s are %s, want I32 or I64", path, name, x.DType)
		}
		var ids []int32
		for i := range x.Elems() {
			ids = append(ids, int32(binary.LittleEndian.Uint32(x.Data[size*i:])))
		}
		return ids, nil
	}
	return nil, nil
}

// compareLogits says how far computed outputs are from those of a reference, and what that means. It is an error if
// they are those of different models.
func compareLogits(w io.Writer, path string, ref *safetensors.File, tensors []safetensors.Tensor) error {
	floats := func(x *safetensors.Tensor, of *safetensors.Tensor) ([]float32, error) {
		if !slices.Equal(x.Shape, of.Shape) {
			return nil, fmt.Errorf("%s: %s have shape %v, computed were %v", path, x.Name, x.Shape, of.Shape)
		}
		return x.Float32s()
	}
	var distance float64
	var d distributions
	for i := range tensors {
		t := &tensors[i]
		x := ref.Tensor(t.Name)
		if x == nil {
			if t.Name == "logits" {
				return fmt.Errorf("%s: no tensor \"logits\"", path)
			}
			continue
		}
		want, err := floats(x, t)
		if err != nil {
			return err
		}
		got, err := t.Float32s()
		if err != nil {
			return err
		}
		if t.Name == "logits" {
			distance, d = relative(got, want), distribute(got, want, t.Shape[1])
			fmt.Fprintf(w, "logits     differ by %.2e of their size\n", distance)
			fmt.Fprintf(w, "choice     the same token at %d of %d positions\n", d.same, d.rows)
			fmt.Fprintf(w, "chances    differ by %.2e nats on average, %.2e at position %d\n", d.mean, d.worst, d.at)
			continue
		}
		n := len(want) / t.Shape[0]
		for l := range t.Shape[0] {
			e := relative(got[l*n:][:n], want[l*n:][:n])
			if !(e <= sameError) {
				fmt.Fprintf(w, "hidden     states differ first at layer %d, by %.2e\n", l, e)
				break
			}
			if l == t.Shape[0]-1 {
				fmt.Fprintf(w, "hidden     states are the same at all layers\n")
			}
		}
	}
	return verdict(w, path, distance, d)
}

// verdict says what a distance between outputs means. It is an error if they are those of different models.
func verdict(w io.Writer, path string, distance float64, d distributions) error {
	switch {
	case distance <= sameError:
		fmt.Fprintln(w, "verdict    the same computation, up to rounding")
	case distance <= closeError && d.mean <= closeKL:
		fmt.Fprintln(w, "verdict    the same model with other types of weights or arithmetic")
	default:
		fmt.Fprintln(w, "verdict    different")
		return fmt.Errorf("%s: the outputs are different", path)
	}
	return nil
}

// relative is the distance of got from want, relative to want. It is not a number if either has one that is none.
func relative(got, want []float32) float64 {
	var diff, norm float64
	for i, v := range want {
		d := float64(got[i]) - float64(v)
		diff += d * d
		norm += float64(v) * float64(v)
	}
	if diff == 0 {
		return 0
	}
	return math.Sqrt(diff / norm)
}

// distributions compares what rows of logits make of the next token.
type distributions struct {
	rows, same  int     // rows that agree on the best token
	mean, worst float64 // divergence of the computed distribution from the reference's
	at          int     // where it is largest
}

func distribute(got, want []float32, vocab int) (d distributions) {
	for d.rows*vocab < len(want) {
		g, w := got[d.rows*vocab:][:vocab], want[d.rows*vocab:][:vocab]
		gs, gTop := logSum(g)
		ws, wTop := logSum(w)
		kl := 0.0
		for i := range w {
			p := float64(w[i]) - ws
			kl += math.Exp(p) * (p - (float64(g[i]) - gs))
		}
		if gTop == wTop {
			d.same++
		}
		if !(kl <= d.worst) {
			d.worst, d.at = kl, d.rows
		}
		d.mean += kl
		d.rows++
	}
	d.mean /= float64(max(1, d.rows))
	return d
}

// logSum is the logarithm of the sum of exponentials, and where the largest value is.
func logSum(v []float32) (sum float64, top int) {
	for i, x := range v {
		if x > v[top] {
			top = i
		}
	}
	for _, x := range v {
		sum += math.Exp(float64(x) - float64(v[top]))
	}
	return math.Log(sum) + float64(v[top]), top
}
