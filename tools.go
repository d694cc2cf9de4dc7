package strobe

import (
	"context"
	"fmt"
	"slices"
)

// defaultRounds is how often a model may call tools before Converse gives up: more than useful chains need, few
// enough to end one that repeats itself.
const defaultRounds = 16

// Converse is Chat for models with tools: it calls the tools that the model asks for, gives it their results, and goes
// on until the model answers without a call. It returns the messages it added: calls, results, and the answer at the
// end. show, which may be nil, sees every piece as it comes; its error ends the conversation.
//
// After an error the messages so far are returned with it. A model that still calls tools after Settings.Rounds rounds
// gives ErrRounds.
func (m *Model) Converse(ctx context.Context, messages []Message, set Settings, show func(Piece) error) (
	[]Message, error) {
	if err := m.usable(ctx); err != nil {
		return nil, err
	}
	return converse(ctx, messages, &set, func(all []Message) (Message, error) {
		answer, err := m.Chat(ctx, all, set)
		if err != nil {
			return Message{}, err
		}
		for piece, err := range answer.Pieces() {
			if err == nil && show != nil {
				err = show(piece)
			}
			if err != nil {
				answer.Stop()
				return Message{}, err
			}
		}
		return answer.Message(), nil
	})
}

// converse is Converse with a function that answers.
func converse(ctx context.Context, messages []Message, set *Settings, answer func([]Message) (Message, error)) (
	[]Message, error) {
	rounds := set.Rounds
	if rounds <= 0 {
		rounds = defaultRounds
	}
	tools := map[string]Tool{}
	for i, t := range set.Tools {
		if t.Call == nil {
			return nil, &FieldError{fmt.Sprintf("Settings.Tools[%d].Call", i), "is nil; Converse has to call it"}
		}
		tools[t.Name] = t
	}
	all := slices.Clone(messages)
	said := func() []Message { return all[len(messages):] }
	calls := 0
	for range rounds {
		turn, err := answer(all)
		if err != nil {
			return said(), err
		}
		for i := range turn.ToolCalls { // some templates want identifiers of nine letters and digits
			if calls++; turn.ToolCalls[i].ID == "" {
				turn.ToolCalls[i].ID = fmt.Sprintf("call%05d", calls)
			}
		}
		all = append(all, turn)
		if len(turn.ToolCalls) == 0 {
			return said(), nil
		}
		for _, call := range turn.ToolCalls {
			result, err := "", fmt.Errorf("there is no function %q", call.Name)
			if t, ok := tools[call.Name]; ok {
				result, err = t.Call(ctx, call.Arguments)
			}
			if err := ctx.Err(); err != nil {
				return said(), err
			}
			if err != nil {
				result = "error: " + err.Error()
			}
			all = append(all, Message{Role: "tool", Content: result, ToolCallID: call.ID, Name: call.Name})
		}
	}
	return said(), ErrRounds
}
