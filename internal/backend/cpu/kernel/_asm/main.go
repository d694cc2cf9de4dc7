// Command arm64asm generates the arm64 kernels of packages qmat and vec. Instructions that Go's assembler does not know
// are written as words with their text beside them; a test compares the two with llvm-mc.
package main

import (
	"flag"
	"log"
	"path/filepath"
)

func main() {
	out := flag.String("out", "..", "folder of the packages")
	flag.Parse()
	q := newFile("qmat")
	q.decoders()
	q.grids()
	q.micros()
	q.fusedKernels()
	q.quantize()
	err := q.write(filepath.Join(*out, "qmat/kernels_arm64.s"), filepath.Join(*out, "qmat/kernels_arm64.go"))
	if err != nil {
		log.Fatal(err)
	}
	v := &vecFile{file: newFile("vec")}
	v.elementwise()
	v.reductions()
	v.conversions()
	v.matrices()
	if err := v.write(filepath.Join(*out, "vec/vec_arm64.s"), filepath.Join(*out, "vec/stubs_arm64.go")); err != nil {
		log.Fatal(err)
	}
}
