//go:build !nogpu && ((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
)

// The compiled kernels: NAME.ARCH.ptx.gz, made by kernel/build.
//
//go:embed kernel/ptx
var ptxFiles embed.FS

// source is the PTX of one kernel and of what its file has beside kernels. The driver compiles all it is given, and a
// model needs few of a file's kernels.
type source struct {
	arch          string // sm_80, sm_90, sm_90a
	kernel, other []byte
}

// text is what the driver reads.
func (s *source) text() []byte { return slices.Concat(s.other, s.kernel, []byte{0}) }

// sources unpacks the embedded PTX and says which kernel is where.
var sources = sync.OnceValues(func() (map[string][]*source, error) {
	kernels := map[string][]*source{}
	files, err := fs.Glob(ptxFiles, "kernel/ptx/*.ptx.gz")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		b, err := ptxFiles.ReadFile(f)
		if err != nil {
			return nil, err
		}
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		text, err := io.ReadAll(z)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		arch := strings.Split(f, ".")[1]
		found, other := split(text)
		for name, kernel := range found {
			kernels[name] = append(kernels[name], &source{arch, kernel, other})
		}
	}
	return kernels, nil
})

// split takes the kernels out of a file of PTX.
func split(text []byte) (kernels map[string][]byte, other []byte) {
	const begin, end = "\n.visible .entry ", "\n}\n"
	kernels = map[string][]byte{}
	for {
		from := bytes.Index(text, []byte(begin))
		if from < 0 {
			return kernels, append(other, text...)
		}
		other = append(other, text[:from]...)
		text = text[from:]
		n := bytes.Index(text, []byte(end)) + len(end)
		name, _, _ := bytes.Cut(text[len(begin):n], []byte("("))
		kernels[string(name)] = text[:n]
		text = text[n-1:]
	}
}

// sourceOf returns the best PTX of a kernel for a device. Code for sm_90a runs on 9.0 only, other code also on all
// later devices.
func sourceOf(kernel string, major, minor int) (*source, error) {
	kernels, err := sources()
	if err != nil {
		return nil, err
	}
	var best *source
	for _, s := range kernels[kernel] {
		fits := s.arch == "sm_80" || s.arch == "sm_90" && major >= 9 || s.arch == "sm_90a" && major == 9 && minor == 0
		if fits && (best == nil || s.arch > best.arch) {
			best = s
		}
	}
	if best == nil {
		return nil, fmt.Errorf("no kernel %q for compute capability %d.%d", kernel, major, minor)
	}
	return best, nil
}

// KernelNames lists the embedded kernels.
func KernelNames() []string {
	kernels, err := sources()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(kernels))
}
