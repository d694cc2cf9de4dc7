package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"strobe/internal/tokenizer"
)

type detokenizeOptions struct {
	model     string
	noSpecial bool
	batch     bool
}

func newDetokenizeCmd() *cobra.Command {
	var opt detokenizeOptions
	cmd := &cobra.Command{
		Use:   "detokenize [-m MODEL] < IDS",
		Short: "Turn token ids back into text",
		Long: `Detokenize reads token ids on standard input, separated by white space or commas
or written as a JSON array, and prints the text they stand for, byte for byte and
without a line feed of its own.`,
		Example: `  echo 9707 1879 | strobe detokenize -m model.gguf
  strobe tokenize -m model.gguf < a.txt | strobe detokenize -m model.gguf --no-special
  echo '[[1, 2], [3]]' | strobe detokenize -m model.gguf --batch`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDetokenize(cmd, opt, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.VarP(&once{to: &opt.model}, "model", "m",
		"`model` whose tokenizer to use, a name or a GGUF file (default: the one built in)")
	f.BoolVar(&opt.noSpecial, "no-special", false, "leave control tokens out of the text")
	f.BoolVar(&opt.batch, "batch", false, "read a JSON array of id arrays, print a JSON array of strings")
	return cmd
}

func runDetokenize(cmd *cobra.Command, opt detokenizeOptions, stdout io.Writer) error {
	tok, err := openTokenizer(cmd, opt.model)
	if err != nil {
		return err
	}
	in, err := readInput(cmd)
	if err != nil {
		return err
	}
	dec := tokenizer.DecodeOptions{Special: !opt.noSpecial, Opens: true}
	if !opt.batch {
		ids, err := parseIDs(string(in), tok.Size())
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		_, err = stdout.Write(tok.Decode(ids, dec))
		return err
	}
	var lists [][]int64
	if err := json.Unmarshal(in, &lists); err != nil {
		return fmt.Errorf("standard input: not a JSON array of id arrays: %w", err)
	}
	texts := make([]string, len(lists))
	for i, list := range lists {
		ids := make([]tokenizer.ID, len(list))
		for j, id := range list {
			if id < 0 || id >= int64(tok.Size()) {
				return fmt.Errorf("standard input: list %d: %w", i, outsideVocabulary(id, tok.Size()))
			}
			ids[j] = tokenizer.ID(id)
		}
		texts[i] = string(tok.Decode(ids, dec))
	}
	out := bufio.NewWriter(stdout)
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	if err := e.Encode(texts); err != nil {
		return err
	}
	return out.Flush()
}

// parseIDs reads ids separated by white space, commas or JSON brackets.
func parseIDs(s string, size int) ([]tokenizer.ID, error) {
	var ids []tokenizer.ID
	for _, w := range strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\r\n,[]", r) }) {
		id, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%.40q is not a token id", w)
		}
		if id < 0 || id >= int64(size) {
			return nil, outsideVocabulary(id, size)
		}
		ids = append(ids, tokenizer.ID(id))
	}
	return ids, nil
}

func outsideVocabulary(id int64, size int) error {
	return fmt.Errorf("id %d is outside the vocabulary of %d tokens", id, size)
}
