package server

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"strobe/internal/chat"
	"strobe/internal/dialog"
)

// responsesRequest is the body of POST /v1/responses.
type responsesRequest struct {
	Model             string            `json:"model"`
	Input             json.RawMessage   `json:"input"`
	Instructions      *string           `json:"instructions"`
	Previous          *string           `json:"previous_response_id"`
	Store             *bool             `json:"store"`
	Include           []string          `json:"include"`
	TopLogProbs       int               `json:"top_logprobs"`
	Conversation      json.RawMessage   `json:"conversation"`
	Prompt            json.RawMessage   `json:"prompt"`
	Background        bool              `json:"background"`
	Tools             []json.RawMessage `json:"tools"`
	ToolChoice        json.RawMessage   `json:"tool_choice"`
	ParallelToolCalls *bool             `json:"parallel_tool_calls"`
	MaxOutputTokens   *int              `json:"max_output_tokens"`
	ReturnProgress    bool              `json:"return_progress"` // llama.cpp's
	commonSampling
	Stream bool `json:"stream"`
	Text   *struct {
		Format    *responseFormat `json:"format"`
		Verbosity string          `json:"verbosity"`
	} `json:"text"`
	Reasoning *struct {
		Effort     string `json:"effort"`
		Summary    string `json:"summary"`
		OldSummary string `json:"generate_summary"` // what it was called before
	} `json:"reasoning"`
	Kwargs   map[string]any  `json:"chat_template_kwargs"`
	Metadata json.RawMessage `json:"metadata"`
	refusedFields

	items []json.RawMessage   // the input, with ids
	talk  string              // the id of the conversation; "" is none
	added []json.RawMessage   // what the input adds to it
	names map[string]toolName // of tools in namespaces, by what the model calls them
	kinds map[string]string   // types of tools whose shape the API fixes, likewise
}

// toolName is the name of a tool in a namespace.
type toolName struct{ namespace, name string }

// flat is what the model calls a tool: templates know no namespaces.
func (n toolName) flat() string {
	if n.namespace == "" || strings.HasSuffix(n.namespace, "__") {
		return n.namespace + n.name
	}
	return n.namespace + "__" + n.name
}

// inputItem is an element of the input.
type inputItem struct {
	Type      *string         `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Summary   json.RawMessage `json:"summary"`
	Encrypted string          `json:"encrypted_content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
	Input     string          `json:"input"`  // of a custom tool's call
	Action    json.RawMessage `json:"action"` // of other calls that the client runs, like the next one
	Operation json.RawMessage `json:"operation"`
	Status    string          `json:"status"`
}

// refuse names what this server cannot do and a client must not believe it did.
func (q *responsesRequest) refuse() error {
	switch {
	case kindOf(q.Prompt) == "object":
		return invalid("prompt", "is not supported; this server keeps no prompts")
	}
	return q.refusedFields.check()
}

func (s *openAI) responsesConversation(r *http.Request, q *responsesRequest) (*conversation, error) {
	if err := q.refuse(); err != nil {
		return nil, err
	}
	sampling := &samplingFields{commonSampling: q.commonSampling, MaxTokens: q.MaxOutputTokens,
		ReturnProgress: q.ReturnProgress}
	c := newConversation(q.Model, sampling, q.Stream)
	if q.TopLogProbs != 0 || slices.Contains(q.Include, "message.output_text.logprobs") {
		if err := c.wantLogProbs("top_logprobs", q.TopLogProbs); err != nil {
			return nil, err
		}
	}
	if q.Instructions != nil && *q.Instructions != "" {
		c.messages = append(c.messages, chat.Message{Role: "system", Content: *q.Instructions})
	}
	var err error
	if q.items, err = inputItems(q.Input); err != nil {
		return nil, err
	}
	if q.talk, err = q.conversationID(); err != nil {
		return nil, err
	}
	before := q.talk
	if q.Previous != nil {
		if before = *q.Previous; isConversation(before) {
			return nil, invalid("previous_response_id", "%q is a conversation; send it as conversation", before)
		}
	}
	items, err := s.recall(ownerOf(r.Context()), before, q.items)
	if err != nil {
		return nil, err
	}
	if q.talk != "" {
		for _, it := range items[len(items)-len(q.items):] {
			q.added = append(q.added, it.raw)
		}
	}
	input, err := inputMessages(items)
	if err != nil {
		return nil, err
	}
	c.messages = append(c.messages, input...)
	if err := q.tools(c); err != nil {
		return nil, err
	}
	if c.choice, err = decodeChoice(q.ToolChoice, c.tools); err != nil {
		return nil, err
	}
	c.tools = c.choice.offered(c.tools)
	c.oneCall = q.ParallelToolCalls != nil && !*q.ParallelToolCalls
	if q.Text != nil {
		if c.format, err = q.Text.Format.format(); err != nil {
			return nil, err
		}
	}
	t := thinkingFields{Kwargs: q.Kwargs}
	if q.Reasoning != nil {
		t.ReasoningEffort = q.Reasoning.Effort
	}
	if q.Text != nil {
		t.Verbosity = q.Text.Verbosity
	}
	return c, t.apply(c)
}

// tools adds the functions among the request's tools, those in namespaces under one name each.
func (q *responsesRequest) tools(c *conversation) error {
	q.names, q.kinds = map[string]toolName{}, map[string]string{}
	var add func(raw json.RawMessage, at, namespace string) error
	add = func(raw json.RawMessage, at, namespace string) error {
		var t struct {
			Type        string            `json:"type"`
			Name        string            `json:"name"`
			Description string            `json:"description"`
			Parameters  json.RawMessage   `json:"parameters"`
			Tools       []json.RawMessage `json:"tools"`
			Format      *customFormat     `json:"format"`
		}
		if err := decodeFields(raw, at, &t); err != nil {
			return err
		}
		switch {
		case t.Type == "namespace" && namespace != "":
			return invalid(at+".type", "a namespace cannot be inside another one")
		case t.Type == "namespace":
			if t.Name == "" {
				return invalid(at+".name", "is missing")
			}
			for i, raw := range t.Tools {
				if err := add(raw, at+".tools"+index(i), t.Name); err != nil {
					return err
				}
			}
			return nil
		case hosted(t.Type):
			return nil
		case t.Type == "mcp":
			return invalid(at+".type", "this server asks no other servers for tools; offer them as functions")
		case t.Type != "function":
			known, ok := clientTools[t.Type]
			if !ok {
				return invalid(at+".type", "%q is not supported", t.Type)
			}
			if known.name != "" {
				t.Name, t.Description = known.name, known.description
			}
			var err error
			if t.Parameters = json.RawMessage(known.parameters); t.Type == "custom" {
				if t.Parameters, err = t.Format.schema(at + ".format"); err != nil {
					return err
				}
			}
			q.kinds[toolName{namespace, t.Name}.flat()] = t.Type
		}
		if t.Name == "" {
			return invalid(at+".name", "is missing")
		}
		if k := kindOf(t.Parameters); k == "null" {
			t.Parameters = nil
		} else if k != "object" {
			return invalid(at+".parameters", "must be an object")
		}
		name := toolName{namespace, t.Name}
		if other, given := q.names[name.flat()]; given && (namespace != "" || other.namespace != "") {
			return invalid(at+".name", "%q is the name of two tools", name.flat())
		}
		q.names[name.flat()] = name
		tool, err := functionTool(name.flat(), t.Description, t.Parameters)
		c.tools = append(c.tools, tool)
		return err
	}
	for i, raw := range q.Tools {
		if err := add(raw, "tools"+index(i), ""); err != nil {
			return err
		}
	}
	if len(c.tools) > maxTools {
		return invalid("tools", "has %d functions; at most %d are allowed", len(c.tools), maxTools)
	}
	return nil
}

// inputItems is the input as a list of items with an id each.
func inputItems(raw json.RawMessage) ([]json.RawMessage, error) {
	var items []json.RawMessage
	switch kindOf(raw) {
	case "string":
		item, err := json.Marshal(struct {
			Type    string          `json:"type"`
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		}{"message", "user", raw})
		if err != nil {
			return nil, invalid("input", "%v", err)
		}
		items = []json.RawMessage{item}
	case "array":
		if err := decodeJSON(raw, "input", &items); err != nil {
			return nil, err
		}
	case "null":
		return nil, invalid("input", "is missing")
	default:
		return nil, invalid("input", "must be a string or a list of items")
	}
	return withIDs(items, "input")
}

// withIDs gives items that have no id one. at is where they stand in the request.
func withIDs(items []json.RawMessage, at string) ([]json.RawMessage, error) {
	for i, item := range items {
		if kindOf(item) != "object" {
			return nil, invalid(at+index(i), "must be an object")
		}
		id, reference := itemID(item)
		switch {
		case id == "" && reference:
			return nil, invalid(at+index(i)+".id", "is missing")
		case id == "":
			head, comma := `{"id":"`+newID("item_")+`"`, ","
			body := strings.TrimSpace(string(item))[1:]
			if strings.TrimSpace(body) == "}" {
				comma = ""
			}
			items[i] = json.RawMessage(head + comma + body)
		}
	}
	return items, nil
}

// inputMessages turns items into messages. What the model said in several items is one message.
func inputMessages(items []placedItem) ([]chat.Message, error) {
	var out []chat.Message
	// assistant is the message that items of the model are gathered in.
	assistant := func() *chat.Message {
		if n := len(out); n == 0 || out[n-1].Role != "assistant" {
			out = append(out, chat.Message{Role: "assistant", Content: ""})
		}
		return &out[len(out)-1]
	}
	for _, item := range items {
		at := item.at
		var it inputItem
		if err := decodeJSON(item.raw, at, &it); err != nil {
			return nil, err
		}
		kind := "message"
		if it.Type != nil {
			kind = *it.Type
		}
		switch kind {
		case "message":
			content, err := itemContent(it.Content, at+".content", false)
			if err != nil {
				return nil, err
			}
			switch it.Role {
			case "assistant":
				text, err := itemText(it.Content, at+".content")
				if err != nil {
					return nil, err
				}
				m := assistant()
				m.Content = m.Content.(string) + text
			case "user", "system", "developer":
				out = append(out, chat.Message{Role: it.Role, Content: content})
			default:
				return nil, invalid(at+".role", "%q is none of user, assistant, system and developer", it.Role)
			}
		case "function_call":
			if it.Name == "" {
				return nil, invalid(at+".name", "is missing")
			}
			args := json.RawMessage(it.Arguments)
			if !json.Valid(args) {
				var err error
				if args, err = json.Marshal(it.Arguments); err != nil {
					return nil, err
				}
			}
			m := assistant()
			name := toolName{it.Namespace, it.Name}.flat()
			m.ToolCalls = append(m.ToolCalls, chat.ToolCall{ID: it.CallID, Name: name, Arguments: args})
		case "function_call_output":
			content, err := itemContent(it.Output, at+".output", true)
			if err != nil {
				return nil, err
			}
			out = append(out, chat.Message{Role: "tool", Content: content, ToolCallID: it.CallID})
		case "reasoning":
			text, err := it.reasoning(at)
			if err != nil {
				return nil, err
			}
			if text != "" {
				assistant().Reasoning += text
			}
		default:
			call, ok, err := it.clientCallMessage(kind)
			switch {
			case err != nil:
				return nil, err
			case ok:
				m := assistant()
				m.ToolCalls = append(m.ToolCalls, call)
			case isClientOutput(kind):
				content, err := it.result(at + ".output")
				if err != nil {
					return nil, err
				}
				out = append(out, chat.Message{Role: "tool", Content: content, ToolCallID: it.CallID})
			default:
				return nil, invalid(at+".type", "%q is not supported", kind)
			}
		}
	}
	if len(out) == 0 {
		return nil, invalid("input", "is empty")
	}
	return out, nil
}

// sealed is how our own encrypted_content begins. Clients that store nothing here ask for it and send it back. It holds
// text they have seen anyway, so it is encoded and not encrypted.
const sealed = "strobe:"

func seal(text string) string { return sealed + base64.StdEncoding.EncodeToString([]byte(text)) }

// reasoning is the text of a reasoning item, wherever the client kept it.
func (it *inputItem) reasoning(at string) (string, error) {
	text, err := itemText(it.Content, at+".content")
	if err != nil || text != "" {
		return text, err
	}
	if code, ok := strings.CutPrefix(it.Encrypted, sealed); ok {
		if b, err := base64.StdEncoding.DecodeString(code); err == nil {
			return string(b), nil
		}
		return "", invalid(at+".encrypted_content", "is damaged")
	}
	return itemText(it.Summary, at+".summary")
}

// contentPart is an element of a list of contents.
type contentPart struct {
	Type string  `json:"type"`
	Text *string `json:"text"`
	responseImage
}

// itemText is the text of a string or of a list of parts.
func itemText(raw json.RawMessage, at string) (string, error) {
	content, err := itemContent(raw, at, false)
	text, ok := content.(string)
	if err == nil && !ok {
		err = invalid(at, "must be text")
	}
	return text, err
}

// itemContent is a string or a list of parts. In the result of a tool, what is neither text nor an image is mentioned.
func itemContent(raw json.RawMessage, at string, result bool) (any, error) {
	list, err := decodeBlocks(raw, at, func(text *string) contentPart { return contentPart{Type: "text", Text: text} })
	if err != nil {
		return nil, err
	}
	var said contents
	for i, b := range list {
		switch {
		case slices.Contains([]string{"text", "input_text", "output_text", "reasoning_text", "summary_text"}, b.Type):
			if b.Text == nil {
				return nil, invalid(at+index(i)+".text", "is missing")
			}
			said.text(*b.Text)
		case b.Type == "refusal":
		case (b.Type == "input_image" || b.Type == "computer_screenshot" && result) && (b.ImageURL != "" || !result):
			p, err := b.part(at + index(i))
			if err != nil {
				return nil, err
			}
			said.image(p)
		case result:
			said.text(dialog.Placeholder(b.Type))
		default:
			return nil, invalid(at+index(i)+".type", "%q is not supported; this server takes text and images", b.Type)
		}
	}
	return said.content(), nil
}
