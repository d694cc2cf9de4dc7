package server

import (
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// jsonNames are the names that a type reads from JSON, those of embedded structs included.
func jsonNames(t reflect.Type) (out []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			out = append(out, jsonNames(f.Type)...)
		case name != "":
			out = append(out, name)
		}
	}
	return out
}

// field is what becomes of a field of a request.
type field struct {
	refused  string // JSON of a value that is refused; "" if none is
	harmless string // why ignoring it changes no answer; "" if it is read
}

func refuse(value string) field    { return field{refused: value} }
func harmless(reason string) field { return field{harmless: reason} }

var honoured field

// Reasons that several fields share.
const (
	forBilling = "it is for bills, tiers and statistics of a service"
	forCaches  = "caches are shared by what prompts have in common; they change no answer"
	forSpeed   = "it changes how fast an answer comes, not what it says"
)

// vllmFields and webuiFields are of servers whose clients are used with this one.
var otherFields = map[string]field{
	"guided_json": refuse(`{"type":"object"}`), "guided_regex": refuse(`"a"`), "guided_choice": refuse(`["a"]`),
	"guided_grammar": refuse(`"root ::= x"`), "structured_outputs": refuse(`{"regex":"a"}`),
	"structural_tag":    refuse(`{"a":1}`),
	"allowed_token_ids": refuse(`[1]`), "bad_words": refuse(`["a"]`), "stop_token_ids": refuse(`[1]`),
	"min_tokens":      refuse(`3`),
	"use_beam_search": refuse(`true`), "regex": refuse(`"a"`), "ebnf": refuse(`"a"`), "top_a": refuse(`0.2`),
	"tfs_z":          refuse(`0.9`),
	"epsilon_cutoff": refuse(`3`), "eta_cutoff": refuse(`3`), "smoothing_factor": refuse(`0.3`),
	"length_penalty":  refuse(`2`),
	"prompt_logprobs": refuse(`1`), "truncate_prompt_tokens": refuse(`5`), "include_stop_str_in_output": refuse(`true`),
}

// samplingNames are llama.cpp's fields of sampling, which its completions, OpenAI's endpoints and Ollama's options
// have.
var samplingNames = map[string]field{
	"temperature": honoured, "top_p": honoured, "top_k": honoured, "min_p": honoured, "typical_p": honoured,
	"strobe":           honoured,
	"presence_penalty": honoured, "frequency_penalty": honoured, "repeat_penalty": honoured,
	"repetition_penalty": honoured,
	"repeat_last_n":      honoured, "dry_multiplier": honoured, "dry_base": honoured, "dry_allowed_length": honoured,
	"dry_penalty_last_n": honoured, "dry_sequence_breakers": honoured, "top_n_sigma": honoured,
	"xtc_probability": honoured,
	"xtc_threshold":   honoured, "dynatemp_range": honoured, "dynatemp_exponent": honoured, "mirostat": honoured,
	"mirostat_tau": honoured, "mirostat_eta": honoured, "samplers": honoured, "seed": honoured, "stop": honoured,
	"logit_bias": honoured, "ignore_eos": honoured, "max_tokens": honoured, "max_completion_tokens": honoured,
	"n_predict": honoured, "cache_prompt": honoured, "id_slot": honoured, "return_progress": honoured,
	"timings_per_token": honoured,
	"grammar_lazy":      refuse(`true`), "lora": refuse(`[{"id":0,"scale":1}]`),
	"image_data":      refuse(`[{"id":1,"data":"x"}]`),
	"t_max_prompt_ms": refuse(`5`), "t_max_predict_ms": refuse(`5`), "post_sampling_probs": refuse(`true`),
	"min_keep": refuse(`2`),
	"n_indent": refuse(`4`), "adaptive_target": refuse(`0.5`),
	"n_keep": honoured, "n_discard": honoured,
	"backend_sampling": harmless(forSpeed), "speculative.n_max": harmless(forSpeed),
	"speculative.n_min": harmless(forSpeed),
	"speculative.p_min": harmless(forSpeed), "preserved_tokens": harmless("it goes with grammar_lazy, which is refused"),
	"grammar_triggers": harmless("likewise"), "adaptive_decay": harmless("it goes with adaptive_target, which is refused"),
	"skip_special_tokens": harmless("markers are read, never shown"), "spaces_between_special_tokens": harmless("likewise"),
	"priority": harmless(forSpeed), "n_cache_reuse": harmless(forSpeed),
	"speculative.type": harmless(forSpeed), "speculative.ngram_size_n": harmless(forSpeed),
	"speculative.ngram_size_m": harmless(forSpeed), "speculative.ngram_m_hits": harmless(forSpeed),
	"verbose": harmless("it asks for more details of the request, not for another answer"),
}

// openAINames are OpenAI's fields that are about an account.
var openAINames = map[string]field{
	"user": harmless(forBilling), "safety_identifier": harmless(forBilling), "service_tier": harmless(forBilling),
	"prompt_cache_key": harmless(forCaches), "prompt_cache_retention": harmless(forCaches),
	"prompt_cache_options": harmless(forCaches), "moderation": refuse(`{"model":"m"}`),
	"audio": refuse(`{"voice":"a"}`), "web_search_options": refuse(`{"user_location":{}}`),
	"context_management": refuse(`[{"type":"compaction"}]`), "best_of": refuse(`2`), "model": honoured, "stream": honoured,
}

// ollamaNames are fields that both of Ollama's ways to ask have.
var ollamaNames = map[string]field{
	"_debug_render_only": refuse(`true`), "width": refuse(`8`), "height": refuse(`8`), "steps": refuse(`8`),
	"truncate": harmless("a conversation that does not fit is an error"), "shift": honoured,
}

// apiFields are the fields of all requests that ask a model something, as the types of the four APIs' clients have
// them.
var apiFields = []struct {
	path   string
	q      any
	base   string // of a request that is right
	inside string // the member that the fields are in
	fields []map[string]field
}{
	{"/v1/chat/completions", chatRequest{}, `"messages":[{"role":"user","content":"x"}],"max_tokens":1`, "",
		[]map[string]field{otherFields, samplingNames, openAINames, {
			"messages": honoured, "tools": honoured, "tool_choice": honoured, "parallel_tool_calls": honoured,
			"functions":     honoured,
			"function_call": honoured, "stream_options": honoured, "n": honoured, "logprobs": honoured, "top_logprobs": honoured,
			"add_generation_prompt": honoured, "continue_final_message": honoured, "chat_template_kwargs": honoured,
			"enable_thinking": honoured, "reasoning_effort": honoured, "verbosity": honoured, "reasoning_format": honoured,
			"reasoning_budget_tokens": honoured, "thinking_budget_tokens": honoured, "response_format": honoured,
			"json_schema": honoured, "grammar": honoured, "modalities": refuse(`["audio"]`),
			"image_max_tokens": honoured, "parse_tool_calls": refuse(`false`),
			"prediction": harmless(forSpeed), "store": harmless("chats are not kept, and nothing asks for them"),
			"metadata": harmless(forBilling),
		}}},
	{"/v1/completions", completionRequest{}, `"prompt":"x","max_tokens":1`, "", []map[string]field{otherFields,
		samplingNames,
		openAINames, {"prompt": honoured, "suffix": honoured, "echo": honoured, "stream_options": honoured, "n": honoured,
			"logprobs": honoured, "response_format": honoured, "json_schema": honoured, "grammar": honoured}}},
	{"/completion", nativeRequest{}, `"prompt":"x","n_predict":1`, "", []map[string]field{otherFields, samplingNames,
		openAINames, {
			"stream_options": harmless("it is about counts that every answer has here"),
			"prompt":         honoured, "n_probs": honoured, "n_cmpl": honoured, "n": honoured,
			"return_tokens": honoured, "response_fields": honoured,
			"response_format": honoured, "json_schema": honoured, "grammar": honoured, "input_prefix": honoured,
			"input_suffix": honoured,
			"input_extra":  honoured}}},
	{"/v1/responses", responsesRequest{}, `"input":"x","max_output_tokens":1`, "", []map[string]field{otherFields, openAINames, {
		"input": honoured, "instructions": honoured, "previous_response_id": honoured, "store": honoured, "include": honoured,
		"top_logprobs": honoured, "conversation": honoured, "prompt": refuse(`{"id":"p"}`),
		"background": honoured,
		"tools":      honoured, "tool_choice": honoured, "parallel_tool_calls": honoured, "max_output_tokens": honoured,
		"text": honoured, "reasoning": honoured, "chat_template_kwargs": honoured, "metadata": honoured,
		"temperature": honoured,
		"top_p":       honoured, "top_k": honoured, "min_p": honoured, "typical_p": honoured, "strobe": honoured,
		"return_progress": honoured,
		"access_programs": harmless(forBilling),
		"truncation":      harmless("a conversation that does not fit is an error, whatever it says"),
		"max_tool_calls":  harmless("it counts tools that run on OpenAI's servers, which are not offered"),
		"stream_options":  harmless("it is about padding of events"),
		"grammar_lazy":    refuse(`true`), "lora": refuse(`[1]`), "image_data": refuse(`[1]`), "t_max_prompt_ms": refuse(`5`),
		"t_max_predict_ms": refuse(`5`), "post_sampling_probs": refuse(`true`), "min_keep": refuse(`2`),
		"n_indent":        refuse(`4`),
		"adaptive_target": refuse(`0.5`),
	}}},
	{"/v1/messages", messagesRequest{}, `"messages":[{"role":"user","content":"x"}],"max_tokens":1`, "", []map[string]field{{
		"model": honoured, "stream": honoured, "max_tokens": honoured, "system": honoured, "messages": honoured,
		"tools":       honoured,
		"tool_choice": honoured, "stop_sequences": honoured, "temperature": honoured, "top_p": honoured, "top_k": honoured,
		"min_p": honoured, "typical_p": honoured, "strobe": honoured, "thinking": honoured, "output_format": honoured,
		"output_config": honoured, "thread": honoured, "mcp_servers": refuse(`[{"type":"url"}]`), "container": refuse(`"c"`),
		"compaction":            refuse(`{"type":"x"}`),
		"diagnostics":           harmless(forCaches),
		"fallbacks":             harmless("no model here declines a request by a policy"),
		"fallback_credit_token": harmless(forBilling),
		"metadata":              harmless(forBilling),
		"service_tier":          harmless(forBilling), "inference_geo": harmless(forBilling),
		"cache_control": harmless(forCaches), "speed": harmless(forSpeed), "betas": harmless("what it allows is read anyway"),
		"context_management": harmless("nothing is cleared: the model sees more of the conversation, until it does not fit"),
	}}},
	{"/api/chat", ollamaRequest{}, `"messages":[{"role":"user","content":"x"}],"stream":false,"options":{"num_predict":1}`, "",
		[]map[string]field{ollamaNames, {"model": honoured, "messages": honoured, "tools": honoured, "prompt": honoured,
			"system": honoured,
			"raw":    honoured, "suffix": honoured, "template": honoured, "images": honoured, "format": honoured,
			"think":  honoured,
			"stream": honoured, "keep_alive": honoured, "logprobs": honoured, "top_logprobs": honoured, "context": honoured,
			"options": honoured}}},
	{"/api/generate", ollamaRequest{}, `"prompt":"x","stream":false,"options":{"num_predict":1}`, "",
		[]map[string]field{ollamaNames, {"model": honoured, "messages": honoured, "tools": honoured, "prompt": honoured,
			"system": honoured,
			"raw":    honoured, "suffix": honoured, "template": refuse(`"{{ .Prompt }}"`), "images": honoured,
			"format": honoured, "think": honoured, "stream": honoured, "keep_alive": honoured, "logprobs": honoured,
			"top_logprobs": honoured, "context": honoured, "options": honoured}}},
	{"/api/chat", ollamaOptions{}, `"messages":[{"role":"user","content":"x"}],"stream":false`, "options",
		[]map[string]field{otherFields, samplingNames, {"num_predict": honoured, "best_of": refuse(`2`),
			"audio":              refuse(`{"a":1}`),
			"web_search_options": refuse(`{"a":1}`), "context_management": refuse(`[1]`), "moderation": refuse(`{"a":1}`),
			"num_ctx":  harmless("the context is the server's; one that is larger than asked for changes no answer that fits"),
			"num_keep": honoured, "penalize_newline": harmless("Ollama itself has not read it for years"),
			"num_batch": harmless(forSpeed), "num_gpu": harmless(forSpeed), "main_gpu": harmless(forSpeed),
			"use_mmap":  harmless(forSpeed),
			"use_mlock": harmless(forSpeed), "num_thread": harmless(forSpeed), "numa": harmless(forSpeed),
			"low_vram": harmless(forSpeed),
			"f16_kv":   harmless("the type of the cache is the server's"), "vocab_only": harmless("it loads no model, and ours is loaded"),
		}}},
	{"/api/chat", ollamaMessage{}, `"stream":false,"options":{"num_predict":1}`, "messages", []map[string]field{{
		"role": honoured, "content": honoured, "thinking": honoured, "images": honoured, "tool_calls": honoured,
		"tool_name": honoured, "tool_call_id": honoured}}},
	{"/v1/responses", member(responsesRequest{}, "Reasoning"), "", "reasoning", []map[string]field{{
		"effort": honoured, "summary": honoured, "generate_summary": honoured,
		"context": harmless("the chat template decides which reasoning the model sees again"),
		"mode":    harmless("it chooses among services of OpenAI")}}},
	{"/v1/responses", member(responsesRequest{}, "Text"), "", "text", []map[string]field{{
		"format": honoured, "verbosity": honoured}}},
	{"/v1/chat/completions", streamOptions{}, "", "stream_options", []map[string]field{{
		"include_usage": honoured, "include_obfuscation": harmless("it is about padding of events")}}},
	{"/v1/messages", member(messagesRequest{}, "OutputConfig"), "", "output_config", []map[string]field{{
		"format": honoured, "effort": honoured,
		"task_budget": harmless("it is a number in the prompt of other models; those here were not trained with it")}}},
	{"/v1/messages", member(messagesRequest{}, "Thinking"), "", "thinking", []map[string]field{{
		"type": honoured, "budget_tokens": honoured,
		"display":       harmless("thinking is shown; it can be left unread"),
		"block_binding": harmless("blocks are not signed here")}}},
	{"/v1/messages", anthropicChoice{}, "", "tool_choice", []map[string]field{{
		"type": honoured, "name": honoured, "disable_parallel_tool_use": honoured}}},
	{"/v1/embeddings", embeddingRequest{}, `"input":"x"`, "", []map[string]field{{
		"input": honoured, "model": honoured, "encoding_format": honoured, "dimensions": honoured,
		"user": harmless(forBilling)}}},
	{"/embedding", nativeEmbedding{}, `"content":"x"`, "", []map[string]field{{
		"content": honoured, "model": honoured, "embd_normalize": refuse(`-1`)}}},
	{"/api/embed", ollamaEmbed{}, `"input":"x"`, "", []map[string]field{{
		"input": honoured, "prompt": honoured, "model": honoured, "dimensions": honoured, "truncate": honoured,
		"keep_alive": honoured, "options": harmless("they are about sampling and the memory of a model")}}},
	{"/tokenize", tokenizeRequest{}, `"content":"x"`, "", []map[string]field{{
		"content": honoured, "model": honoured, "add_special": honoured, "parse_special": honoured,
		"with_pieces": honoured}}},
	{"/detokenize", detokenizeRequest{}, `"tokens":[1]`, "", []map[string]field{{
		"tokens": honoured, "model": honoured}}},
}

// member is the value of a field of a struct.
func member(v any, name string) any {
	f, ok := reflect.TypeOf(v).FieldByName(name)
	if !ok {
		panic(name)
	}
	return reflect.New(f.Type.Elem()).Elem().Interface()
}

// TestFieldsOfClients: every field that the types of published clients have is listed above. testdata/fields.txt has
// their names; e2e compares it with the clients themselves.
func TestFieldsOfClients(t *testing.T) {
	text, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		path, inside, _ := strings.Cut(words[0], "#")
		listed := map[string]bool{}
		for _, api := range apiFields {
			for _, group := range api.fields {
				for name := range group {
					if api.path == path && api.inside == inside {
						listed[name] = true
					}
				}
			}
		}
		for _, name := range words[2:] {
			seen++
			if !listed[name] {
				t.Errorf("%s: %s of %s is neither honoured nor refused nor listed as harmless", words[0], name, words[1])
			}
		}
	}
	if seen < 150 {
		t.Fatalf("only %d fields were read", seen)
	}
}

// TestNoFieldIgnored: every field of the four APIs that changes answers is read or refused; those that are ignored are
// here with the reason. A field that is added to a request has to be added here.
func TestNoFieldIgnored(t *testing.T) {
	f := start(t, options{template: hermesTemplate, plain: true})
	for _, api := range apiFields {
		read := jsonNames(reflect.TypeOf(api.q))
		all := map[string]bool{}
		for _, group := range api.fields {
			for name, x := range group {
				all[name] = true
				if known := slices.Contains(read, name); known != (x.harmless == "") {
					t.Errorf("%s: %s is read: %v, and is listed as harmless: %q", api.path, name, known, x.harmless)
				}
				if x.refused == "" {
					continue
				}
				body := `{` + api.base + `,"` + name + `":` + x.refused + `}`
				if api.inside != "" {
					body = `{` + api.base + `,"` + api.inside + `":{"` + name + `":` + x.refused + `}}`
				}
				status, b := f.do("POST", api.path, body)
				if status != http.StatusBadRequest && status != http.StatusNotImplemented || !strings.Contains(string(b), name) {
					t.Errorf("%s: %s is not refused: %d %.200s", api.path, body, status, b)
				}
			}
		}
		for _, name := range read {
			if !all[name] {
				t.Errorf("%s: %s is read and not listed", api.path, name)
			}
		}
	}
}
