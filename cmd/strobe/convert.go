package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newConvertCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "convert DIR -o FILE",
		Short: "Make a GGUF file from a Hugging Face checkpoint",
		RunE:  func(cmd *cobra.Command, args []string) error { return errors.New("not finished yet") },
	}
}
