package dialog

import (
	"maps"

	"strobe/internal/chat"
)

// efforts are the words for effort that other models know, in gpt-oss's.
var efforts = map[string]string{"none": "low", "minimal": "low", "low": "low", "medium": "medium", "high": "high",
	"xhigh": "high", "max": "high"}

// harmonyEffort puts the effort that is asked for into the words that gpt-oss was trained with.
func harmonyEffort(extra map[string]any) (map[string]any, error) {
	given, ok := extra["reasoning_effort"]
	if !ok || given == nil {
		return extra, nil
	}
	word, _ := given.(string)
	effort, known := efforts[word]
	if !known {
		return nil, &chat.FieldError{Field: "reasoning_effort", Msg: "the model knows low, medium and high"}
	}
	extra = maps.Clone(extra)
	extra["reasoning_effort"] = effort
	return extra, nil
}
