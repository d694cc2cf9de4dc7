// Command once computes one product of quantised weights, so that its instructions can be recorded.
package main

import (
	"fmt"
	"os"
	"strconv"

	"strobe/internal/backend/cpu/kernel/qmat"
	"strobe/internal/quant"
)

func main() {
	typ, err := quant.ParseType(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	number := func(i int) int {
		n, err := strconv.Atoi(os.Args[i])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		return n
	}
	rows, k, n := number(2), number(3), number(4)
	m := qmat.Matrix{Type: typ, Rows: rows, K: k, Data: make([]byte, rows*typ.RowBytes(k))}
	var q qmat.Rows
	var x qmat.Acts
	q.Reset(n, k)
	q.Quantize(make([]float32, n*k), k, 0, n)
	x.Reset(n, k)
	x.Pack(&q, nil, 0, x.Blocks())
	y, s := make([]float32, n*rows), qmat.NewScratch()
	if len(os.Args) > 5 {
		m.Woven = make([]byte, m.WovenBytes())
	}
	m.Mul(y, rows, &x, 0, rows, rows, s)
}
