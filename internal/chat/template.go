package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"strobe/internal/chat/jinja"
)

// Template is a model's chat template.
type Template struct {
	source   string
	jinja    *jinja.Template
	fallback bool

	probe sync.Once
	caps  caps
}

// Options of one rendering. The zero value renders the messages alone.
type Options struct {
	Tools               []json.RawMessage // OpenAI tool objects; their key order reaches the prompt
	AddGenerationPrompt bool              // end with the opening of the assistant's turn
	EnableThinking      *bool             // nil leaves the choice to the template
	Extra               map[string]any    // more template variables (chat_template_kwargs)
	BOS, EOS            string            // text of the model's special tokens
	Now                 time.Time         // what the template's clock shows; zero is the current time
	// Strict gives the messages to the template exactly as they are, as
	// transformers does, and fails where it fails.
	Strict bool
	// Limits of the template's work; zero fields take the defaults.
	Limits jinja.Limits
	// Done ends the rendering with an error when it is closed; nil never does.
	Done <-chan struct{}
}

// chatML is used for models without a template: the turn markers most open
// models learnt. It cannot describe tools.
const chatML = `{%- if tools %}
    {{- raise_exception('the model file has no chat template, so tools cannot be described to the model') }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}`

// ParseTemplate reads a template; name stands in front of its error messages.
func ParseTemplate(name, source string) (*Template, error) {
	t, err := jinja.Parse(name, source)
	if err != nil {
		return nil, err
	}
	return &Template{source: source, jinja: t}, nil
}

// ForModel reads the template of a model file, or gives the ChatML fallback
// when the file has none.
func ForModel(source string) (*Template, error) {
	if source == "" {
		t, err := ParseTemplate("built-in chat template", chatML)
		if err != nil {
			return nil, err
		}
		t.fallback = true
		return t, nil
	}
	return ParseTemplate("chat template", source)
}

// Source returns the text of the template.
func (t *Template) Source() string { return t.source }

// Fallback reports whether this is the built-in template of models without one.
func (t *Template) Fallback() bool { return t.fallback }

// Tools reports whether the template can describe tools.
func (t *Template) Tools() bool { return t.jinja.HasName("tools") && !t.fallback }

// Thinking reports whether the template has a switch for thinking.
func (t *Template) Thinking() bool { return t.jinja.HasName("enable_thinking") }

// asksDefined finds templates that know what to do without enable_thinking.
var asksDefined = regexp.MustCompile(`enable_thinking\s+is\s+(not\s+)?(un)?defined|enable_thinking\s*\|\s*default`)

// reserved are the variables Extra cannot set.
var reserved = map[string]bool{"messages": true, "tools": true, "add_generation_prompt": true}

// Render returns the prompt for the messages. An error of the template is a
// *jinja.Error; when its Raised field is set, the template refused the
// conversation.
func (t *Template) Render(msgs []Message, opt Options) (string, error) {
	text, _, err := t.render(msgs, opt)
	return text, err
}

// rendering is what a prompt was rendered from, for rendering it again.
type rendering struct {
	vars *jinja.Dict
	said *jinja.Dict // what clients wrote: messages in the shape that was accepted, tools, extra variables
	opt  jinja.Options
}

func (t *Template) render(msgs []Message, opt Options) (string, *rendering, error) {
	r := &rendering{vars: jinja.NewDict(), said: jinja.NewDict(),
		opt: jinja.Options{Now: opt.Now, Limits: opt.Limits, Done: opt.Done}}
	if r.opt.Now.IsZero() {
		r.opt.Now = time.Now() // one clock for all attempts
	}
	vars := r.vars
	var tools any // transformers passes None, not an undefined name
	if len(opt.Tools) > 0 {
		l := jinja.NewList()
		for i, raw := range opt.Tools {
			v, err := jinja.FromJSON(raw)
			if err != nil {
				return "", nil, fmt.Errorf("tools[%d]: %w", i, err)
			}
			l.Items = append(l.Items, v)
		}
		tools = l
	}
	r.said.Set("tools", tools)
	vars.Set("documents", nil)
	vars.Set("add_generation_prompt", opt.AddGenerationPrompt)
	vars.Set("bos_token", opt.BOS)
	vars.Set("eos_token", opt.EOS)
	if opt.EnableThinking != nil {
		vars.Set("enable_thinking", *opt.EnableThinking)
	} else if !opt.Strict && t.jinja.HasName("enable_thinking") && !asksDefined.MatchString(t.source) {
		// It takes what is missing for false; its model thinks unless that is switched off, as elsewhere.
		vars.Set("enable_thinking", true)
	}
	if !opt.Strict && t.jinja.HasName("date_string") { // else some take the day the template was written for today
		vars.Set("date_string", r.opt.Now.Format("02 Jan 2006"))
	}
	for k, v := range opt.Extra {
		if reserved[k] {
			return "", nil, fmt.Errorf("chat_template_kwargs: %s cannot be set", k)
		}
		x, err := jinja.FromGo(v)
		if err != nil {
			return "", nil, fmt.Errorf("chat_template_kwargs: %s: %w", k, err)
		}
		r.said.Set(k, x)
	}
	var err error
	var text string
	if opt.Strict {
		text, err = t.again(r, msgs, shape{})
	} else {
		text, err = t.renderAdapted(msgs, r)
		if err != nil && describe(tools) { // gpt-oss's needs a description of every tool
			text, err = t.renderAdapted(msgs, r)
		}
	}
	return text, r, err
}

// describe gives an empty description to functions without one and reports whether there were any.
func describe(tools any) (changed bool) {
	list, ok := tools.(*jinja.List)
	if !ok {
		return false
	}
	for _, tool := range list.Items {
		d, ok := tool.(*jinja.Dict)
		if !ok {
			continue
		}
		f, _ := d.Get("function")
		if d, ok = f.(*jinja.Dict); !ok {
			continue
		}
		if _, given := d.Get("description"); !given {
			d.Set("description", "")
			changed = true
		}
	}
	return changed
}

// again renders with messages in another shape.
func (t *Template) again(r *rendering, msgs []Message, s shape) (string, error) {
	list, err := values(msgs, s)
	if err != nil {
		return "", err
	}
	r.said.Set("messages", list)
	return t.say(r, r.said)
}

// say renders what clients wrote, or something in its place.
func (t *Template) say(r *rendering, said *jinja.Dict) (string, error) {
	r.vars.Merge(said)
	return t.jinja.Render(r.vars, r.opt)
}

// renderAdapted renders the messages in the shape the template takes. What the
// probe could not tell is tried: the first shape that renders wins, so a
// conversation transformers renders is rendered in the same way.
func (t *Template) renderAdapted(msgs []Message, r *rendering) (string, error) {
	t.probe.Do(t.findCaps)
	var first error
	for _, s := range t.shapes(msgs) {
		adapted, err := t.adapt(msgs, s)
		if err != nil {
			return "", err
		}
		text, err := t.again(r, adapted, s)
		if err == nil {
			return text, nil
		}
		if first == nil {
			first = err
		}
		var je *jinja.Error
		if errors.As(err, &je) && je.Limit {
			break
		}
	}
	return "", first
}
