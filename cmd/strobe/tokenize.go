package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"strobe/internal/gguf"
	"strobe/internal/tokenizer"
	"strobe/models"
)

type tokenizeOptions struct {
	model     string
	noBOS     bool
	noSpecial bool
	json      bool
	show      bool
	batch     bool
}

func newTokenizeCmd() *cobra.Command {
	var opt tokenizeOptions
	cmd := &cobra.Command{
		Use:   "tokenize [-m MODEL] < TEXT",
		Short: "Turn text into token ids",
		Long: `Tokenize reads text on standard input and prints the ids of its tokens on one
line, as the model sees the text. The text is taken exactly as it is: a
line feed at its end counts, and it need not be valid UTF-8.

Control tokens written in the text (such as <|im_end|>) are recognised, and a BOS
token is added where the file asks for one. Switch that off with --no-special and
--no-bos.`,
		Example: `  printf 'Hello world' | strobe tokenize -m model.gguf
  printf 'Hello world' | strobe tokenize -m model.gguf --show
  echo '["one", "two"]' | strobe tokenize -m model.gguf --batch`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTokenize(cmd, opt, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.VarP(&once{to: &opt.model}, "model", "m",
		"`model` whose tokenizer to use, a name or a GGUF file (default: the one built in)")
	f.BoolVar(&opt.noBOS, "no-bos", false, "add no BOS or EOS token")
	f.BoolVar(&opt.noSpecial, "no-special", false, "treat control tokens in the text as plain text")
	f.BoolVar(&opt.json, "json", false, "print a JSON array")
	f.BoolVar(&opt.show, "show", false, "print each token's text beside its id, one per line")
	f.BoolVar(&opt.batch, "batch", false, "read a JSON array of strings, print a JSON array of id arrays")
	return cmd
}

func runTokenize(cmd *cobra.Command, opt tokenizeOptions, stdout io.Writer) error {
	if opt.batch && opt.show {
		return usagef("tokenize: --batch and --show do not go together")
	}
	tok, err := openTokenizer(cmd, opt.model)
	if err != nil {
		return err
	}
	in, err := readInput(cmd)
	if err != nil {
		return err
	}
	enc := tokenizer.EncodeOptions{AddSpecial: !opt.noBOS, ParseSpecial: !opt.noSpecial}
	out := bufio.NewWriter(stdout)
	switch {
	case opt.batch:
		var texts []string
		if err := json.Unmarshal(in, &texts); err != nil {
			return fmt.Errorf("standard input: not a JSON array of strings: %w", err)
		}
		lists := make([][]tokenizer.ID, len(texts))
		for i, s := range texts {
			lists[i] = tok.Encode(s, enc)
		}
		if err := json.NewEncoder(out).Encode(lists); err != nil {
			return err
		}
	default:
		if err := printTokens(out, tok, tok.Encode(string(in), enc), opt); err != nil {
			return err
		}
	}
	return out.Flush()
}

// printTokens writes one text's ids in the form the options ask for.
func printTokens(out *bufio.Writer, tok *tokenizer.Tokenizer, ids []tokenizer.ID, opt tokenizeOptions) error {
	type shown struct {
		ID    tokenizer.ID `json:"id"`
		Piece string       `json:"piece"` // bytes that are no UTF-8 by themselves show as U+FFFD
	}
	switch {
	case opt.json && opt.show:
		list := make([]shown, len(ids))
		for i, id := range ids {
			list[i] = shown{id, string(tok.Piece(id, true))}
		}
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		return e.Encode(list)
	case opt.json:
		return json.NewEncoder(out).Encode(ids)
	case opt.show:
		for _, id := range ids {
			fmt.Fprintf(out, "%d\t%q\n", id, tok.Piece(id, true))
		}
		return nil
	}
	for i, id := range ids {
		if i > 0 {
			out.WriteByte(' ')
		}
		out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(id), 10))
	}
	return out.WriteByte('\n')
}

// openGGUF opens the file that a name of a model stands for; the built-in model's without one.
func openGGUF(cmd *cobra.Command, name string) (*gguf.File, error) {
	if name == "" {
		target, drafter, err := models.Open()
		if err == nil && drafter != nil {
			err = drafter.Close()
		}
		return target, err
	}
	path, err := fileOf(cmd, name)
	if err != nil {
		return nil, err
	}
	return gguf.Open(path)
}

func openTokenizer(cmd *cobra.Command, name string) (*tokenizer.Tokenizer, error) {
	f, err := openGGUF(cmd, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return tokenizer.FromGGUF(f)
}
