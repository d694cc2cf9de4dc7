// Command bpe trains a byte-level BPE vocabulary with the Qwen3.5 pre-tokenizer (hand coded) and encodes text with it.
//
//	go run ./bpe train TEXT.bin tokenizer.json
//	go run ./bpe encode [-exclude seen.u16]... tokenizer.json TEXT.bin OUT.u16
//
// TEXT.bin holds documents separated by a NUL byte; OUT.u16 holds little-endian 16-bit ids, an <|endoftext|> after
// every document.  With -exclude, documents whose tokens are in one of those files are left out.
package main

import (
	"bufio"
	"bytes"
	"container/heap"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"sort"
	"unicode"
	"unicode/utf8"
)

const vocabSize = 8192

var specials = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<|fim_prefix|>", "<|fim_suffix|>",
	"<|fim_middle|>", "<|fim_pad|>",
	"<|reserved_0|>", "<|reserved_1|>", "<|reserved_2|>", "<|reserved_3|>", "<|reserved_4|>", "<|reserved_5|>",
	"<|reserved_6|>", "<|reserved_7|>"}

const regex = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ` +
	`?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

func isL(r rune) bool {
	if r < 128 {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	return unicode.Is(unicode.L, r) || unicode.Is(unicode.M, r)
}
func isN(r rune) bool {
	if r < 128 {
		return r >= '0' && r <= '9'
	}
	return unicode.Is(unicode.N, r)
}
func isS(r rune) bool {
	if r < 128 {
		return r == ' ' || r >= 9 && r <= 13
	}
	return unicode.IsSpace(r)
}
func low(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 32
	}
	return c
}

// next returns the end of the pre-token that starts at i.
func next(t []byte, i int) int {
	c, n := utf8.DecodeRune(t[i:])
	if c == '\'' && i+1 < len(t) {
		d := low(t[i+1])
		switch d {
		case 's', 't', 'm', 'd':
			return i + 2
		}
		if i+2 < len(t) {
			e := low(t[i+2])
			if d == 'r' && e == 'e' || d == 'v' && e == 'e' || d == 'l' && e == 'l' {
				return i + 3
			}
		}
	}
	letters := func(j int) int {
		for j < len(t) {
			r, m := utf8.DecodeRune(t[j:])
			if !isL(r) {
				break
			}
			j += m
		}
		return j
	}
	if isL(c) {
		return letters(i + n)
	}
	if c != '\r' && c != '\n' && !isN(c) {
		if j := letters(i + n); j > i+n {
			return j
		}
	}
	if isN(c) {
		return i + n
	}
	// ' '?[^\s L M N]+[\r\n]*
	j := i
	if c == ' ' {
		j++
	}
	k := j
	for k < len(t) {
		r, m := utf8.DecodeRune(t[k:])
		if isS(r) || isL(r) || isN(r) {
			break
		}
		k += m
	}
	if k > j {
		for k < len(t) && (t[k] == '\r' || t[k] == '\n') {
			k++
		}
		return k
	}
	// whitespace run
	lastNL, end, lastStart := -1, i, i
	for end < len(t) {
		r, m := utf8.DecodeRune(t[end:])
		if !isS(r) {
			break
		}
		lastStart = end
		end += m
		if r == '\r' || r == '\n' {
			lastNL = end
		}
	}
	if lastNL > 0 {
		return lastNL
	}
	if end == len(t) || lastStart == i {
		return end
	}
	return lastStart
}

type pairItem struct {
	cnt int64
	p   uint64
}
type pq []pairItem

func (q pq) Len() int { return len(q) }
func (q pq) Less(a, b int) bool {
	if q[a].cnt != q[b].cnt {
		return q[a].cnt > q[b].cnt
	}
	return q[a].p < q[b].p
}
func (q pq) Swap(a, b int) { q[a], q[b] = q[b], q[a] }
func (q *pq) Push(x any)   { *q = append(*q, x.(pairItem)) }
func (q *pq) Pop() any     { o := *q; x := o[len(o)-1]; *q = o[:len(o)-1]; return x }

func main() {
	err := errors.New("usage: bpe train TEXT.bin tokenizer.json | bpe encode [-exclude seen.u16]... tokenizer.json " +
		"TEXT.bin OUT.u16")
	switch {
	case len(os.Args) == 4 && os.Args[1] == "train":
		err = train(os.Args[2], os.Args[3])
	case len(os.Args) > 4 && os.Args[1] == "encode":
		var exclude []string
		fl := flag.NewFlagSet("encode", flag.ExitOnError)
		fl.Func("exclude", "token file whose documents are left out", func(s string) error {
			exclude = append(exclude, s)
			return nil
		})
		if err = fl.Parse(os.Args[2:]); err == nil && fl.NArg() == 3 {
			err = encode(fl.Arg(0), fl.Arg(1), fl.Arg(2), exclude)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bpe:", err)
		os.Exit(1)
	}
}

// byteOrder lists the bytes in GPT-2's order (their ids) and the characters that stand for them in the vocabulary.
func byteOrder() (order []int, char []string) {
	for _, r := range [][2]int{{33, 126}, {161, 172}, {174, 255}} {
		for b := r[0]; b <= r[1]; b++ {
			order = append(order, b)
		}
	}
	char = make([]string, 256)
	for _, b := range order {
		char[b] = string(rune(b))
	}
	extra := 0
	for b := range 256 {
		if char[b] == "" {
			order = append(order, b)
			char[b] = string(rune(256 + extra))
			extra++
		}
	}
	return order, char
}

func train(text, out string) error {
	data, err := os.ReadFile(text)
	if err != nil {
		return err
	}
	order, char := byteOrder()
	b2id := make([]int32, 256)
	toks := make([]string, 0, vocabSize) // unicode form
	for i, b := range order {
		b2id[b] = int32(i)
		toks = append(toks, char[b])
	}
	counts := map[string]int64{}
	lim := min(len(data), 160<<20) // enough for a small vocabulary
	for _, d := range bytes.Split(data[:lim], []byte{0}) {
		for i := 0; i < len(d); {
			j := next(d, i)
			if j-i <= 48 {
				counts[string(d[i:j])]++
			}
			i = j
		}
	}
	type word struct {
		s []int32
		n int64
	}
	keys := make([]string, 0, len(counts))
	for k, n := range counts {
		if n >= 3 {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	words := make([]word, len(keys))
	pc := map[uint64]int64{}
	pw := map[uint64]map[int32]struct{}{}
	for i, k := range keys {
		w := make([]int32, len(k))
		for j := 0; j < len(k); j++ {
			w[j] = b2id[k[j]]
		}
		words[i] = word{w, counts[k]}
		for j := 0; j+1 < len(w); j++ {
			p := uint64(w[j])<<32 | uint64(w[j+1])
			pc[p] += counts[k]
			if pw[p] == nil {
				pw[p] = map[int32]struct{}{}
			}
			pw[p][int32(i)] = struct{}{}
		}
	}
	q := &pq{}
	for p, c := range pc {
		*q = append(*q, pairItem{c, p})
	}
	heap.Init(q)
	type mg struct{ a, b int32 }
	var merges []mg
	nm := vocabSize - 256 - len(specials)
	for len(merges) < nm && q.Len() > 0 {
		it := heap.Pop(q).(pairItem)
		if pc[it.p] != it.cnt {
			if pc[it.p] > 0 {
				heap.Push(q, pairItem{pc[it.p], it.p})
			}
			continue
		}
		a, b := int32(it.p>>32), int32(it.p&0xffffffff)
		id := int32(len(toks))
		toks = append(toks, toks[a]+toks[b])
		merges = append(merges, mg{a, b})
		changed := map[uint64]struct{}{}
		for wi := range pw[it.p] {
			w := &words[wi]
			s := w.s
			// remove old pairs
			for j := 0; j+1 < len(s); j++ {
				p := uint64(s[j])<<32 | uint64(s[j+1])
				pc[p] -= w.n
			}
			ns := s[:0:0]
			for j := 0; j < len(s); j++ {
				if j+1 < len(s) && s[j] == a && s[j+1] == b {
					ns = append(ns, id)
					j++
				} else {
					ns = append(ns, s[j])
				}
			}
			w.s = ns
			for j := 0; j+1 < len(ns); j++ {
				p := uint64(ns[j])<<32 | uint64(ns[j+1])
				pc[p] += w.n
				if ns[j] == id || ns[j+1] == id {
					if pw[p] == nil {
						pw[p] = map[int32]struct{}{}
					}
					pw[p][wi] = struct{}{}
					changed[p] = struct{}{}
				}
			}
		}
		delete(pc, it.p)
		delete(pw, it.p)
		for p := range changed {
			if pc[p] > 0 {
				heap.Push(q, pairItem{pc[p], p})
			}
		}
	}
	fmt.Println("merges", len(merges))
	spBase := len(toks)
	vocab := map[string]int{}
	for i, t := range toks {
		vocab[t] = i
	}
	if len(vocab) != len(toks) {
		return fmt.Errorf("%d tokens have the same spelling as another", len(toks)-len(vocab))
	}
	ml := make([][2]string, len(merges))
	for i, m := range merges {
		ml[i] = [2]string{toks[m.a], toks[m.b]}
	}
	var added []map[string]any
	for i, s := range specials {
		added = append(added, map[string]any{"id": spBase + i, "content": s, "single_word": false, "lstrip": false,
			"rstrip": false, "normalized": false, "special": true})
	}
	tj := map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added,
		"normalizer": map[string]any{"type": "NFC"},
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]any{"Regex": regex}, "behavior": "Isolated", "invert": false},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
		}},
		"post_processor": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
			"use_regex": false},
		"decoder": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
		"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": "",
			"end_of_word_suffix": "",
			"fuse_unk":           false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": ml},
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(tj); err != nil {
		return err
	}
	return f.Close()
}

// encoder applies a vocabulary made by train.
type encoder struct {
	b2id  [256]int32
	rank  map[uint64]int32
	cache map[string][]uint16
	eos   uint16
}

func loadEncoder(path string) (*encoder, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var tj struct {
		Added []struct {
			ID      int
			Content string
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]int
			Merges [][2]string
		}
	}
	if err := json.Unmarshal(raw, &tj); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	e := &encoder{rank: map[uint64]int32{}, cache: map[string][]uint16{}}
	_, char := byteOrder()
	for b, c := range char {
		e.b2id[b] = int32(tj.Model.Vocab[c])
	}
	for _, m := range tj.Model.Merges {
		id, ok := tj.Model.Vocab[m[0]+m[1]]
		if !ok {
			return nil, fmt.Errorf("%s: merge %q has no token", path, m)
		}
		e.rank[uint64(tj.Model.Vocab[m[0]])<<32|uint64(tj.Model.Vocab[m[1]])] = int32(id)
	}
	for _, t := range tj.Added {
		if t.Content == specials[0] {
			e.eos = uint16(t.ID)
			return e, nil
		}
	}
	return nil, fmt.Errorf("%s: no %s", path, specials[0])
}

// word encodes one pre-token.  Merge ids rise with merge order, so the smallest id is the first merge to apply.
func (e *encoder) word(s []byte) []uint16 {
	if r, ok := e.cache[string(s)]; ok {
		return r
	}
	w := make([]int32, len(s))
	for i, c := range s {
		w[i] = e.b2id[c]
	}
	for len(w) > 1 {
		best, at := int32(1<<30), -1
		for j := 0; j+1 < len(w); j++ {
			if r, ok := e.rank[uint64(w[j])<<32|uint64(w[j+1])]; ok && r < best {
				best, at = r, j
			}
		}
		if at < 0 {
			break
		}
		w[at] = best
		w = append(w[:at+1], w[at+2:]...)
	}
	r := make([]uint16, len(w))
	for i, x := range w {
		r[i] = uint16(x)
	}
	if len(s) <= 32 {
		e.cache[string(s)] = r
	}
	return r
}

func hashDoc(d []byte) uint64 {
	h := fnv.New64a()
	h.Write(d)
	return h.Sum64()
}

func encode(tokenizer, text, out string, exclude []string) error {
	e, err := loadEncoder(tokenizer)
	if err != nil {
		return err
	}
	eos := []byte{byte(e.eos), byte(e.eos >> 8)}
	seen := map[uint64]bool{}
	for _, p := range exclude {
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		start := 0
		for i := 0; i+1 < len(b); i += 2 {
			if b[i] == eos[0] && b[i+1] == eos[1] {
				seen[hashDoc(b[start:i])] = true
				start = i + 2
			}
		}
	}
	data, err := os.ReadFile(text)
	if err != nil {
		return err
	}
	docs := bytes.Split(data, []byte{0})
	similarTogether(docs)
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	n, kept, dropped, size := 0, 0, 0, 0
	var buf []byte
	for _, d := range docs {
		if len(d) == 0 {
			continue
		}
		buf = buf[:0]
		for i := 0; i < len(d); {
			j := next(d, i)
			for _, x := range e.word(d[i:j]) {
				buf = binary.LittleEndian.AppendUint16(buf, x)
			}
			i = j
		}
		if seen[hashDoc(buf)] {
			dropped++
			continue
		}
		kept++
		size += len(d)
		n += len(buf)/2 + 1
		w.Write(buf)
		w.Write(eos)
	}
	fmt.Printf("%s: %d documents (%d left out), %d bytes, %d tokens, %.3f bytes per token\n", out, kept, dropped, size, n,
		float64(size)/float64(n))
	return errors.Join(w.Flush(), f.Close())
}

// similarTogether orders documents by their main import and package, so that a compressor sees similar files close to
// each other.
func similarTogether(docs [][]byte) {
	imp := regexp.MustCompile(`"([a-z0-9-]+\.[a-z.]+/[^"/\s]+(?:/[^"/\s]+)?)`)
	pkg := regexp.MustCompile(`(?m)^package (\w+)`)
	type keyed struct {
		key string
		doc []byte
	}
	ks := make([]keyed, len(docs))
	for i, d := range docs {
		h := d[:min(len(d), 5000)]
		cnt := map[string]int{}
		best := ""
		for _, m := range imp.FindAllSubmatch(h, -1) {
			k := string(m[1])
			cnt[k]++
			if cnt[k] > cnt[best] {
				best = k
			}
		}
		p := ""
		if m := pkg.FindSubmatch(h); m != nil {
			p = string(m[1])
		}
		ks[i] = keyed{best + "|" + p, d}
	}
	sort.SliceStable(ks, func(a, b int) bool { return ks[a].key < ks[b].key })
	for i := range docs {
		docs[i] = ks[i].doc
	}
}
