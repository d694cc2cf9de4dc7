//go:build !linux

package vec

func edge(n int) []float32 { return make([]float32, n) }
