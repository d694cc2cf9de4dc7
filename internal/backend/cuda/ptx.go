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
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The compiled kernels: NAME.ARCH.ptx.gz, made by kernel/build.
//
//go:embed kernel/ptx
var ptxFiles embed.FS

// source is the PTX of one file of kernels.
type source struct {
	name string
	arch string // sm_80, sm_90, sm_90a
	text []byte
}

var entryName = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)

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
		parts := strings.Split(strings.TrimPrefix(f, "kernel/ptx/"), ".")
		s := &source{name: parts[0], arch: parts[1], text: append(text, 0)}
		for _, m := range entryName.FindAllSubmatch(text, -1) {
			kernels[string(m[1])] = append(kernels[string(m[1])], s)
		}
	}
	return kernels, nil
})

// sourceOf returns the best PTX of a kernel for a device. Code for sm_90a runs on 9.0 only, other code also on all that
// came later.
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
