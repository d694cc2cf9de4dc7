package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"strobe/internal/sample"
	"strobe/internal/server"
)

// setFlag sets a flag to a value of TOML. A table becomes JSON, a list several values.
func setFlag(flags *pflag.FlagSet, name string, v any) error {
	if flags.Lookup(name) == nil {
		return fmt.Errorf("there is no setting %q", name)
	}
	values, isList := v.([]any)
	if !isList {
		values = []any{v}
	}
	for _, v := range values {
		text := fmt.Sprint(v)
		if table, ok := v.(map[string]any); ok {
			b, err := json.Marshal(table)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			text = string(b)
		}
		if err := flags.Set(name, text); err != nil {
			if wrong := (*pflag.InvalidValueError)(nil); errors.As(err, &wrong) {
				return badValue(wrong)
			}
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// givenSampling is what the flags that were set say of sampling. The others leave it to the model.
func givenSampling(flags *pflag.FlagSet, p *sample.Params) (d sample.Defaults) {
	for name, x := range map[string]struct {
		from *float32
		to   **float32
	}{
		"temp": {&p.Temp, &d.Temp}, "top-p": {&p.TopP, &d.TopP}, "min-p": {&p.MinP, &d.MinP}, "typical-p": {&p.TypicalP,
			&d.TypicalP},
		"repeat-penalty": {&p.RepeatPenalty, &d.RepeatPenalty}, "presence-penalty": {&p.PresencePenalty, &d.PresencePenalty},
		"frequency-penalty": {&p.FrequencyPenalty, &d.FrequencyPenalty},
	} {
		if flags.Changed(name) {
			*x.to = x.from
		}
	}
	for name, x := range map[string]struct {
		from *int
		to   **int
	}{"top-k": {&p.TopK, &d.TopK}, "repeat-last-n": {&p.RepeatLastN, &d.RepeatLastN}} {
		if flags.Changed(name) {
			*x.to = x.from
		}
	}
	return d
}

// chatFlags are what conversations have that say nothing else.
type chatFlags struct {
	kwargs, thinking, system string
}

func (c *chatFlags) add(f *pflag.FlagSet) {
	f.StringVar(&c.kwargs, "chat-template-kwargs", c.kwargs,
		`variables of the chat template as JSON, for requests that do not set them: {"x": 1}`)
	f.StringVar(&c.thinking, "thinking", c.thinking,
		"reasoning when the request does not say: auto (as the template has it), on or off")
	f.StringVar(&c.system, "system", c.system, "message of the system for conversations that have none")
}

func (c *chatFlags) defaults() (d server.ChatDefaults, err error) {
	d.System = c.system
	switch c.thinking {
	case "auto":
	case "on", "off":
		on := c.thinking == "on"
		d.Thinking = &on
	default:
		return d, usagef("--thinking %q: want auto, on or off", c.thinking)
	}
	if c.kwargs != "" {
		if err := json.Unmarshal([]byte(c.kwargs), &d.Kwargs); err != nil || d.Kwargs == nil {
			return d, usagef("--chat-template-kwargs: %q is not an object of JSON", c.kwargs)
		}
	}
	return d, nil
}

// modelDefaults reads the tables of single models: settings of sampling and conversations, max-tokens, and how the
// model is loaded. What a table does not say is as the flags have it.
func (o *serveOptions) modelDefaults() (map[string]server.ModelDefaults, error) {
	out := map[string]server.ModelDefaults{}
	o.presets = map[string]*preset{}
	for name, table := range o.tables {
		cmd := &cobra.Command{}
		var s sampleFlags
		s.add(cmd, 0)
		var d server.ModelDefaults
		cmd.Flags().IntVar(&d.MaxTokens, "max-tokens", 0, "")
		chat := o.chatFlags
		chat.add(cmd.Flags())
		p := &preset{}
		p.add(cmd)
		o.presets[name] = p
		for _, key := range slices.Sorted(maps.Keys(table)) {
			if slices.Contains(notPerModel, key) {
				return nil, fmt.Errorf("%s.%q: %s is the same for all models of a server", modelTables, name, key)
			}
			if err := setFlag(cmd.Flags(), key, table[key]); err != nil {
				return nil, fmt.Errorf("%s.%q: %w", modelTables, name, err)
			}
			p.loads = p.loads || key != "model" && key != "alias" && loadingFlags().Lookup(key) != nil
		}
		if err := p.inherit(o.modelFlags.cmd.Flags(), table); err != nil {
			return nil, fmt.Errorf("%s.%q: %w", modelTables, name, err)
		}
		if _, err := p.modelFlags.options(); err != nil {
			return nil, fmt.Errorf("%s.%q: %w", modelTables, name, err)
		}
		if err := s.Params.Validate(); err != nil {
			return nil, fmt.Errorf("%s.%q: %w", modelTables, name, err)
		}
		d.Sampling = givenSampling(cmd.Flags(), &s.Params)
		c, err := chat.defaults()
		if err != nil {
			return nil, fmt.Errorf("%s.%q: %w", modelTables, name, err)
		}
		d.Chat = &c
		out[name] = d
	}
	return out, nil
}
