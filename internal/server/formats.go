package server

import (
	"encoding/json"
	"reflect"
	"slices"
)

// responseFormat is what the answer has to look like.
type responseFormat struct {
	Type       string          `json:"type"`
	Schema     json.RawMessage `json:"schema"` // llama.cpp's place for it, also with json_object
	JSONSchema *struct {
		Schema json.RawMessage `json:"schema"`
		Strict bool            `json:"strict"`
	} `json:"json_schema"`
	Strict bool `json:"strict"` // of the Responses API
}

func (f *responseFormat) format() (*format, error) {
	if f == nil {
		return nil, nil
	}
	schema := f.Schema
	if f.JSONSchema != nil {
		schema = f.JSONSchema.Schema
	}
	if kindOf(schema) == "null" {
		schema = nil
	}
	switch f.Type {
	case "", "text":
		return nil, nil
	case "json_object":
		return &format{schema: schema}, nil
	case "json_schema":
		if schema == nil {
			return nil, invalid("response_format.json_schema.schema", "is missing")
		}
		return &format{schema: schema, strict: f.Strict || f.JSONSchema != nil && f.JSONSchema.Strict}, nil
	}
	return nil, invalid("response_format.type", "%q is none of text, json_object and json_schema", f.Type)
}

// formatFields are the ways to say what an answer has to look like: OpenAI's and the two of llama.cpp.
type formatFields struct {
	ResponseFormat *responseFormat `json:"response_format"`
	JSONSchema     json.RawMessage `json:"json_schema"`
	Grammar        string          `json:"grammar"` // GBNF
}

func (f *formatFields) format() (*format, error) {
	out, err := f.ResponseFormat.format()
	if err != nil {
		return nil, err
	}
	if kindOf(f.JSONSchema) != "null" {
		if out != nil {
			return nil, invalid("json_schema", "cannot be used with response_format")
		}
		out = &format{schema: f.JSONSchema}
	}
	if f.Grammar != "" {
		if out != nil {
			return nil, invalid("grammar", "cannot be used with a schema")
		}
		out = &format{gbnf: f.Grammar}
	}
	return out, nil
}

// refusedFields are what other servers let a request demand of the answer and this one cannot do. Ignoring them would
// be a wrong answer that looks right. Fields that merely tune are ignored.
type refusedFields struct {
	GuidedJSON       json.RawMessage `json:"guided_json"` // vLLM's, like the next ones
	GuidedRegex      json.RawMessage `json:"guided_regex"`
	GuidedChoice     json.RawMessage `json:"guided_choice"`
	GuidedGrammar    json.RawMessage `json:"guided_grammar"`
	StructuredOutput json.RawMessage `json:"structured_outputs"`
	StructuralTag    json.RawMessage `json:"structural_tag"`
	AllowedTokens    json.RawMessage `json:"allowed_token_ids"`
	BadWords         json.RawMessage `json:"bad_words"`
	StopTokens       json.RawMessage `json:"stop_token_ids"`
	MinTokens        json.RawMessage `json:"min_tokens"`
	BeamSearch       json.RawMessage `json:"use_beam_search"`
	Regex            json.RawMessage `json:"regex"` // SGLang's, like the next one
	EBNF             json.RawMessage `json:"ebnf"`
	GrammarLazy      json.RawMessage `json:"grammar_lazy"` // llama.cpp's, like the next ones
	LoRA             json.RawMessage `json:"lora"`
	ImageData        json.RawMessage `json:"image_data"`
	MaxPromptTime    json.RawMessage `json:"t_max_prompt_ms"`
	MaxPredictTime   json.RawMessage `json:"t_max_predict_ms"`
	PostSampling     json.RawMessage `json:"post_sampling_probs"`
	MinKeep          json.RawMessage `json:"min_keep"`
	Indent           json.RawMessage `json:"n_indent"`
	AdaptiveTarget   json.RawMessage `json:"adaptive_target"`
	TopA             json.RawMessage `json:"top_a"` // text-generation-webui's, like the next ones
	TFS              json.RawMessage `json:"tfs_z"` // 1 is nothing special, here and for those marked so
	EpsilonCutoff    json.RawMessage `json:"epsilon_cutoff"`
	EtaCutoff        json.RawMessage `json:"eta_cutoff"`
	SmoothingFactor  json.RawMessage `json:"smoothing_factor"`
	LengthPenalty    json.RawMessage `json:"length_penalty"`  // vLLM's, 1 likewise
	PromptLogProbs   json.RawMessage `json:"prompt_logprobs"` // vLLM's, like the next two
	TruncatePrompt   json.RawMessage `json:"truncate_prompt_tokens"`
	IncludeStop      json.RawMessage `json:"include_stop_str_in_output"`
	Audio            json.RawMessage `json:"audio"` // OpenAI's, like the next ones
	WebSearch        json.RawMessage `json:"web_search_options"`
	ContextEdits     json.RawMessage `json:"context_management"`
	Moderation       json.RawMessage `json:"moderation"`
	BestOf           json.RawMessage `json:"best_of"` // 1 likewise
}

// neutralOne are fields that change nothing at 1.
var neutralOne = []string{"best_of", "tfs_z", "length_penalty"}

// negativeIsOff are fields that change nothing below 0.
var negativeIsOff = map[string]bool{"adaptive_target": true, "t_max_prompt_ms": true, "t_max_predict_ms": true,
	"truncate_prompt_tokens": true, "n_indent": true, "min_keep": true}

// instead says how to ask for the same thing here.
var instead = map[string]string{
	"guided_json": "response_format", "structured_outputs": "response_format or grammar", "guided_grammar": "grammar",
	"guided_choice": "response_format or grammar", "guided_regex": "grammar", "regex": "grammar", "ebnf": "grammar",
	"t_max_predict_ms": "max_tokens", "post_sampling_probs": "n_probs, the model's probabilities",
	"bad_words": "logit_bias", "allowed_token_ids": "logit_bias", "stop_token_ids": "stop",
}

func (f *refusedFields) check() error {
	v := reflect.ValueOf(*f)
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("json")
		switch raw := v.Field(i).Bytes(); string(raw) {
		case "", "null", "false", "0", "0.0", `""`, "[]", "{}": // off
			continue
		case "1", "1.0":
			if slices.Contains(neutralOne, name) {
				continue
			}
		default:
			if raw[0] == '-' && negativeIsOff[name] {
				continue
			}
		}
		if use := instead[name]; use != "" {
			return invalid(name, "is not supported; use %s", use)
		}
		return invalid(name, "is not supported")
	}
	return nil
}

// format is what an answer has to be: JSON that fits a schema, any JSON object, or text that fits a grammar.
type format struct {
	schema json.RawMessage // nil for any object
	gbnf   string          // "" for JSON
	strict bool            // what cannot be honoured exactly is refused
}
