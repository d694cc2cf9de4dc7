package tokenizer

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// ID is a token id: an index into the vocabulary.
type ID = int32

// TokenKind says how a token may appear. The values are those of the GGUF key
// tokenizer.ggml.token_type.
type TokenKind uint8

const (
	Normal      TokenKind = 1 // produced by merging text
	Unknown     TokenKind = 2 // stands for what the vocabulary cannot express
	Control     TokenKind = 3 // structure (end of turn, image); text only on request
	UserDefined TokenKind = 4 // always cut out of text first, rendered literally
	Unused      TokenKind = 5 // padding of the vocabulary
	Byte        TokenKind = 6 // one raw byte, written <0xXX>
)

func (k TokenKind) String() string {
	switch k {
	case Normal:
		return "normal"
	case Unknown:
		return "unknown"
	case Control:
		return "control"
	case UserDefined:
		return "user-defined"
	case Unused:
		return "unused"
	case Byte:
		return "byte"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Role names a token with a fixed meaning. The text is the middle part of the
// GGUF key: tokenizer.ggml.<role>_token_id.
type Role string

const (
	RoleBOS       Role = "bos"
	RoleEOS       Role = "eos"
	RoleEOT       Role = "eot"
	RoleEOM       Role = "eom"
	RoleUnknown   Role = "unknown"
	RoleSeparator Role = "seperator" // spelled so in the format
	RolePadding   Role = "padding"
	RoleMask      Role = "mask"
	RoleFIMPre    Role = "fim_pre"
	RoleFIMSuf    Role = "fim_suf"
	RoleFIMMid    Role = "fim_mid"
	RoleFIMPad    Role = "fim_pad"
	RoleFIMRep    Role = "fim_rep"
	RoleFIMSep    Role = "fim_sep"
)

// Roles lists every role in a fixed order.
var Roles = []Role{
	RoleBOS, RoleEOS, RoleEOT, RoleEOM, RoleUnknown, RoleSeparator, RolePadding, RoleMask,
	RoleFIMPre, RoleFIMSuf, RoleFIMMid, RoleFIMPad, RoleFIMRep, RoleFIMSep,
}

// Config is a vocabulary in the form GGUF stores it.
type Config struct {
	Model    string      // "gpt2" (byte-level BPE), "gemma4" or "llama" (SentencePiece)
	Pre      string      // gpt2: splitter, see PreNames; "" is llama.cpp's default
	Tokens   []string    // index = id; each text at most once, empty texts allowed
	Types    []TokenKind // nil = all Normal; otherwise at least one per token
	Merges   []string    // gpt2 and gemma4: "left right" in rank order
	Scores   []float32   // llama: one per token; what has the highest is merged first
	Special  map[Role]ID // ids outside the vocabulary are ignored
	AddBOS   *bool       // nil = the splitter's default
	AddEOS   *bool       // nil = false
	AddSpace *bool       // llama: text begins with a space; nil = true
	Suppress []ID        // never to be sampled; ids outside the vocabulary are ignored
}

// Tokenizer converts between text and ids. See the package comment.
type Tokenizer struct {
	vocab
	model string
	pre   string
	// guessed: the file does not say how text is split.
	guessed bool
	split   splitter
	// wholeFirst: a piece that is a token is taken without merging (llama3).
	wholeFirst bool
	// addSpace: text at the beginning and after a special token gets a space in front.
	addSpace bool

	roles    map[Role]ID
	bos, eos ID // what AddSpecial adds; -1 = nothing
	eog      []ID
	eogSet   map[ID]struct{}
	suppress []ID
	specials trie

	// stable caches, two bits per token, whether merging the token's own bytes
	// gives the token back, so that a piece found in the vocabulary needs no merging.
	stable  []atomic.Uint32
	scratch sync.Pool
}

// New builds a tokenizer. Errors name the GGUF key that is at fault.
func New(c Config) (*Tokenizer, error) {
	t := &Tokenizer{model: strings.Clone(c.Model), pre: strings.Clone(c.Pre)} // the originals may alias a file
	var p preset
	switch c.Model {
	case "gpt2":
		if t.pre == "" {
			t.pre, t.guessed = "default", true
		}
		var ok bool
		if p, ok = presets[t.pre]; !ok {
			return nil, fmt.Errorf("tokenizer.ggml.pre: unknown pre-tokenizer %q (known: %s)", t.pre,
				strings.Join(PreNames(), ", "))
		}
	case "gemma4":
		t.pre, p = "gemma4", gemma4 // there is only one, whatever the file says
	case "llama":
		t.pre, p = "", sentencePiece // nothing is split, whatever the file says
		t.addSpace = c.AddSpace == nil || *c.AddSpace
	case "":
		return nil, fmt.Errorf("tokenizer.ggml.model: missing")
	case "t5":
		return nil, fmt.Errorf("tokenizer.ggml.model: %q, a unigram vocabulary, is not supported", c.Model)
	default:
		return nil, fmt.Errorf("tokenizer.ggml.model: %q is not supported (known: gpt2, gemma4, llama)", c.Model)
	}
	t.split, t.wholeFirst = p.split, p.wholeFirst

	kinds, err := tokenKinds(c)
	if err != nil {
		return nil, err
	}
	t.assignRoles(c, kinds)
	if err := t.vocab.build(c.Tokens, kinds, p.raw); err != nil {
		return nil, err
	}
	if p.scored {
		err = t.vocab.addScores(c.Scores)
	} else {
		err = t.vocab.addMerges(c.Merges)
	}
	if err != nil {
		return nil, err
	}
	t.addFlags(c, p)
	t.specials = t.buildSpecials()
	t.stable = make([]atomic.Uint32, (len(t.kinds)+15)/16)
	t.scratch.New = func() any { return new(scratch) }
	return t, nil
}

// tokenKinds checks the vocabulary's size and brings the types into range.
func tokenKinds(c Config) ([]TokenKind, error) {
	n := len(c.Tokens)
	if n == 0 {
		return nil, fmt.Errorf("tokenizer.ggml.tokens: no tokens")
	}
	if c.Types != nil && len(c.Types) < n {
		return nil, fmt.Errorf("tokenizer.ggml.token_type: %d entries for %d tokens", len(c.Types), n)
	}
	kinds := make([]TokenKind, n)
	for i := range kinds {
		kinds[i] = Normal
		if c.Types != nil {
			kinds[i] = c.Types[i]
			if kinds[i] < Normal || kinds[i] > Byte {
				kinds[i] = Unused
			}
		}
	}
	return kinds, nil
}

// addFlags decides what AddSpecial adds.
func (t *Tokenizer) addFlags(c Config, p preset) {
	addBOS := p.addBOS
	if c.AddBOS != nil {
		addBOS = *c.AddBOS
	}
	if p.raw && !p.scored { // upstream overrides a false flag: Gemma 4 derails without it
		addBOS = true
	}
	t.bos, t.eos = -1, -1
	if addBOS {
		t.bos = t.roleOr11(RoleBOS)
	}
	if c.AddEOS != nil && *c.AddEOS {
		t.eos = t.roleOr11(RoleEOS)
	}
	for _, id := range c.Suppress {
		if t.valid(id) && !slices.Contains(t.suppress, id) {
			t.suppress = append(t.suppress, id)
		}
	}
}

// roleOr11 is the id added for a role. Upstream defaults BOS and EOS of byte-level
// files to 11, an accident of GPT-2; it is kept for adding, so that ids agree, and
// nowhere else: as an end-of-generation token it would stop at the first comma.
func (t *Tokenizer) roleOr11(r Role) ID {
	if id, ok := t.roles[r]; ok {
		return id
	}
	if !t.raw && t.valid(11) {
		return 11
	}
	return -1
}

func (t *Tokenizer) valid(id ID) bool { return id >= 0 && int(id) < len(t.kinds) }

// Size is the number of tokens.
func (t *Tokenizer) Size() int { return len(t.kinds) }

// Model is the GGUF tokenizer model: "gpt2", "gemma4" or "llama".
func (t *Tokenizer) Model() string { return t.model }

// Pre is the name of the splitter, "" if nothing is split.
func (t *Tokenizer) Pre() string { return t.pre }

// Warning says what is wrong with the file, "" if nothing is.
func (t *Tokenizer) Warning() string {
	if !t.guessed {
		return ""
	}
	return "the file does not say how text is split (tokenizer.ggml.pre); it is split as llama.cpp does then, " +
		"which may be worse than what the model was trained with"
}

// Role returns the token the file names for a role.
func (t *Tokenizer) Role(r Role) (ID, bool) {
	id, ok := t.roles[r]
	if !ok {
		return -1, false
	}
	return id, true
}

// BOS is the beginning-of-sequence token; EOS, Mask and Unk likewise.
func (t *Tokenizer) BOS() (ID, bool)  { return t.Role(RoleBOS) }
func (t *Tokenizer) EOS() (ID, bool)  { return t.Role(RoleEOS) }
func (t *Tokenizer) Mask() (ID, bool) { return t.Role(RoleMask) }
func (t *Tokenizer) Unk() (ID, bool)  { return t.Role(RoleUnknown) }

// AddBOS reports whether AddSpecial puts a BOS token in front.
func (t *Tokenizer) AddBOS() bool { return t.bos >= 0 }

// AddEOS reports whether AddSpecial puts an EOS token at the end.
func (t *Tokenizer) AddEOS() bool { return t.eos >= 0 }

// IsEOG reports whether generation ends with this token.
func (t *Tokenizer) IsEOG(id ID) bool {
	_, ok := t.eogSet[id]
	return ok
}

// EOG returns the end-of-generation tokens in increasing order.
func (t *Tokenizer) EOG() []ID { return slices.Clone(t.eog) }

// Suppress returns the tokens the file asks never to sample.
func (t *Tokenizer) Suppress() []ID { return slices.Clone(t.suppress) }

// Kind returns how a token is used; Unused for ids outside the vocabulary.
func (t *Tokenizer) Kind(id ID) TokenKind {
	if !t.valid(id) {
		return Unused
	}
	k := t.kinds[id]
	if k == Control && bytes.Contains(t.piece(id), []byte("unused")) {
		return Unused
	}
	return k
}

// EncodeOptions steer Encode. The zero value encodes plain text: nothing added,
// control tokens in the text are spelled out rather than recognised.
type EncodeOptions struct {
	AddSpecial   bool // add BOS and EOS where the file asks for them
	ParseSpecial bool // recognise control tokens in the text
	// Continue: the text goes on where another one ended, so nothing puts a space in front of it.
	Continue bool
	// Done ends the work when it is closed; the result is incomplete then. nil never does.
	Done <-chan struct{}
}

// Encode returns the ids of text.
func (t *Tokenizer) Encode(text string, opt EncodeOptions) []ID {
	return t.AppendEncode(make([]ID, 0, len(text)/4+4), text, opt)
}

// AppendEncode appends the ids of text to dst, whose text it continues. A text that already
// starts with BOS (chat templates write it) gets no second one; the same holds for EOS.
func (t *Tokenizer) AppendEncode(dst []ID, text string, opt EncodeOptions) []ID {
	start := len(dst)
	if opt.AddSpecial && t.bos >= 0 {
		dst = append(dst, t.bos)
	}
	body := len(dst)
	sc := t.scratch.Get().(*scratch)
	sc.done, sc.inside = opt.Done, opt.Continue
	dst = t.appendParts(dst, text, opt.ParseSpecial, sc)
	sc.done = nil
	sc.shrink()
	t.scratch.Put(sc)
	if body > start && len(dst) > body && dst[body] == t.bos {
		dst = slices.Delete(dst, start, body)
	}
	if opt.AddSpecial && t.eos >= 0 && (len(dst) == start || dst[len(dst)-1] != t.eos) {
		dst = append(dst, t.eos)
	}
	return dst
}
