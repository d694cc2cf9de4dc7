package convert

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"strobe/internal/gguf"
	"strobe/internal/quant"
)

// QuantizeOptions choose how a GGUF file is quantised.
type QuantizeOptions struct {
	// Type is a name quant.ParseMix knows.
	Type string
	// Overrides force types on tensors by name; the first match wins.
	Overrides []TypeOverride
	// AllowRequantize permits converting tensors that are already quantised,
	// which loses more than quantising the original would.
	AllowRequantize bool
	// SplitBytes, Plan and Progress are as in Options.
	SplitBytes int64
	Plan       func(Plan)
	Progress   func(n int64)
}

// TypeOverride gives tensors whose name the pattern matches anywhere a type.
type TypeOverride struct {
	Pattern *regexp.Regexp
	Type    quant.Type
}

// ParseTypeOverride reads "NAME_REGEX=TYPE", for example "attn_v=q8_0".
func ParseTypeOverride(s string) (TypeOverride, error) {
	i := strings.LastIndexByte(s, '=')
	if i <= 0 {
		return TypeOverride{}, fmt.Errorf("%q: want NAME_REGEX=TYPE", s)
	}
	re, err := regexp.Compile(s[:i])
	if err != nil {
		return TypeOverride{}, fmt.Errorf("%q: %v", s, err)
	}
	t, err := quant.ParseType(s[i+1:])
	if err != nil {
		return TypeOverride{}, fmt.Errorf("%q: %v", s, err)
	}
	return TypeOverride{re, t}, nil
}

// Quantize writes the GGUF file in with other tensor types to out. Everything
// but the types is kept; the result has the structure llama.cpp's quantiser
// gives it.
func Quantize(ctx context.Context, in, out string, opt QuantizeOptions) error {
	mix, err := quant.ParseMix(opt.Type)
	if err != nil {
		return err
	}
	f, err := gguf.Open(in)
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Arch() == "" {
		return fieldErr(in, "key general.architecture", "is missing")
	}
	tensors := slices.Clone(f.Tensors())
	if len(tensors) == 0 {
		return fmt.Errorf("%s: holds no tensors", in)
	}
	quant.SortTensors(tensors, func(t *gguf.Tensor) string { return t.Name })
	types, err := planTypes(mix, f.Arch(), in, tensors, opt)
	if err != nil {
		return err
	}
	kvs, err := f.KVs()
	if err != nil {
		return err
	}
	specs := make([]gguf.TensorSpec, len(tensors))
	plan := Plan{Arch: f.Arch(), Type: mix.Name(), Tensors: len(tensors)}
	for i, t := range tensors {
		specs[i] = gguf.TensorSpec{Name: t.Name, Type: types[i], Shape: trimShape(t.Shape)}
		plan.Bytes += tensorBytes(specs[i])
	}
	w, err := gguf.Create(out, quantisedKeys(kvs, mix), specs,
		gguf.WriteOptions{SplitBytes: opt.SplitBytes, Keep: f.Paths()})
	if err != nil {
		return err
	}
	if opt.Plan != nil {
		opt.Plan(plan)
	}
	for i, t := range tensors {
		if err := requantize(ctx, w, in, t, types[i], opt.Progress); err != nil {
			w.Abort()
			return err
		}
	}
	return w.Close()
}

// planTypes chooses the type of each tensor and refuses what would lose too
// much.
func planTypes(mix quant.Mix, arch, path string, tensors []*gguf.Tensor, opt QuantizeOptions) ([]quant.Type, error) {
	infos := make([]quant.TensorInfo, len(tensors))
	for i, t := range tensors {
		infos[i] = quant.TensorInfo{Name: t.Name, Shape: t.Shape, Type: t.Type}
		for _, o := range opt.Overrides {
			if o.Pattern.MatchString(t.Name) && len(trimShape(t.Shape)) > 1 {
				mix = mix.With(t.Name, o.Type)
				break
			}
		}
	}
	types, err := mix.Plan(arch, infos)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, t := range tensors {
		if types[i] == t.Type {
			continue
		}
		if t.Type.Quantized() && !opt.AllowRequantize {
			return nil, fieldErr(path, "tensor "+t.Name,
				"is already %v; quantising it again loses quality, start from an f16 or bf16 file or allow it with "+
					"--allow-requantize", t.Type)
		}
	}
	return types, nil
}

// quantisedKeys is the metadata of a quantised file: the old keys, with the two
// that describe the types at the end and those of a split file gone.
func quantisedKeys(kvs []gguf.KV, mix quant.Mix) []gguf.KV {
	out := slices.DeleteFunc(slices.Clone(kvs), func(kv gguf.KV) bool {
		switch kv.Key {
		case "general.quantization_version", "general.file_type", "split.no", "split.count", "split.tensors.count":
			return true
		}
		return false
	})
	return append(out,
		gguf.KV{Key: "general.quantization_version", Value: uint32(quantVersion)},
		gguf.KV{Key: "general.file_type", Value: mix.FileType()})
}

// trimShape drops trailing axes of length 1, which quantised files do not keep.
func trimShape(shape []int) []int {
	n := len(shape)
	for n > 1 && shape[n-1] == 1 {
		n--
	}
	return shape[:n]
}

func requantize(ctx context.Context, w *gguf.Writer, path string, t *gguf.Tensor, typ quant.Type,
	progress func(int64)) error {
	width, rows := t.Shape[0], t.Rows()
	if typ == t.Type {
		size := typ.RowBytes(width)
		enc := func() RowEncoder {
			return func(dst []byte, from, to int) error {
				copy(dst, t.Data[from*size:to*size])
				return nil
			}
		}
		return WriteRows(ctx, w, t.Name, rows, size, enc, progress)
	}
	if !t.Type.Dequantizable() {
		return fieldErr(path, "tensor "+t.Name, "cannot be converted from %v", t.Type)
	}
	src, dst := t.Type.RowBytes(width), typ.RowBytes(width)
	enc := func() RowEncoder {
		row := make([]float32, width)
		return func(out []byte, from, to int) error {
			for r := from; r < to; r++ {
				err := quant.Dequantize(t.Type, row, t.Data[r*src:(r+1)*src])
				if err == nil {
					err = quant.Quantize(typ, out[(r-from)*dst:(r-from+1)*dst], row)
				}
				if err != nil {
					return fieldErr(path, "tensor "+t.Name, "row %d: %v", r, err)
				}
			}
			return nil
		}
	}
	return WriteRows(ctx, w, t.Name, rows, dst, enc, progress)
}
