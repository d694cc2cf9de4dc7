package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newInspectCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what is in a GGUF file",
		RunE:  func(cmd *cobra.Command, args []string) error { return errors.New("not finished yet") },
	}
}
