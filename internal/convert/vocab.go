package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Token types as stored in tokenizer.ggml.token_type.
const (
	tokenNormal      int32 = 1
	tokenUnknown     int32 = 2
	tokenControl     int32 = 3
	tokenUserDefined int32 = 4
	tokenUnused      int32 = 5
	tokenByte        int32 = 6
)

// hfTokenizer is what conversion needs of a checkpoint's tokenizer files.
type hfTokenizer struct {
	dir    string
	path   string // of the file the vocabulary came from
	fast   bool   // from tokenizer.json
	vocab  map[string]int
	added  []addedToken
	merges []string
	pre    json.RawMessage
	post   json.RawMessage
	// spaced marks a vocabulary with byte fallback and visible spaces, as
	// SentencePiece models have it, instead of a byte-level one.
	spaced bool
	// Of such a vocabulary: the text of the token for what has none, and whether texts begin with a space.
	unknown string
	prefix  bool
	cfg     config // tokenizer_config.json; empty when missing
	note    string // something about it that the user may want to know
}

type addedToken struct {
	ID      int    `json:"id"`
	Content string `json:"content"`
	Special bool   `json:"special"`
}

// readTokenizer reads tokenizer.json, or vocab.json with merges.txt where only
// those exist.
func readTokenizer(dir string) (*hfTokenizer, error) {
	t := &hfTokenizer{dir: dir}
	var err error
	if t.cfg, _, err = readJSON(filepath.Join(dir, "tokenizer_config.json")); err != nil {
		return nil, err
	}
	t.path = filepath.Join(dir, "tokenizer.json")
	data, err := readFile(t.path)
	switch {
	case err == nil:
		err = t.parseFast(data)
	case os.IsNotExist(err):
		err = t.readSlow()
	}
	if err != nil {
		return nil, err
	}
	if err := t.overlayAdded(); err != nil {
		return nil, err
	}
	if len(t.vocab) == 0 {
		return nil, fieldErr(t.path, "model.vocab", "is missing or empty")
	}
	return t, nil
}

func (t *hfTokenizer) parseFast(data []byte) error {
	var f struct {
		Added        []addedToken    `json:"added_tokens"`
		Normalizer   json.RawMessage `json:"normalizer"`
		PreTokenizer json.RawMessage `json:"pre_tokenizer"`
		Post         json.RawMessage `json:"post_processor"`
		Decoder      struct {
			Type string `json:"type"`
		} `json:"decoder"`
		Model struct {
			Type         string          `json:"type"`
			Vocab        json.RawMessage `json:"vocab"`
			Merges       json.RawMessage `json:"merges"`
			ByteFallback bool            `json:"byte_fallback"`
			Unknown      string          `json:"unk_token"`
		} `json:"model"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return fieldErr(t.path, "", "not valid: %v", shortJSON(err))
	}
	if f.Model.Type != "BPE" && f.Model.Type != "" {
		return fieldErr(t.path, "model.type", "is %s, only BPE is supported", f.Model.Type)
	}
	if err := json.Unmarshal(f.Model.Vocab, &t.vocab); err != nil {
		return fieldErr(t.path, "model.vocab", "not a map from text to id: %v", shortJSON(err))
	}
	t.fast, t.added, t.pre, t.post = true, f.Added, f.PreTokenizer, f.Post
	t.spaced = f.Model.ByteFallback && f.Decoder.Type == "Sequence"
	t.unknown, t.prefix = f.Model.Unknown, prepends(f.Normalizer) || prepends(f.PreTokenizer)
	return t.parseMerges(f.Model.Merges)
}

// prepends reports whether a step of a tokenizer puts a space in front of texts.
func prepends(raw json.RawMessage) bool {
	var s struct {
		Type    string            `json:"type"`
		Scheme  *string           `json:"prepend_scheme"`
		Prefix  *bool             `json:"add_prefix_space"`
		Normal  []json.RawMessage `json:"normalizers"`
		Splits  []json.RawMessage `json:"pretokenizers"`
		Prepend string            `json:"prepend"`
	}
	if json.Unmarshal(raw, &s) != nil {
		return false
	}
	switch {
	case s.Type == "Prepend":
		return s.Prepend == "\u2581"
	case s.Type == "Metaspace" && s.Scheme != nil:
		return *s.Scheme != "never"
	case s.Type == "Metaspace":
		return s.Prefix == nil || *s.Prefix
	}
	return slices.ContainsFunc(append(s.Normal, s.Splits...), prepends)
}

// parseMerges accepts both spellings: "a b" and ["a", "b"]. The file format has
// only the first; a space inside a part is written as U+0120 there.
func (t *hfTokenizer) parseMerges(raw json.RawMessage) error {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" || string(raw) == "[]" {
		return nil
	}
	if err := json.Unmarshal(raw, &t.merges); err == nil {
		return nil
	}
	var pairs [][]string
	if err := json.Unmarshal(raw, &pairs); err != nil {
		return fieldErr(t.path, "model.merges", "not a list of merges: %v", shortJSON(err))
	}
	t.merges = make([]string, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return fieldErr(t.path, "model.merges", "entry %d has %d parts, expected 2", i, len(p))
		}
		t.merges[i] = strings.ReplaceAll(p[0], " ", "\u0120") + " " + strings.ReplaceAll(p[1], " ", "\u0120")
	}
	return nil
}

// readSlow reads the older pair of files.
func (t *hfTokenizer) readSlow() error {
	dir := t.dir
	data, err := readFile(filepath.Join(dir, "vocab.json"))
	if os.IsNotExist(err) {
		return fmt.Errorf("%s: no tokenizer.json and no vocab.json in this folder", dir)
	}
	if err != nil {
		return err
	}
	t.path = filepath.Join(dir, "vocab.json")
	if err := json.Unmarshal(data, &t.vocab); err != nil {
		return fieldErr(t.path, "", "not a map from text to id: %v", shortJSON(err))
	}
	merges, err := readFile(filepath.Join(dir, "merges.txt"))
	if err != nil {
		return err
	}
	for i, line := range strings.Split(string(merges), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || i == 0 && strings.HasPrefix(line, "#") {
			continue
		}
		if parts := strings.Fields(line); len(parts) == 2 {
			t.merges = append(t.merges, parts[0]+" "+parts[1])
		}
	}
	extra, ok, err := readJSON(filepath.Join(dir, "added_tokens.json"))
	if err != nil || !ok {
		return err
	}
	for text := range extra.m {
		id, _ := extra.int(text)
		t.added = append(t.added, addedToken{ID: id, Content: text})
	}
	slices.SortFunc(t.added, func(a, b addedToken) int { return a.ID - b.ID })
	return extra.failed()
}

// overlayAdded lets added_tokens_decoder of tokenizer_config.json add tokens and
// change which are special.
func (t *hfTokenizer) overlayAdded() error {
	dec := t.cfg.object("added_tokens_decoder")
	ids := make([]int, 0, len(dec.m))
	entries := map[int]config{}
	for key := range dec.m {
		var id int
		if _, err := fmt.Sscanf(key, "%d", &id); err != nil || id < 0 {
			return fieldErr(t.cfg.path, "added_tokens_decoder", "%q is not a token id", key)
		}
		ids = append(ids, id)
		entries[id] = dec.object(key)
	}
	slices.Sort(ids)
	for _, id := range ids {
		e := entries[id]
		text, _ := e.str("content")
		special, _ := e.bool("special")
		i := slices.IndexFunc(t.added, func(a addedToken) bool { return a.Content == text })
		if i >= 0 {
			t.added[i].Special = special
		} else if text != "" {
			t.added = append(t.added, addedToken{ID: id, Content: text, Special: special})
		}
	}
	if t.cfg.m == nil {
		return nil
	}
	return t.cfg.failed()
}

// tokenText lists the text of every id below n; missing ids are "".
func (t *hfTokenizer) tokenText(n int) (texts []string, have []bool, err error) {
	texts, have = make([]string, n), make([]bool, n)
	put := func(text string, id int) error {
		if id < 0 || id >= n {
			return fieldErr(t.path, "token "+show(text), "has id %d, but there are %d tokens", id, n)
		}
		if have[id] && texts[id] != text {
			return fieldErr(t.path, "token "+show(text), "has id %d, which is also that of %s", id, show(texts[id]))
		}
		texts[id], have[id] = text, true
		return nil
	}
	for text, id := range t.vocab {
		if err := put(text, id); err != nil {
			return nil, nil, err
		}
	}
	for _, a := range t.added {
		if err := put(a.Content, a.ID); err != nil {
			return nil, nil, err
		}
	}
	return texts, have, nil
}

func (t *hfTokenizer) size() int {
	n := 0
	for _, id := range t.vocab {
		n = max(n, id+1)
	}
	for _, a := range t.added {
		n = max(n, a.ID+1)
	}
	return n
}

// byteLevelKeys writes the vocabulary of a byte-level BPE, padded to the rows of
// the embedding.
func (t *hfTokenizer) byteLevelKeys(l *keyList, pre string, vocabSize int) error {
	if vocabSize == 0 {
		vocabSize = t.size()
	}
	texts, have, err := t.tokenText(vocabSize)
	if err != nil {
		return err
	}
	special := map[int]bool{}
	isAdded := map[int]bool{}
	for _, a := range t.added {
		isAdded[a.ID] = true
		special[a.ID] = a.Special
	}
	types := make([]int32, vocabSize)
	for id := range texts {
		switch {
		case !have[id]:
			texts[id] = fmt.Sprintf("[PAD%d]", id)
			types[id] = tokenUnused
		case !isAdded[id]:
			types[id] = tokenNormal
		case special[id] || looksSpecial(texts[id]):
			types[id] = tokenControl
		default:
			types[id] = tokenUserDefined
			texts[id] = strings.ReplaceAll(texts[id], "\u2581", " ")
		}
	}
	l.set("tokenizer.ggml.model", "gpt2")
	l.set("tokenizer.ggml.pre", pre)
	l.set("tokenizer.ggml.tokens", texts)
	l.set("tokenizer.ggml.token_type", types)
	setList(l, "tokenizer.ggml.merges", t.merges)
	return nil
}

// looksSpecial recognises control tokens that tokenizers forget to mark.
func looksSpecial(text string) bool {
	switch text {
	case "<pad>", "<mask>", "<2mass>", "[@BOS@]":
		return true
	}
	wrapped := func(open, close string) bool {
		return strings.HasPrefix(text, open) && strings.HasSuffix(text, close)
	}
	return wrapped("<|", "|>") || wrapped("<｜", "｜>") || wrapped("<unused", ">")
}

// visible tokens of Gemma 4 are text for the program that reads the output, so
// they must be rendered although the tokenizer calls them special.
var visible = map[string]bool{
	"<|channel>": true, "<channel|>": true, "<|tool_call>": true, "<tool_call|>": true,
	"<|tool_response>": true, "<tool_response|>": true, `<|"|>`: true,
}

// spacedKeys writes Gemma 4's vocabulary.
func (t *hfTokenizer) spacedKeys(l *keyList) error {
	n := t.size()
	texts, have, err := t.tokenText(n)
	if err != nil {
		return err
	}
	if i := slices.Index(have, false); i >= 0 {
		return fieldErr(t.path, "model.vocab", "has no token with id %d", i)
	}
	special := t.namedSpecials()
	base := len(t.vocab)
	scores, types := make([]float32, n), make([]int32, n)
	for id, text := range texts {
		scores[id] = -1000
		switch {
		case visible[text]:
			types[id] = tokenUserDefined
		case id < base && isByteToken(text):
			types[id] = tokenByte
		case special[text]:
			types[id] = tokenControl
		case id < base:
			types[id] = tokenNormal
		default:
			types[id] = tokenUserDefined
		}
	}
	l.set("tokenizer.ggml.model", "gemma4")
	l.set("tokenizer.ggml.tokens", texts)
	l.set("tokenizer.ggml.scores", scores)
	l.set("tokenizer.ggml.token_type", types)
	setList(l, "tokenizer.ggml.merges", t.merges)
	return nil
}

// pieceKeys writes the vocabulary of Llama 2 and Mistral, which is SentencePiece's. Files of this form keep no scores,
// but their merges were made from them, the best first: a token's score is the place of the first merge that makes it.
func (t *hfTokenizer) pieceKeys(l *keyList, vocabSize int) error {
	n := max(vocabSize, t.size())
	texts, have, err := t.tokenText(n)
	if err != nil {
		return err
	}
	place := map[string]int{}
	for i, m := range t.merges {
		left, right, _ := strings.Cut(m, " ")
		if _, ok := place[left+right]; !ok {
			place[left+right] = i
		}
	}
	added := map[int]addedToken{}
	for _, a := range t.added {
		added[a.ID] = a
	}
	scores, types := make([]float32, n), make([]int32, n)
	for id, text := range texts {
		a, isAdded := added[id]
		switch {
		case !have[id]:
			texts[id], types[id] = fmt.Sprintf("[PAD%d]", id), tokenUnused
		case text == t.unknown:
			types[id] = tokenUnknown
		case isByteToken(text):
			types[id] = tokenByte
		case isAdded && (a.Special || looksSpecial(text)):
			types[id] = tokenControl
		case isAdded:
			types[id], texts[id] = tokenUserDefined, strings.ReplaceAll(text, "\u2581", " ")
		default:
			types[id], scores[id] = tokenNormal, -float32(len(t.merges))
			if i, ok := place[text]; ok {
				scores[id] = -float32(i)
			}
		}
	}
	l.set("tokenizer.ggml.model", "llama")
	l.set("tokenizer.ggml.pre", "default")
	l.set("tokenizer.ggml.tokens", texts)
	l.set("tokenizer.ggml.scores", scores)
	l.set("tokenizer.ggml.token_type", types)
	return nil
}

// isByteToken recognises "<0x0A>" and the like.
func isByteToken(s string) bool {
	if len(s) != 6 || s[:3] != "<0x" || s[5] != '>' {
		return false
	}
	return strings.Trim(s[3:5], "0123456789abcdefABCDEF") == ""
}

// namedSpecials are the tokens tokenizer_config.json gives a role, such as
// "eos_token" or "boi_token". Only without any do the flags of the added tokens
// decide.
func (t *hfTokenizer) namedSpecials() map[string]bool {
	out := map[string]bool{}
	note := func(v any) {
		switch v := v.(type) {
		case string:
			out[v] = true
		case map[string]any:
			if s, ok := v["content"].(string); ok {
				out[s] = true
			}
		}
	}
	for key, v := range t.cfg.m {
		if strings.HasSuffix(key, "_token") {
			note(v)
		}
	}
	for _, key := range []string{"additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens"} {
		switch v := t.cfg.m[key].(type) {
		case []any:
			for _, e := range v {
				note(e)
			}
		case map[string]any:
			for _, e := range v {
				note(e)
			}
		}
	}
	delete(out, "")
	if class, _ := t.cfg.str("tokenizer_class"); strings.HasPrefix(class, "Gemma") {
		// Roles the class knows without being told.
		for _, role := range []string{"bos", "eos", "unk", "pad", "mask"} {
			out["<"+role+">"] = true
		}
	}
	if len(out) == 0 {
		for _, a := range t.added {
			if a.Special {
				out[a.Content] = true
			}
		}
	}
	return out
}

// setVocab writes all tokenizer keys. Only a Gemma, or a drafter for one, and a
// Llama may have a spaced vocabulary.
func (t *hfTokenizer) setVocab(l *keyList, m *model, pre string, vocabSize int) error {
	if t.spaced && m.family == llama {
		if err := t.pieceKeys(l, vocabSize); err != nil {
			return err
		}
		l.set("tokenizer.ggml.add_space_prefix", t.prefix)
		return t.specialKeys(l)
	}
	if t.spaced {
		if !m.gemma() && !m.gemmaTarget() {
			return fieldErr(t.path, "model", "is a SentencePiece-style vocabulary, which %s models do not have", m.name)
		}
		if err := t.spacedKeys(l); err != nil {
			return err
		}
		if err := t.specialKeys(l); err != nil {
			return err
		}
		l.set("tokenizer.ggml.add_space_prefix", false)
		l.set("tokenizer.ggml.add_bos_token", true)
		return nil
	}
	if pre == "" {
		var err error
		if pre, err = t.recognisePre(m); err != nil {
			return err
		}
	}
	if err := t.byteLevelKeys(l, pre, vocabSize); err != nil {
		return err
	}
	return t.specialKeys(l)
}

// shortJSON keeps a decoder's message free of Go type names.
func shortJSON(err error) error {
	if te, ok := err.(*json.UnmarshalTypeError); ok {
		if te.Field == "" {
			return fmt.Errorf("unexpected JSON %s", te.Value)
		}
		return fmt.Errorf("%s: unexpected JSON %s", te.Field, te.Value)
	}
	return err
}
