package convert

import (
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxCard bounds the front matter of a model card in bytes. Cards with long
// tables of evaluation results have about one megabyte.
const maxCard = 4 << 20

// readCard reads the YAML front matter of a model card: text and lists of text
// at the top level. Everything else, such as evaluation results, is skipped.
// A card that is not valid YAML says nothing.
func readCard(path string) (map[string]any, error) {
	data, err := readFile(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(strings.ReplaceAll(string(data), "\r\n", "\n"), "---\n")
	text, _, _ = strings.Cut(text, "\n---\n")
	var doc yaml.Node
	if !ok || len(text) > maxCard || yaml.Unmarshal([]byte(text), &doc) != nil || len(doc.Content) == 0 ||
		doc.Content[0].Kind != yaml.MappingNode {
		return nil, nil
	}
	// Nodes are read as they stand: nothing follows an alias, so a small card cannot grow.
	card := map[string]any{}
	pairs := doc.Content[0].Content
	for i := 0; i+1 < len(pairs); i += 2 {
		key, value := pairs[i].Value, pairs[i+1]
		if s, ok := cardText(value); ok {
			card[key] = s
		}
		if value.Kind != yaml.SequenceNode {
			continue
		}
		var list []any
		for _, item := range value.Content {
			if s, ok := cardText(item); ok {
				list = append(list, s)
			}
		}
		if list != nil {
			card[key] = list
		}
	}
	return card, nil
}

// cardText is the text of a scalar; numbers, booleans and null are not text.
func cardText(n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		return "", false
	}
	switch n.ShortTag() {
	case "!!int", "!!float", "!!bool", "!!null":
		return "", false
	}
	return n.Value, n.Value != ""
}
