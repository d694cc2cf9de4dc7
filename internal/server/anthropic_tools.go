package server

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"strings"
)

// clientToolShape is a tool of Anthropic's that the client runs. The model sees a function of its shape.
type clientToolShape struct{ description, schema string }

// clientToolShapes are these tools by their type without its date.
var clientToolShapes = map[string]clientToolShape{
	"bash": {"Runs a command in a shell that stays open between calls.",
		`{"type":"object","properties":{"command":{"type":"string"},"restart":{"type":"boolean",` +
			`"description":"true starts the shell anew"}}}`},
	"text_editor": {"Shows, creates and changes files.",
		`{"type":"object","properties":{"command":{"enum":["view","create","str_replace","insert"]},` +
			`"path":{"type":"string"},"file_text":{"type":"string","description":"of create: the whole file"},` +
			`"old_str":{"type":"string","description":"of str_replace: occurs once"},"new_str":{"type":"string"},` +
			`"insert_line":{"type":"integer","description":"the line after which to insert"},"insert_text":{"type":"string"},` +
			`"view_range":{"type":"array","items":{"type":"integer"},"description":"first and last line to show"}},` +
			`"required":["command","path"]}`},
	"memory": {"Keeps notes in files below /memories from one conversation to the next.",
		`{"type":"object","properties":{"command":{"enum":["view","create","str_replace","insert","delete","rename"]},` +
			`"path":{"type":"string"},"file_text":{"type":"string"},"old_str":{"type":"string"},"new_str":{"type":"string"},` +
			`"insert_line":{"type":"integer"},"insert_text":{"type":"string"},"old_path":{"type":"string"},` +
			`"new_path":{"type":"string"},"view_range":{"type":"array","items":{"type":"integer"}}},"required":["command"]}`},
	"computer": {"Uses the user's screen, mouse and keyboard.",
		`{"type":"object","properties":{"action":{"enum":["key","type","mouse_move","left_click","left_click_drag",` +
			`"right_click","middle_click","double_click","triple_click","screenshot","cursor_position","left_mouse_down",` +
			`"left_mouse_up","scroll","hold_key","wait","zoom"]},"coordinate":{"type":"array","items":{"type":"integer"}},` +
			`"start_coordinate":{"type":"array","items":{"type":"integer"}},"text":{"type":"string"},` +
			`"scroll_direction":{"enum":["up","down","left","right"]},"scroll_amount":{"type":"integer"},` +
			`"duration":{"type":"number"},"region":{"type":"array","items":{"type":"integer"}}},"required":["action"]}`},
}

// anthropicHosted run on Anthropic's servers. They are left out, so that clients which always offer them work.
var anthropicHosted = map[string]bool{"web_search": true, "web_fetch": true, "code_execution": true,
	"tool_search_tool_regex": true, "tool_search_tool_bm25": true}

// anthropicClientTool is the function of a tool whose type is not custom; nil for one that runs on Anthropic's servers.
func anthropicClientTool(kind, name, at string) (json.RawMessage, error) {
	base, _, _ := strings.Cut(kind, "_20") // the date of its version
	if anthropicHosted[base] {
		return nil, nil
	}
	shape, ok := clientToolShapes[base]
	if !ok {
		return nil, invalid(at+".type", "%q is not supported", kind)
	}
	if name == "" {
		return nil, invalid(at+".name", "is missing")
	}
	return functionTool(name, shape.description, json.RawMessage(shape.schema))
}

// refuse names what this server cannot do and a client must not believe it did.
func (q *messagesRequest) refuse() error {
	switch {
	case len(q.MCPServers) > 0:
		return invalid("mcp_servers", "is not supported; offer their tools in tools and run them yourself")
	case kindOf(q.Container) != "null":
		return invalid("container", "is not supported; nothing runs on this server but the model")
	case kindOf(q.Compaction) != "null":
		return invalid("compaction", "is not supported; ask the model for a summary and begin a new conversation with it")
	}
	return nil
}

// document is the text of a document, after its title and what is said of it.
func (b *block) document(at string) (string, error) {
	src, text := b.Source, ""
	switch {
	case src == nil:
		return "", invalid(at+".source", "is missing")
	case src.Type == "text":
		text = src.Data
	case src.Type == "content":
		list, err := blocks(src.Content, at+".source.content")
		if err != nil {
			return "", err
		}
		for i, part := range list {
			if part.Type != "text" || part.Text == nil {
				return "", invalid(at+".source.content"+index(i), "must be text")
			}
			text += *part.Text + "\n"
		}
	case src.Type == "base64" && strings.HasPrefix(src.Media, "text/"):
		data, err := base64.StdEncoding.DecodeString(src.Data)
		if err != nil {
			return "", invalid(at+".source.data", "is not base64: %v", err)
		}
		text = strings.ToValidUTF8(string(data), "\ufffd")
	default:
		return "", invalid(at+".source", "documents of type %q are not read here; send their text", cmp.Or(src.Media, src.Type))
	}
	var head strings.Builder
	for _, s := range []string{b.Title, b.Context} {
		if s != "" {
			head.WriteString(s + "\n\n")
		}
	}
	return head.String() + text, nil
}
