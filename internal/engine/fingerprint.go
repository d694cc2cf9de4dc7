package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"strobe/internal/gguf"
)

// Fingerprint identifies everything that decides what the numbers in a stored prefix mean: both
// model files, the shape and type of the caches, and the kernels that computed them. Prefixes
// are only ever restored where it is the same.
func (m *Model) Fingerprint() string {
	h := sha256.New()
	// The number of threads does not matter.
	device, _, _ := strings.Cut(m.deviceName(), ",")
	fmt.Fprintf(h, "strobe prefix %d\n%s\n%x\n", prefixVersion, device, m.Target.Memory().Fingerprint())
	io.WriteString(h, describe(m.Runner))
	fmt.Fprintf(h, "lossy %s\n", m.lossy)
	for _, f := range m.files {
		if m.Vision == nil || f != m.Vision.file { // the tokens of images say which encoder made them
			hashFile(h, f)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// hashFile adds a model file: its size, metadata and tensor directory, and some bytes of every
// tensor, because fine-tuned models share everything else.
func hashFile(h io.Writer, f *gguf.File) {
	fmt.Fprintf(h, "file %d\n", f.Size())
	for _, k := range f.Keys() {
		v, _, err := f.Value(k)
		fmt.Fprintln(h, k, v, err)
	}
	const n = 64
	for _, t := range f.Tensors() {
		fmt.Fprintln(h, t.Name, t.Type, t.Shape)
		for part := range 5 {
			at := max(0, len(t.Data)-n) / 4 * part
			h.Write(t.Data[at:min(at+n, len(t.Data))])
		}
	}
}
