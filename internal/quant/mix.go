package quant

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Mix is a named recipe that says which tensor of a model gets which type, such
// as "Q4_K_M": mostly Q4_K, with more bits where they matter. Get one from
// [ParseMix]. The zero Mix is F32.
type Mix struct {
	kind      *kind
	overrides map[string]Type // by name of a tensor
}

// kind is one row of the table of mixes.
type kind struct {
	name     string
	fileType uint32 // general.file_type, numbered by llama.cpp's llama_ftype
	base     Type   // what most tensors get
	note     string
}

var kinds = []kind{
	{"F32", 0, F32, "32-bit floats, no loss"},
	{"F16", 1, F16, "16-bit floats"},
	{"BF16", 32, BF16, "16-bit floats with the range of F32"},
	{"Q8_0", 7, Q8_0, "8.5 bits, practically lossless"},
	{"Q6_K", 18, Q6_K, "6.6 bits, very close to the original"},
	{"Q5_K_M", 17, Q5_K, "5.7 bits, sensitive tensors in Q6_K"},
	{"Q5_K_S", 16, Q5_K, "5.5 bits"},
	{"Q5_1", 9, Q5_1, "6.0 bits, older format"},
	{"Q5_0", 8, Q5_0, "5.5 bits, older format"},
	{"Q4_K_M", 15, Q4_K, "4.8 bits, sensitive tensors in Q6_K; a good default"},
	{"Q4_K_S", 14, Q4_K, "4.6 bits"},
	{"Q4_1", 3, Q4_1, "5.0 bits, older format"},
	{"Q4_0", 2, Q4_0, "4.5 bits, older format"},
	{"IQ4_NL", 25, IQ4_NL, "4.5 bits, non-linear code book"},
	{"IQ4_XS", 30, IQ4_XS, "4.3 bits, non-linear code book"},
	{"MXFP4_MOE", 38, MXFP4, "4.3 bits for experts, the rest in Q8_0; what gpt-oss was trained in"},
	{"Q3_K_L", 13, Q3_K, "4.3 bits, sensitive tensors in Q5_K"},
	{"Q3_K_M", 12, Q3_K, "3.9 bits, sensitive tensors in Q4_K and Q5_K"},
	{"Q3_K_S", 11, Q3_K, "3.5 bits, noticeably worse"},
	{"Q2_K", 10, Q2_K, "3.0 bits, sensitive tensors in Q3_K and Q4_K; for models that fit no other way"},
}

// aliases are the short names people type for the medium-sized K mixes.
var aliases = map[string]string{"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

// Mixes lists the names ParseMix accepts, largest files first.
func Mixes() []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	return names
}

// ParseMix finds a mix by name. Case does not matter; "Q3_K", "Q4_K" and "Q5_K"
// mean their _M forms.
func ParseMix(name string) (Mix, error) {
	want := strings.ToUpper(strings.TrimSpace(name))
	if a, ok := aliases[want]; ok {
		want = a
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == want })
	if i < 0 {
		return Mix{}, fmt.Errorf("unknown quantisation %q; known are %s", name, strings.Join(Mixes(), ", "))
	}
	return Mix{kind: &kinds[i]}, nil
}

func (m Mix) get() *kind {
	if m.kind == nil {
		return &kinds[0]
	}
	return m.kind
}

// Name is the canonical name, for example "Q4_K_M".
func (m Mix) Name() string { return m.get().name }

// FileType is the value for the key general.file_type.
func (m Mix) FileType() uint32 { return m.get().fileType }

// Base is the type most matrices get.
func (m Mix) Base() Type { return m.get().base }

// Note describes the mix in a few words, for help texts. Bits are per weight in
// a typical model.
func (m Mix) Note() string { return m.get().note }

// With returns a copy of m that gives the named tensor the type t, whatever the mix would choose, and also where the
// mix would leave it alone.
func (m Mix) With(tensor string, t Type) Mix {
	m.overrides = maps.Clone(m.overrides)
	if m.overrides == nil {
		m.overrides = map[string]Type{}
	}
	m.overrides[tensor] = t
	return m
}

// FileTypeName is the name of a general.file_type value, including those no mix
// here produces, or "" for an unknown one.
func FileTypeName(ft uint32) string {
	for _, k := range kinds {
		if k.fileType == ft {
			return k.name
		}
	}
	return foreignFileTypes[ft]
}

var foreignFileTypes = map[uint32]string{
	19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
	23: "IQ3_XXS", 24: "IQ1_S", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 31: "IQ1_M", 36: "TQ1_0",
	37: "TQ2_0", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0", 1024: "guessed",
}
