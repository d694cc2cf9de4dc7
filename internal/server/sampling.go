package server

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"strobe/internal/engine"
	"strobe/internal/sample"
	"strobe/internal/speculate"
	"strobe/internal/tokenizer"
)

// Limits of what one request may ask for.
const (
	maxChoices  = 64
	maxStops    = 32
	maxStopLen  = 1024
	maxLogProbs = 20
	maxBias     = 4096
	maxBiasText = 256 // bytes of a text in logit_bias; all its tokens get the bias
	maxTools    = 512
)

// commonSampling are the fields of sampling that every protocol has, with our own. Null means absent.
type commonSampling struct {
	Temperature *float32      `json:"temperature"`
	TopP        *float32      `json:"top_p"`
	TopK        *int          `json:"top_k"`
	MinP        *float32      `json:"min_p"`
	TypicalP    *float32      `json:"typical_p"`
	Strobe      *strobeFields `json:"strobe"`
}

// samplingFields are the fields OpenAI's endpoints and llama.cpp share.
type samplingFields struct {
	commonSampling
	PresencePenalty  *float32 `json:"presence_penalty"`
	FrequencyPenalty *float32 `json:"frequency_penalty"`
	RepeatPenalty    *float32 `json:"repeat_penalty"`
	RepetitionPen    *float32 `json:"repetition_penalty"` // vLLM's spelling
	RepeatLastN      *int     `json:"repeat_last_n"`
	DRYMultiplier    *float32 `json:"dry_multiplier"`
	DRYBase          *float32 `json:"dry_base"`
	DRYAllowedLength *int     `json:"dry_allowed_length"`
	DRYLastN         *int     `json:"dry_penalty_last_n"`
	DRYBreakers      []string `json:"dry_sequence_breakers"`

	TopNSigma   *float32        `json:"top_n_sigma"`
	XTCProb     *float32        `json:"xtc_probability"`
	XTCThresh   *float32        `json:"xtc_threshold"`
	DynaRange   *float32        `json:"dynatemp_range"`
	DynaExp     *float32        `json:"dynatemp_exponent"`
	Mirostat    *int            `json:"mirostat"`
	MirostatTau *float32        `json:"mirostat_tau"`
	MirostatEta *float32        `json:"mirostat_eta"`
	Samplers    json.RawMessage `json:"samplers"`

	Seed      json.RawMessage `json:"seed"`
	Stop      json.RawMessage `json:"stop"`
	LogitBias json.RawMessage `json:"logit_bias"`
	IgnoreEOS bool            `json:"ignore_eos"`

	MaxTokens           *int `json:"max_tokens"`
	MaxCompletionTokens *int `json:"max_completion_tokens"`
	NPredict            *int `json:"n_predict"`

	CachePrompt     *bool `json:"cache_prompt"`
	IDSlot          *int  `json:"id_slot"`
	ReturnProgress  bool  `json:"return_progress"`
	TimingsPerToken bool  `json:"timings_per_token"`
	NKeep           *int  `json:"n_keep"` // what a full context forgets, if the server lets it; so is the next one
	NDiscard        *int  `json:"n_discard"`
}

// strobeFields are our own additions to a request, under one key.
type strobeFields struct {
	Draft    string `json:"draft"`     // what drafts: auto, off, dflash, eagle3, mtp or ngram
	DraftMax int    `json:"draft_max"` // most tokens drafted per round
	Tree     *int   `json:"tree"`      // nodes of a tree; 0 turns trees off
	Spans    bool   `json:"spans"`     // tell in every chunk which text was drafted
}

// apply puts the fields into a request. The request's parameters are the server's defaults.
func (f *samplingFields) apply(req *engine.Request, tok *tokenizer.Tokenizer) error {
	p := &req.Params
	for _, x := range []struct {
		name   string
		v      *float32
		dst    *float32
		lo, hi float32
	}{
		{"temperature", f.Temperature, &p.Temp, 0, 100},
		{"top_p", f.TopP, &p.TopP, 0, 1},
		{"min_p", f.MinP, &p.MinP, 0, 1},
		{"typical_p", f.TypicalP, &p.TypicalP, 0, 1},
		{"presence_penalty", f.PresencePenalty, &p.PresencePenalty, -100, 100},
		{"frequency_penalty", f.FrequencyPenalty, &p.FrequencyPenalty, -100, 100},
		{"repeat_penalty", f.RepeatPenalty, &p.RepeatPenalty, 0, 100},
		{"repetition_penalty", f.RepetitionPen, &p.RepeatPenalty, 0, 100},
		{"dry_multiplier", f.DRYMultiplier, &p.DRY.Multiplier, 0, 100},
		{"dry_base", f.DRYBase, &p.DRY.Base, 0, 100},
		{"top_n_sigma", f.TopNSigma, &p.TopNSigma, -1, 100}, // negative is off, as in llama.cpp
		{"xtc_probability", f.XTCProb, &p.XTC.Probability, 0, 1},
		{"xtc_threshold", f.XTCThresh, &p.XTC.Threshold, 0, 1},
		{"dynatemp_range", f.DynaRange, &p.DynaTemp.Range, 0, 100},
		{"dynatemp_exponent", f.DynaExp, &p.DynaTemp.Exponent, 0, 100},
		{"mirostat_tau", f.MirostatTau, &p.Mirostat.Tau, 0, 100},
		{"mirostat_eta", f.MirostatEta, &p.Mirostat.Eta, 0, 100},
	} {
		if x.v == nil {
			continue
		}
		if !(*x.v >= x.lo && *x.v <= x.hi) {
			return invalid(x.name, "%v is not between %v and %v", *x.v, x.lo, x.hi)
		}
		*x.dst = *x.v
	}
	for _, x := range []struct {
		name string
		v    *int
		dst  *int
	}{
		{"top_k", f.TopK, &p.TopK},
		{"dry_allowed_length", f.DRYAllowedLength, &p.DRY.AllowedLength},
		{"dry_penalty_last_n", f.DRYLastN, &p.DRY.LastN},
		{"repeat_last_n", f.RepeatLastN, &p.RepeatLastN},
	} {
		if x.v == nil {
			continue
		}
		if *x.v < -1 || *x.v > math.MaxInt32 {
			return invalid(x.name, "%d is not at least -1", *x.v)
		}
		*x.dst = *x.v
	}
	p.TopNSigma = max(p.TopNSigma, 0)
	if f.XTCProb != nil && f.XTCThresh == nil && p.XTC.Threshold == 0 {
		p.XTC.Threshold = defaultXTCThreshold
	}
	if f.Mirostat != nil {
		if p.Mirostat.Version = *f.Mirostat; p.Mirostat.Version < 0 || p.Mirostat.Version > 2 {
			return invalid("mirostat", "%d is none of 0, 1 and 2", *f.Mirostat)
		}
	}
	if kindOf(f.Samplers) != "null" {
		var err error
		if p.Steps, err = steps(f.Samplers); err != nil {
			return err
		}
	}
	if f.DRYAllowedLength != nil && *f.DRYAllowedLength < 0 {
		return invalid("dry_allowed_length", "must be at least 0")
	}
	if f.RepeatLastN != nil && *f.RepeatLastN == 0 { // looking back no token turns the penalties off
		p.RepeatPenalty, p.PresencePenalty, p.FrequencyPenalty = 1, 0, 0
	}
	if f.DRYLastN != nil && *f.DRYLastN == 0 {
		p.DRY.Multiplier = 0
	}
	if tok == nil && f.LogitBias != nil {
		return invalid("logit_bias", "is not supported for a model of another server")
	}
	breakers, err := stopList("dry_sequence_breakers", f.DRYBreakers)
	if err != nil {
		return err
	}
	if tok != nil && p.DRY.Multiplier > 0 && (p.DRY.Breakers == nil || f.DRYBreakers != nil) {
		if f.DRYBreakers == nil {
			breakers = defaultBreakers
		}
		p.DRY.Breakers = dryBreakers(tok, breakers)
	}
	n, given, err := seed(f.Seed)
	if err != nil {
		return err
	}
	if given {
		p.Seed = n
	}
	if kindOf(f.Stop) != "null" {
		if req.Stops, err = stops("stop", f.Stop); err != nil {
			return err
		}
	}
	if kindOf(f.LogitBias) != "null" {
		if p.LogitBias, err = logitBias(f.LogitBias, tok); err != nil {
			return err
		}
	}
	req.IgnoreEOG = req.IgnoreEOG || f.IgnoreEOS
	if req.Progress = f.ReturnProgress; f.IDSlot != nil && *f.IDSlot >= 0 {
		req.Slot = f.IDSlot
	}
	req.NoCache = f.CachePrompt != nil && !*f.CachePrompt
	for _, x := range []struct {
		name string
		v    *int
	}{{"n_predict", f.NPredict}, {"max_tokens", f.MaxTokens}, {"max_completion_tokens", f.MaxCompletionTokens}} {
		if x.v != nil {
			limitTokens(req, *x.v)
		}
	}
	f.shift(req)
	return f.Strobe.apply(req)
}

// shift says what is forgotten when the context is full. Where the server forgets nothing, it changes nothing.
func (f *samplingFields) shift(req *engine.Request) {
	if req.Shift == nil || f.NKeep == nil && f.NDiscard == nil {
		return
	}
	own := *req.Shift
	if f.NKeep != nil {
		own.Keep = *f.NKeep
	}
	if f.NDiscard != nil {
		own.Discard = *f.NDiscard
	}
	req.Shift = &own
}

// limitTokens sets how many tokens an answer may have. Negative is without a limit; at 0 the prompt
// is run and nothing generated.
func limitTokens(req *engine.Request, n int) {
	req.MaxTokens = max(n, 0)
	req.PromptOnly = n == 0
}

func (f *strobeFields) apply(req *engine.Request) error {
	if f == nil {
		return nil
	}
	if f.Draft != "" {
		d, err := engine.ParseDraft(f.Draft)
		if err != nil {
			return invalid("strobe.draft", "%v", err)
		}
		req.Spec.Draft = d
	}
	if f.DraftMax < 0 || f.DraftMax > 64 {
		return invalid("strobe.draft_max", "%d is not between 0 and 64", f.DraftMax)
	}
	if f.DraftMax > 0 {
		req.Spec.Max = f.DraftMax
	}
	if f.Tree != nil {
		switch {
		case *f.Tree < 0 || *f.Tree > 256:
			return invalid("strobe.tree", "%d is not between 0 and 256", *f.Tree)
		case *f.Tree == 0:
			req.Spec.Tree = speculate.TreeOff
		default:
			req.Spec.Tree = *f.Tree
		}
	}
	return nil
}

// seed reads a seed; a negative one asks for a random one, like none.
func seed(raw json.RawMessage) (n uint64, given bool, err error) {
	if kindOf(raw) == "null" {
		return 0, false, nil
	}
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return uint64(v), v >= 0, nil
	}
	if n, err = strconv.ParseUint(string(raw), 10, 64); err == nil {
		return n, true, nil
	}
	var v int64
	if unmarshal(raw, &v) != nil { // 42.0
		return 0, false, invalid("seed", "must be an integer")
	}
	return uint64(v), v >= 0, nil
}

// stops reads a string or a list of strings.
func stops(name string, raw json.RawMessage) ([]string, error) {
	if kindOf(raw) == "null" {
		return nil, nil
	}
	var t texts
	if err := t.UnmarshalJSON(raw); err != nil {
		return nil, invalid(name, "%v", err)
	}
	return stopList(name, t)
}

func stopList(name string, list []string) (out []string, err error) {
	if len(list) > maxStops {
		return nil, invalid(name, "has %d entries; at most %d are allowed", len(list), maxStops)
	}
	for _, s := range list {
		if len(s) > maxStopLen {
			return nil, invalid(name, "an entry is longer than %d bytes", maxStopLen)
		}
		if s != "" {
			out = append(out, s)
		}
	}
	return out, nil
}

// logitBias reads OpenAI's object of ids, in which llama.cpp has texts, too, or its list of pairs whose first half may
// be a text and whose second false, which bans.
func logitBias(raw json.RawMessage, tok *tokenizer.Tokenizer) (map[int32]float32, error) {
	const name = "logit_bias"
	bias := map[int32]float32{}
	add := func(key, value json.RawMessage) error {
		v := float32(math.Inf(-1))
		if s := string(value); s != "false" {
			f, err := strconv.ParseFloat(s, 32)
			if err != nil {
				return invalid(name, "the bias must be a number or false, not %.20s", s)
			}
			v = float32(f)
		}
		var text string
		if json.Unmarshal(key, &text) == nil {
			if len(text) > maxBiasText {
				return invalid(name, "the text %.20q... is longer than %d bytes", text, maxBiasText)
			}
			for _, id := range tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true}) {
				bias[id] = v
			}
			return nil
		}
		id, err := strconv.ParseInt(string(key), 10, 32)
		if err != nil || id < 0 || int(id) >= tok.Size() {
			return invalid(name, "%.20s is not the id of a token", key)
		}
		bias[int32(id)] = v
		return nil
	}
	var pairs [][]json.RawMessage
	switch kindOf(raw) {
	case "null":
		return nil, nil
	case "object":
		var object map[string]json.RawMessage
		if err := decodeJSON(raw, name, &object); err != nil {
			return nil, err
		}
		for key, value := range object {
			id := json.RawMessage(key)
			if _, err := strconv.ParseInt(key, 10, 32); err != nil {
				if id, err = json.Marshal(key); err != nil {
					return nil, err
				}
			}
			pairs = append(pairs, []json.RawMessage{id, value})
		}
	case "array":
		if err := decodeJSON(raw, name, &pairs); err != nil {
			return nil, err
		}
	default:
		return nil, invalid(name, "must be an object or a list of pairs")
	}
	if len(pairs) > maxBias {
		return nil, invalid(name, "has more than %d entries", maxBias)
	}
	for _, pair := range pairs {
		if len(pair) != 2 {
			return nil, invalid(name, "must hold pairs")
		}
		if err := add(pair[0], pair[1]); err != nil {
			return nil, err
		}
	}
	return bias, nil
}

// defaultBreakers are llama.cpp's.
var defaultBreakers = []string{"\n", ":", "\"", "*"}

// defaultXTCThreshold is llama.cpp's.
const defaultXTCThreshold = 0.1

// dryBreakers are the tokens that texts which end repetitions are in.
func dryBreakers(tok *tokenizer.Tokenizer, texts []string) []int32 {
	return sample.BreakerTokens(tok.Size(), func(id int32) []byte { return tok.Piece(id, false) }, texts)
}

// stepNames are llama.cpp's names of the steps of sampling, and its letters for them.
var stepNames = map[string]sample.Step{
	"penalties": sample.StepPenalties, "e": sample.StepPenalties, "dry": sample.StepDRY, "d": sample.StepDRY,
	"top_n_sigma": sample.StepTopNSigma, "s": sample.StepTopNSigma, "top_k": sample.StepTopK, "k": sample.StepTopK,
	"typ_p": sample.StepTypical, "typical_p": sample.StepTypical, "typical": sample.StepTypical, "y": sample.StepTypical,
	"top_p": sample.StepTopP, "p": sample.StepTopP, "min_p": sample.StepMinP, "m": sample.StepMinP,
	"xtc": sample.StepXTC, "x": sample.StepXTC, "temperature": sample.StepTemperature, "temp": sample.StepTemperature,
	"t": sample.StepTemperature,
}

// steps reads the steps of sampling in their order: a list of names, or a word of letters.
func steps(raw json.RawMessage) ([]sample.Step, error) {
	var names []string
	if kindOf(raw) == "string" {
		var word string
		if err := decodeJSON(raw, "samplers", &word); err != nil {
			return nil, err
		}
		for _, r := range word {
			names = append(names, string(r))
		}
	} else if err := decodeJSON(raw, "samplers", &names); err != nil {
		return nil, err
	}
	out := []sample.Step{}
	for i, name := range names {
		s, ok := stepNames[name]
		if !ok {
			return nil, invalid("samplers"+index(i), "%q is not supported", name)
		}
		if slices.Contains(out, s) {
			return nil, invalid("samplers"+index(i), "%q is there twice", name)
		}
		out = append(out, s)
	}
	return out, nil
}
